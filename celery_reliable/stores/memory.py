"""Keep jobs, dead letters and the ledger in the memory of one process.

The same contract as the Redis store, in plain Python: for unit tests, eager mode and ``memory://``. Nothing is shared
with another process, and nothing outlives this one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from celery_reliable.stores.base import Job, LetterPage
from celery_reliable.stores.notes import MemoryNotes
from celery_reliable.stores.pulse import Pulse
from celery_reliable.stores.records import Record
from celery_reliable.stores.verbs import Letter, SharedVerbs, Tables

T = TypeVar("T")


class MemoryStore(SharedVerbs):
    """The store of one process. Every verb is atomic under one lock and judged by one clock.

    ``clock`` returns seconds since the epoch and stands for the server's clock.

    .. versionadded:: 0.1
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Begin empty."""
        self.notes = MemoryNotes(clock=clock)
        self.outbox = None
        self._clock = clock
        self._lock = threading.Lock()
        self._tables = MemoryTables()

    def _atomically(self, work: Callable[[Tables], T]) -> T:
        with self._lock:
            self._tables.now = self._clock()
            return work(self._tables)

    def entry(self, job: Job, *, task_id: str) -> bytes | None:
        """See `Store.entry`."""
        with self._lock:
            found = self._tables.entries.get(task_id)
        return None if found is None else found.envelope

    def ledger(self, *, limit: int = 1000) -> Iterator[tuple[str, bytes]]:
        """Iterate over what the ledger held when asked; one page is enough in memory."""
        with self._lock:
            entries = [(task_id, entry.envelope) for task_id, entry in self._tables.entries.items()]
        yield from entries

    def now(self) -> int:
        """Return the clock's time in microseconds."""
        return int(self._clock() * 1e6)

    def known_now(self) -> int:
        """See `Store.known_now`: asking costs nothing here."""
        return self.now()

    def findings(self) -> list[str]:
        """Return what is wrong with the server: there is none."""
        return []

    def newer_layout(self) -> str:
        """See `Store.newer_layout`: nothing outlives the process."""
        return ""

    def close(self) -> None:
        """Do nothing: there is no connection."""


@dataclass(frozen=True, slots=True)
class _Entry:
    envelope: bytes
    times: int = 0
    resent_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class _KeptLetter:
    """A letter; ``number``, the microsecond of its burial or a later one, orders."""

    letter: Letter
    number: int
    ends: float


@dataclass(slots=True)
class _Letters:
    """All dead letters, oldest first, bounded by count and age."""

    kept: dict[str, _KeptLetter] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("buried", "replayed", "discarded", "trimmed"), 0)
    )
    _last: int = 0

    def put(self, letter_id: str, letter: Letter, *, now: float, ttl: float, limit: int) -> int:
        """Keep a letter once; return how many old ones had to go."""
        before = self.counts["trimmed"]
        self.forget_old(now=now)
        if letter_id in self.kept:
            return 0
        self.counts["buried"] += 1
        self._last = max(self._last + 1, round(now * 1e6))
        self.kept[letter_id] = _KeptLetter(letter, self._last, now + ttl)
        self._drop(list(self.kept)[: max(0, len(self.kept) - limit)])
        return self.counts["trimmed"] - before

    def forget_old(self, *, now: float) -> None:
        """Drop what is beyond its age."""
        self._drop([letter_id for letter_id, kept in self.kept.items() if kept.ends <= now])

    def _drop(self, letter_ids: list[str]) -> None:
        for letter_id in letter_ids:
            del self.kept[letter_id]
        self.counts["trimmed"] += len(letter_ids)

    def page(self, cursor: str, *, limit: int, labels: Collection[str] | None) -> LetterPage:
        """Return letters older than the cursor, newest first."""
        below = int(cursor) if cursor else math.inf
        older = [
            (letter_id, kept)
            for letter_id, kept in reversed(self.kept.items())
            if kept.number < below and (labels is None or kept.letter.label in labels)
        ]
        page = older[:limit]
        rows = [(letter_id, kept.letter.status, kept.letter.body) for letter_id, kept in page]
        return LetterPage(letters=rows, cursor=str(page[-1][1].number) if len(older) > limit else "")


