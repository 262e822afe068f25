"""Number the jobs that one key has one after the other, so that one runs and at most one is queued.

Each is a round with a key of its own. A submission joins the round that nobody has begun to run, and takes its arguments'
place; only when there is none it begins the next one. Whether a round has begun is what the store says of its key, in the same
step in which the arguments are replaced; the number kept here only says where to look.

A key with a window (``dedup_for``) goes on to its next round once the window of the present one is over and its job is done. The
window is a note of its own, which ends by the store's clock. Whoever is about to publish opens it before: so a job that is done has
had its window, and nobody who sees it done and no window is early. A producer that dies before that leaves no window, and one that
dies after it, a round without a job, which the next submission begins. A round whose job died or was taken back is begun again, with
a new window.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

from celery_reliable.stores.notes import Notes, Write

_SHELVES: Final = 64  # a Cluster keeps each on one node
_WINDOW: Final = "\x01"  # before the name
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


def shelf_of(name: str) -> str:
    """Return the shelf of a key's notes: one of many, so that no node of a Cluster has the rounds of all keys."""
    return f"rounds:{zlib.crc32(name.encode(errors='surrogatepass')) % _SHELVES:02d}"


@dataclass(frozen=True, slots=True)
class Round:
    """The present round of a key. ``window`` is the version of its window, 0 when none is open."""

    number: int
    window: int


class Rounds:
    """The present round of each key, kept for ``ttl`` seconds after it began. They raise what the store raises."""

    __slots__ = ("_notes", "_ttl")

    def __init__(self, notes: Notes, *, ttl: float) -> None:
        """Take the notes, and for how long a round can be met."""
        self._notes, self._ttl = notes, ttl

    def present(self, name: str) -> int:
        """Return the number of the present round, from 1."""
        note = self._notes.read(shelf_of(name), [name]).get(name)
        return int(note.value) if note else 1

    def look(self, name: str) -> Round:
        """Return the present round of a key with a window."""
        notes = self._notes.read(shelf_of(name), [name, _WINDOW + name])
        number, window = notes.get(name), notes.get(_WINDOW + name)
        return Round(int(number.value) if number else 1, window.version if window else 0)

    def open(self, name: str, *, known: Round, ttl: float) -> None:
        """Open a window of ``ttl`` seconds from now, unless another one was opened since ``known`` was seen."""
        self._notes.write(shelf_of(name), [Write(name=_WINDOW + name, value=b"", ttl=ttl, expected=known.window)])

    def leave(self, name: str, *, done: int) -> None:
        """Go on to the next round if ``done``, whose job was seen to be done, is the present one and has no window."""
        if self.look(name) == Round(done, 0):
            self.advance(name, begun=done)

    def advance(self, name: str, *, begun: int) -> None:
        """Go on to the next round if ``begun`` is still the present one; of many that ask, one does it."""
        note = self._notes.read(shelf_of(name), [name]).get(name)
        if (int(note.value) if note else 1) != begun:
            return
        write = Write(name=name, value=b"%d" % (begun + 1), ttl=self._ttl, expected=note.version if note else 0)
        self._notes.write(shelf_of(name), [write])
