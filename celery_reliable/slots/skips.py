"""Keep which slots were published and then skipped by a worker, because another job of their kind ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime

from celery_reliable.slots.records import HISTORY, Passed
from celery_reliable.stores.notes import Note, Notes, Write

SHELF = "beat.skips"
SLOT_HEADER = "reliable_slot"
ENTRY_HEADER = "reliable_entry"
SCHEDULE_HEADER = "reliable_schedule"
"""Carries the `sequences.Rhythm` of the entry, where it has one."""

_KEPT = 90 * 86_400.0  # seconds, as the records of entries
_TRIES = 5


def skipped(notes: Notes, entry: str, *, slot: str, reason: str, now: int) -> None:
    """Note that a slot did not run. Raises `StoreError`; of many at the same moment some may be missing."""
    moment = int(datetime.fromisoformat(slot).timestamp() * 1e6)
    for _ in range(_TRIES):
        note = notes.read(SHELF, [entry]).get(entry)
        known = [passed for passed in _decoded(note) if passed.slot != moment]
        raw = json.dumps([*known, Passed(moment, f"overlap: {reason}", now)][-HISTORY:]).encode()
        write = Write(name=entry, value=raw, ttl=_KEPT, expected=note.version if note else 0)
        if notes.write(SHELF, [write]) != [None]:
            return


def by_entry(notes: Mapping[str, Note]) -> dict[str, list[Passed]]:
    """Return the skipped slots in some notes of the shelf, by the name of the entry."""
    return {name: _decoded(note) for name, note in notes.items()}


def _decoded(note: Note | None) -> list[Passed]:
    try:
        return [Passed(int(slot), str(reason), int(at)) for slot, reason, at in _lists(note)]
    except (ValueError, TypeError):
        return []  # not ours


def _lists(note: Note | None) -> Iterable[tuple[int, str, int]]:
    return json.loads(note.value) if note else ()
