"""Name every key of the Redis layout in one place.

Layout 1. ``P`` is the key prefix (``cr:``); on a Cluster it is ``{cr:07}``, one of 64 shards, so that all keys of a job
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
``P p``                 the fleet's pulse: last beat and end of the grace, in milliseconds (string)
======================  =================================================================

A digest is 22 characters of URL-safe base64 of the key's 16-byte hash: ``cr:j:`` and a digest fit the 32-byte class of
Redis's allocator, which is why a finished declared key costs 165 bytes.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from celery_reliable.stores.base import Job

_BUCKETS = 4096
_HOUR = 3_600_000_000  # microseconds
_FIELD_BYTES = 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where the record of a job lies: ``record`` and ``field`` in a bucket, or field b"" and the string ``alone``."""

    shard: int
    record: str
    field: bytes
    alone: str
    ledger: str


class Keys:
    """Every key, for one prefix and number of shards."""

    __slots__ = ("_prefixes", "_shards")

    def __init__(self, *, prefix: str, shards: int) -> None:
        """One shard means no Cluster and no hash tags."""
        self._shards = shards
        stem = prefix.rstrip(":")
        self._prefixes = [prefix] if shards == 1 else [f"{{{stem}:{shard:02d}}}" for shard in range(shards)]

    def shard(self, job: Job) -> int:
        """Return the shard of a job's keys."""
        return _bucket(job.digest) % self._shards

    def place(self, job: Job) -> Place:
        """Return where the record of a job lies."""
        bucket = _bucket(job.digest)
        shard = bucket % self._shards
        prefix = self._prefixes[shard]
        alone = f"{prefix}j:{_digest(job)}"
        if job.kind == "own" and job.stamp:
            record = f"{prefix}b:{job.stamp // _HOUR:x}:{bucket:x}"
            return Place(shard, record, job.digest[:_FIELD_BYTES], alone, f"{prefix}led")
        return Place(shard, alone, b"", alone, f"{prefix}led")

    def outcome(self, job: Job, shard: int) -> str:
        """Return the key of a long outcome."""
        return f"{self._prefixes[shard]}o:{_digest(job)}"

    def checkpoint(self, job: Job, shard: int) -> str:
        """Return the key of checkpoint and steps."""
        return f"{self._prefixes[shard]}c:{_digest(job)}"

    def evidence(self, job: Job, shard: int) -> str:
        """Return the key of the evidence."""
        return f"{self._prefixes[shard]}v:{_digest(job)}"

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

    def letter_keys(self, shard: int) -> tuple[str, str, str]:
        """Return letters, order and counts of a shard."""
        return self.letters(shard), self.letter_order(shard), self.letter_stats(shard)

    def pulse(self, shard: int) -> str:
        """Return the key of a shard's pulse."""
        return f"{self._prefixes[shard]}p"


def _bucket(digest: bytes) -> int:
    return int.from_bytes(digest[10:12], "big") % _BUCKETS


def _digest(job: Job) -> str:
    return base64.urlsafe_b64encode(job.digest)[:22].decode()