class MemoryTables:
    """See `Tables`; for one verb at a time."""

    def __init__(self) -> None:
        """Begin empty."""
        self.now = -math.inf
        self.entries: dict[str, _Entry] = {}
        self._records: dict[bytes, Record] = {}
        self._letters = _Letters()
        self._pulse = Pulse()
        self._roles: dict[str, tuple[str, float]] = {}

    # --- records

    def record(self, job: Job) -> Record | None:
        """See `Tables.record`."""
        record = self._records.get(job.digest)
        if record is not None and record.ends <= self.now:
            del self._records[job.digest]
            return None
        return record

    def keep(self, job: Job, record: Record) -> Record:
        """See `Tables.keep`."""
        self._records[job.digest] = record
        return record

    def forget(self, job: Job) -> None:
        """See `Tables.forget`."""
        self._records.pop(job.digest, None)

    def extend(self, claims: Sequence[tuple[Job, str, float]]) -> list[str]:
        """See `Tables.extend`."""
        return [job.key for job, token, ttl in claims if not self._extend(job, token=token, ttl=ttl)]

    def _extend(self, job: Job, *, token: str, ttl: float) -> bool:
        record = self.record(job)
        if record is None or record.state != "running" or record.token != token or record.freed:
            return False
        until = self.now + ttl
        self.keep(job, replace(record, lease_until=until, ends=max(record.ends, until)))
        return True

    # --- the ledger

    def has_entry(self, task_id: str) -> bool:
        """See `Tables.has_entry`."""
        return task_id in self.entries

    def keep_entry(self, task_id: str, envelope: bytes) -> None:
        """See `Tables.keep_entry`."""
        self.entries[task_id] = _Entry(envelope)

    def drop_entry(self, task_id: str) -> None:
        """See `Tables.drop_entry`."""
        self.entries.pop(task_id, None)

    def resent(self, task_id: str) -> tuple[int, float] | None:
        """See `Tables.resent`."""
        entry = self.entries.get(task_id)
        return None if entry is None else (entry.times, entry.resent_at)

    def note_resent(self, task_id: str, times: int, at: float) -> None:
        """See `Tables.note_resent`."""
        self.entries[task_id] = replace(self.entries[task_id], times=times, resent_at=at)

    # --- dead letters

    def letter(self, letter_id: str, *, to_change: bool = False) -> Letter | None:
        """See `Tables.letter`."""
        self._letters.forget_old(now=self.now)
        kept = self._letters.kept.get(letter_id)
        return None if kept is None else kept.letter

    def put_letter(self, letter_id: str, letter: Letter, *, ttl: float, limit: int) -> int:
        """See `Tables.put_letter`."""
        return self._letters.put(letter_id, letter, now=self.now, ttl=ttl, limit=limit)

    def mark_replayed(self, letter_id: str, letter: Letter, *, again: bool) -> None:
        """See `Tables.mark_replayed`."""
        self._letters.kept[letter_id] = replace(self._letters.kept[letter_id], letter=letter)
        self._letters.counts["replayed"] += not again

    def discard_letter(self, letter_id: str) -> None:
        """See `Tables.discard_letter`."""
        del self._letters.kept[letter_id]
        self._letters.counts["discarded"] += 1

    def letter_page(self, cursor: str, *, limit: int, labels: Collection[str] | None) -> LetterPage:
        """See `Tables.letter_page`."""
        self._letters.forget_old(now=self.now)
        return self._letters.page(cursor, limit=limit, labels=labels)

    def letter_labels(self) -> Sequence[str]:
        """See `Tables.letter_labels`."""
        self._letters.forget_old(now=self.now)
        return sorted({kept.letter.label for kept in self._letters.kept.values()})

    def letter_counts(self) -> Mapping[str, int]:
        """See `Tables.letter_counts`."""
        self._letters.forget_old(now=self.now)
        return {"kept": len(self._letters.kept), **self._letters.counts}

    # --- the fleet

    def pulse(self, *, to_change: bool = False) -> Pulse:
        """See `Tables.pulse`."""
        return self._pulse

    def keep_pulse(self, pulse: Pulse) -> None:
        """See `Tables.keep_pulse`."""
        self._pulse = pulse

    def role(self, role: str) -> tuple[str, float] | None:
        """See `Tables.role`."""
        return self._roles.get(role)

    def keep_role(self, role: str, token: str, ends: float) -> None:
        """See `Tables.keep_role`."""
        self._roles[role] = (token, ends)
