"""Name every key of the Redis layout in one place.

Layout 1, `LAYOUT`. ``P`` is the key prefix (``cr:``); on a Cluster it is ``{cr:07}``, one of 64 shards, so that all keys of a job
lie in one slot.

======================  =================================================================
``P j:<digest>``        record of a key, a short text (string)
``P b:<hour>:<n>``      records of fresh task ids of one hour, 4096 buckets (hash)
``P o:<digest>``        outcome of such a record, when it is longer than 32 bytes (string)
``P c:<digest>``        checkpoint and steps (hash)
``P v:<digest>``        evidence about dead processes (list)
``P led``               ledger: task id -> envelope (hash)
``P l``, ``P lz``       dead letters and their order by time (hash, sorted set)
``P ls``                counts of letters (hash)
``P lb``, ``P lx``      labels of letters, and the letters of each label by time (hash, sorted set)
``P r:<role>``          who has a role in the fleet (string)
``P n:<shelf>``         notes of a shelf: name -> version and value (hash)
``P nx:<shelf>``        when each of them ends, in milliseconds (sorted set)
``P p``                 the fleet's pulse: last beat, end and begin of the grace, in milliseconds (string)
``P layout``            the number of the layout, in the first shard alone (string)
======================  =================================================================

A digest is 22 characters of URL-safe base64 of the key's 16-byte hash: ``cr:j:`` and a digest fit the 32-byte class of
Redis's allocator, which is why a finished declared key costs 165 bytes (180 where the allocator rounds an entry of 24
bytes up to 32, as that of Debian does).
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

from celery_reliable.stores.base import Job

LAYOUT = 1
"""Counted up by code whose keys this code would misread: its workers do not start on a greater number."""
_BUCKETS = 4096
_HOUR = 3_600_000_000  # microseconds
_FIELD_BYTES = 10


class Place(NamedTuple):
    """Where the record of a job lies: ``record`` and ``field`` in a bucket, or field b"" and the string ``alone``.

    A tuple, since two are made for every task that runs; the keys beside the record are put together when asked for.
    """

    shard: int
    prefix: str
    raw: bytes
    record: str
    field: bytes

    @property
    def digest(self) -> str:
        """The name of a key, made when asked for: an id of its own is claimed and done without it."""
        return base64.urlsafe_b64encode(self.raw)[:22].decode()

    @property
    def alone(self) -> str:
        """The key of a record in a string of its own."""
        return f"{self.prefix}j:{self.digest}" if self.field or not self.record else self.record

    @property
    def ledger(self) -> str:
        """The key of the ledger."""
        return f"{self.prefix}led"

    @property
    def outcome(self) -> str:
        """The key of a long outcome."""
        return f"{self.prefix}o:{self.digest}"

    @property
    def checkpoint(self) -> str:
        """The key of checkpoint and steps."""
        return f"{self.prefix}c:{self.digest}"

    @property
    def evidence(self) -> str:
        """The key of the evidence."""
        return f"{self.prefix}v:{self.digest}"


class Keys:
    """Every key, for one prefix and number of shards."""

    __slots__ = ("_last", "_prefixes", "_shards")

    def __init__(self, *, prefix: str, shards: int) -> None:
        """One shard means no Cluster and no hash tags."""
        self._shards = shards
        self._last: tuple[Job | None, Place] = (None, Place(0, "", b"", "", b""))
        stem = prefix.rstrip(":")
        self._prefixes = [prefix] if shards == 1 else [f"{{{stem}:{shard:02d}}}" for shard in range(shards)]

    def shard(self, job: Job) -> int:
        """Return the shard of a job's keys."""
        return _bucket(job.digest) % self._shards

    def place(self, job: Job) -> Place:
        """Return where the record of a job lies; a run asks twice in a row, for its claim and for its outcome."""
        known, place = self._last
        if known is not job:
            place = self._place(job)
            self._last = (job, place)
        return place

    def _place(self, job: Job) -> Place:
        digest = job.digest
        bucket = _bucket(digest)
        shard = bucket % self._shards
        prefix = self._prefixes[shard]
        if job.kind == "own" and job.stamp:
            return Place(shard, prefix, digest, f"{prefix}b:{job.stamp // _HOUR:x}:{bucket:x}", digest[:_FIELD_BYTES])
        return Place(shard, prefix, digest, Place(shard, prefix, digest, "", b"").alone, b"")

    def ledger(self, shard: int) -> str:
        """Return the key of a shard's ledger."""
        return f"{self._prefixes[shard]}led"

    def letters(self, shard: int) -> str:
        """Return the key of a shard's letters."""
        return f"{self._prefixes[shard]}l"

    def letter_order(self, shard: int) -> str:
        """Return the key of the letters' order."""
        return f"{self._prefixes[shard]}lz"

    def letter_stats(self, shard: int) -> str:
        """Return the key of the letters' counts."""
        return f"{self._prefixes[shard]}ls"

    def letter_labels(self, shard: int) -> str:
        """Return the key of the letters' labels."""
        return f"{self._prefixes[shard]}lb"

    def letter_index(self, shard: int) -> str:
        """Return the key of the letters by label."""
        return f"{self._prefixes[shard]}lx"

    def letter_keys(self, shard: int) -> tuple[str, str, str, str, str]:
        """Return letters, order, counts, labels and index of a shard."""
        prefix = self._prefixes[shard]
        return f"{prefix}l", f"{prefix}lz", f"{prefix}ls", f"{prefix}lb", f"{prefix}lx"

    @property
    def layout(self) -> str:
        """The key of the layout's number."""
        return f"{self._prefixes[0]}layout"

    def role(self, role: str) -> str:
        """Return the key of a role in the fleet."""
        return f"{self._prefixes[0]}r:{role}"

    def shelf(self, shelf: str) -> tuple[str, str]:
        """Return the keys of a shelf's notes and of the order in which they end."""
        prefix = self._prefixes[zlib.crc32(shelf.encode()) % self._shards]
        return f"{prefix}n:{shelf}", f"{prefix}nx:{shelf}"

    def pulse(self, shard: int) -> str:
        """Return the key of a shard's pulse."""
        return f"{self._prefixes[shard]}p"


def _bucket(digest: bytes) -> int:
    return int.from_bytes(digest[10:12], "big") % _BUCKETS
