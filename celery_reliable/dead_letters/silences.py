"""Silence a group of letters: it is known, and somebody is at it. They are kept all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from celery_reliable.dead_letters.record import DeadLetter
from celery_reliable.stores.notes import Notes, Write, every

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
        """Tell whether a letter is silenced. Without a release on either side it is."""
        release = letter.worker.release
        return letter.error_fingerprint == self.group and not (
            self.until and release and _order(release) >= _order(self.until)
        )


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

    def all(self) -> Mapping[str, Silence]:
        """Return all by group."""
        found = {}
        for name, note in every(self._notes, SHELF).items():
            try:
                found[name] = Silence(**json.loads(note.value))
            except (ValueError, TypeError):
                continue
        return found


def is_silent(letter: DeadLetter, silences: Mapping[str, Silence]) -> bool:
    """Tell whether a letter's group is silenced."""
    silence = silences.get(letter.error_fingerprint)
    return silence is not None and silence.covers(letter)


def _order(release: str) -> list[tuple[int, int | str]]:
    """Return what releases compare by: numbers as numbers, 1.10 after 1.9."""
    parts = re.findall(r"\d+|[a-z]+", release.lower())
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]
