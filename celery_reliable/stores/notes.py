"""Small records that a fleet shares: who works, what is parked, which slot has fired. Compare, set and expire.

A feature that needs a little common state uses these three verbs and so works on every store, instead of bringing verbs
of its own to each of them. Notes lie on shelves; a shelf is named by the feature (``workers``, ``parked``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

BATCH = 1000  # notes read or written in one round trip


@dataclass(frozen=True, slots=True)
class Note:
    """One record: ``version`` is the server's time in microseconds at its write; it only grows on a shelf."""

    name: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Set a note for ``ttl`` seconds, or remove it (``value`` None).

    ``expected`` is what must be there for it to happen: None anything, 0 nothing, else exactly that version. ``keep``
    above 0 adds the value to the end of what is there, of which the last ``keep`` bytes stay.
    """

    name: str
    value: bytes | None
    ttl: float
    expected: int | None = None
    keep: int = 0

    def after(self, before: bytes) -> bytes | None:
        """Return what is then there."""
        if self.value is None or not self.keep:
            return self.value
        return (before + self.value)[-self.keep :]


@dataclass(frozen=True, slots=True)
class NotePage:
    """Some notes of a shelf, and the cursor of the next page: ``""`` after the last."""

    notes: Sequence[Note]
    cursor: str = ""


class Notes(Protocol):
    """What every store offers for notes. All raise `StoreUnavailable` and `StoreError` as the store's verbs do."""

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Return those of the named notes that exist. One round trip for each thousand."""
        ...

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Apply each write, atomic by itself, in order; return its version, or None where ``expected`` did not hold.

        One round trip for each thousand. A removal answers with a version too. After a lost answer whether it took
        effect is unknown: read the note and compare.
        """
        ...

    def page(self, shelf: str, cursor: str = "", *, limit: int = 500) -> NotePage:
        """Return about ``limit`` notes. Those that stay throughout a whole turn of pages are seen at least once."""
        ...


def every(notes: Notes, shelf: str) -> dict[str, Note]:
    """Return all notes of a shelf by name, read in pages."""
    page = notes.page(shelf)
    found = {note.name: note for note in page.notes}
    while page.cursor:
        page = notes.page(shelf, page.cursor)
        found |= {note.name: note for note in page.notes}
    return found


@dataclass(slots=True)
class _Shelf:
    kept: dict[str, tuple[Note, float]] = field(default_factory=dict)
    version: int = 0

    def forget_old(self, *, now: float) -> None:
        for name in [name for name, (_, ends) in self.kept.items() if ends <= now]:
            del self.kept[name]

    def apply(self, write: Write, *, now: float) -> int | None:
        known = self.kept.get(write.name)
        if write.expected is not None and write.expected != (known[0].version if known else 0):
            return None
        self.version = max(int(now * 1e6), self.version + 1)
        self.kept.pop(write.name, None)
        value = write.after(known[0].value if known else b"")
        if value is not None:
            self.kept[write.name] = (Note(write.name, value, self.version), now + write.ttl)
        return self.version


class MemoryNotes:
    """The notes of one process, atomic under one lock."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """Begin empty."""
        self._clock = clock
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """See `Notes.read`."""
        with self._lock:
            kept = self._fresh(shelf).kept
            return {name: kept[name][0] for name in names if name in kept}

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """See `Notes.write`."""
        with self._lock:
            place = self._fresh(shelf)
            now = self._clock()
            return [place.apply(write, now=now) for write in writes]

    def page(self, shelf: str, cursor: str = "", *, limit: int = 500) -> NotePage:
        """See `Notes.page`: in the order of names."""
        with self._lock:
            kept = self._fresh(shelf).kept
            later = islice((name for name in sorted(kept) if name > cursor), limit + 1)
            names = list(later)
            notes = [kept[name][0] for name in names[:limit]]
        return NotePage(notes, notes[-1].name if len(names) > limit else "")

    def _fresh(self, shelf: str) -> _Shelf:
        place = self._shelves.setdefault(shelf, _Shelf())
        place.forget_old(now=self._clock())
        return place
