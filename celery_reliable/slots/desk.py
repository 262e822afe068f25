"""Write the records of entries, so that no two leaders fire one slot: every write compares with what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from celery_reliable.slots.records import SlotRecord
from celery_reliable.stores.notes import Note, Notes, Write, every

SHELF = "beat.slots"
KEPT = 90 * 86_400.0
"""Seconds that the record of an entry outlives its last write; the leader writes it again long before."""

_FRESH_ENOUGH = 30 * 86_400.0


@dataclass(slots=True)
class _Kept:
    record: SlotRecord
    version: int  # of the note; 0: not written yet


class Desk:
    """The records of all entries in the memory of the beat that leads, and what of them is still to be written.

    All methods raise `StoreError` as the store does; what was not written then is written later.
    """

    def __init__(self, notes: Notes, *, now: Callable[[], int]) -> None:
        """Take the store's notes and its clock, in microseconds."""
        self._notes = notes
        self._now = now
        self._kept: dict[str, _Kept] = {}
        self._unwritten: dict[str, SlotRecord] = {}
        self.epoch = 0
        self.deposed = False
        """Whether the record of a later leader was met."""

    def load(self, *, epoch: int) -> None:
        """Read everything. What this process fired itself counts even if the store has forgotten it."""
        remembered = self._kept
        self.epoch, self.deposed = epoch, False
        self._unwritten = {}
        self._kept = dict(_kept_of(every(self._notes, SHELF).values()))
        for name, old in remembered.items():
            self._restore(name, old.record)

    def _restore(self, name: str, old: SlotRecord) -> None:
        kept = self._kept.get(name)
        known = kept.record if kept else None
        if known is not None and (known.schedule_version != old.schedule_version or known.slot >= old.slot):
            return
        if old.state != "seen":
            self.amend(name, old)

    def record(self, name: str) -> SlotRecord | None:
        """Return the record of an entry."""
        kept = self._kept.get(name)
        return kept.record if kept else None

    def names(self) -> Iterator[str]:
        """Iterate over all entries that have a record."""
        return iter(self._kept)

    def __len__(self) -> int:
        """Return how many entries have a record."""
        return len(self._kept)

    # --- now or not at all

    def put(self, changes: Mapping[str, tuple[SlotRecord, SlotRecord]]) -> set[str]:
        """Replace records, given as (old, new) by name; return the names that were written.

        Nothing is written over a record that is not the old one any more: another beat may have claimed its slot.
        """
        self.flush()
        unchanged = {name: new for name, (old, new) in changes.items() if self.record(name) == old}
        written, refused = self._write([(name, new, self._version(name)) for name, new in unchanged.items()])
        # By a call whose answer was lost.
        return written | {name for name in refused if self.record(name) == unchanged[name]}

    # --- soon, many at once

    def amend(self, name: str, record: SlotRecord) -> None:
        """Change a record here now, and in the store with the next `flush`."""
        kept = self._kept.setdefault(name, _Kept(record, 0))
        kept.record = record
        self._unwritten[name] = record

    @property
    def unwritten(self) -> int:
        """Return how many changes wait for `flush`."""
        return len(self._unwritten)

    def flush(self) -> None:
        """Write what was amended."""
        if not self._unwritten:
            return
        waiting = [(name, record, self._version(name)) for name, record in self._unwritten.items()]
        self._write(waiting)
        self._unwritten = {}

    def keep_alive(self) -> None:
        """Write again the records that are about to be forgotten."""
        old = self._now() - int(_FRESH_ENOUGH * 1e6)
        for name, kept in self._kept.items():
            if 0 < kept.version < old:
                self._unwritten[name] = kept.record

    # --- the store

    def _version(self, name: str) -> int:
        kept = self._kept.get(name)
        return kept.version if kept else 0

    def _write(self, wanted: Sequence[tuple[str, SlotRecord, int]]) -> tuple[set[str], list[str]]:
        writes = [
            Write(name=name, value=record.to_bytes(), ttl=KEPT, expected=version) for name, record, version in wanted
        ]
        answers = self._notes.write(SHELF, writes) if writes else []
        refused: list[str] = []
        written: set[str] = set()
        for (name, record, _), version in zip(wanted, answers, strict=True):
            if version is None:
                refused.append(name)
            else:
                self._kept[name] = _Kept(record, version)
                written.add(name)
        if refused:
            self._refresh(refused)
        return written, refused

    def _refresh(self, names: Sequence[str]) -> None:
        found = self._notes.read(SHELF, names)
        known = dict(_kept_of(found.values()))
        for name in names:
            self._unwritten.pop(name, None)
            if name not in known:
                self._forget(name, found)
                continue
            self.deposed = self.deposed or known[name].record.epoch > self.epoch
            self._merge(name, known[name])

    def _forget(self, name: str, found: Mapping[str, Note]) -> None:
        """Meet a missing or unreadable record: what is known here is written over it, if anything is."""
        kept = self._kept.get(name)
        if kept is not None:
            kept.version = found[name].version if name in found else 0

    def _merge(self, name: str, found: _Kept) -> None:
        """Take the store's record, unless it is older than what this leader did: the store has lost writes then."""
        mine = self.record(name)
        older = mine is not None and mine.schedule_version == found.record.schedule_version
        if mine is not None and older and mine.slot > found.record.slot and mine.epoch == self.epoch:
            self._kept[name] = _Kept(mine, found.version)
            return
        self._kept[name] = found


def _kept_of(notes: Iterable[Note]) -> Iterator[tuple[str, _Kept]]:
    for note in notes:
        try:
            yield note.name, _Kept(SlotRecord.from_bytes(note.value), note.version)
        except ValueError:
            # Not ours, or of a later version: the entry starts anew, and the record is written over.
            yield note.name, _Kept(replace(_UNREADABLE), note.version)


_UNREADABLE = SlotRecord("", 0)
