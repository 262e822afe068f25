"""Silence a group of letters: it is known, and somebody is at it. They are kept all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from celery_reliable.dead_letters.record import DeadLetter
from celery_reliable.stores.notes import Note, Notes, Write, every

SHELF: Final = "silences"
KEPT: Final = 90 * 86_400.0


@dataclass(frozen=True, slots=True)
class Silence:
    """One silenced group, until a release of the project's code: a letter of that release or a later one speaks again."""

    group: str
    who: str
    when: float
    until: str = ""

    def covers(self, letter: DeadLetter) -> bool:
        """Tell whether a letter is silenced."""
        return letter.error_fingerprint == self.group and self.holds(letter.worker.release)

    def holds(self, release: str) -> bool:
        """Tell whether it holds for code of a release. Without a release on either side it does."""
        return not (self.until and release and _order(release) >= _order(self.until))


class Silences:
    """The silenced groups of one store."""

    def __init__(self, notes: Notes) -> None:
        """Take the store's notes."""
        self._notes = notes

    def add(self, silence: Silence) -> None:
        """Silence a group, or change until when."""
        self._notes.write(SHELF, [Write(name=silence.group, value=json.dumps(asdict(silence)).encode(), ttl=KEPT)])

    def remove(self, group: str) -> None:
        """Let a group speak."""
        self._notes.write(SHELF, [Write(name=group, value=None, ttl=0.0)])

    def find(self, group: str) -> Silence | None:
        """Return the silence of one group."""
        note = self._notes.read(SHELF, [group]).get(group)
        return _decoded(note) if note else None

    def all(self) -> Mapping[str, Silence]:
        """Return all by group."""
        found = {name: _decoded(note) for name, note in every(self._notes, SHELF).items()}
        return {name: silence for name, silence in found.items() if silence is not None}


def _decoded(note: Note) -> Silence | None:
    try:
        return Silence(**json.loads(note.value))
    except (ValueError, TypeError):
        return None  # of a later version


def is_silent(letter: DeadLetter, silences: Mapping[str, Silence]) -> bool:
    """Tell whether a letter's group is silenced."""
    silence = silences.get(letter.error_fingerprint)
    return silence is not None and silence.covers(letter)


def _order(release: str) -> list[tuple[int, int | str]]:
    """Return what releases compare by: numbers as numbers, 1.10 after 1.9."""
    parts = re.findall(r"\d+|[a-z]+", release.lower())
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]
