"""Number the jobs that one key has one after the other, so that one runs and at most one is queued.

Each is a round with a key of its own. A submission joins the round that nobody has begun to run, and takes its arguments'
place; only when there is none it begins the next one. Whether a round has begun is what the store says of its key, in the same
step in which the arguments are replaced; the number kept here only says where to look.
"""

from __future__ import annotations

import re
from typing import Final

from celery_reliable.stores.notes import Notes, Write

SHELF: Final = "rounds"
POLL: Final = 1.0
"""Seconds between two looks of a job that waits for the one before it."""

_KEY: Final = re.compile(r"(.*) round (\d+)", re.DOTALL)


def round_key(name: str, number: int) -> str:
    """Return the key of one round."""
    return f"{name} round {number}"


def key_before(key: str) -> str | None:
    """Return the key of the round before, None for the first, and for a key that is of no round."""
    found = _KEY.fullmatch(key)
    return round_key(found[1], int(found[2]) - 1) if found and int(found[2]) > 1 else None


class Rounds:
    """The present round of each key, kept for ``ttl`` seconds after it began. They raise what the store raises."""

    __slots__ = ("_notes", "_ttl")

    def __init__(self, notes: Notes, *, ttl: float) -> None:
        """Take the notes, and for how long a round can be met."""
        self._notes, self._ttl = notes, ttl

    def present(self, name: str) -> int:
        """Return the number of the present round, from 1."""
        note = self._notes.read(SHELF, [name]).get(name)
        return int(note.value) if note else 1

    def advance(self, name: str, *, begun: int) -> None:
        """Go on to the next round if ``begun`` is still the present one; of many that ask, one does it."""
        note = self._notes.read(SHELF, [name]).get(name)
        if (int(note.value) if note else 1) != begun:
            return
        write = Write(name=name, value=b"%d" % (begun + 1), ttl=self._ttl, expected=note.version if note else 0)
        self._notes.write(SHELF, [write])
