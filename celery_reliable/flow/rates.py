"""Let so many runs of one key begin in a time, in the whole fleet, evenly spread.

A run reserves the next free moment, and waits until then. The moments of a key are one number, the earliest that is free, on
the server's clock; who changes it compares it with what was read (the generic cell rate algorithm, with reservations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery_reliable.flow.chance import Random
from celery_reliable.stores.notes import Notes, Write

SHELF = "rates"
LATE = 10.0
"""Seconds that a reserved moment lasts: a run that comes later, since its worker was busy or gone, reserves anew."""

_SECOND = 1_000_000
_UNITS = {"s": 1, "m": 60, "h": 3600}
_AHEAD = 20.0  # seconds for which moments are given away
_OLDEST_AHEAD = 120.0
_AHEAD_BY_AGE = 0.5  # seconds more for each second since the submission: who is older reserves before others can
_AGAIN = (5.0, 15.0)
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Reserved:
    """A run may begin at ``moment`` (microseconds of the server's clock), which is in so many ``seconds``: 0 now."""

    moment: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Later:
    """All moments near enough are taken; ask again in so many seconds."""

    seconds: float


def interval(rate: str) -> int:
    """Return the microseconds between two runs at a rate such as ``100/m``."""
    number, _, unit = rate.partition("/")
    return round(_UNITS[unit] * _SECOND / int(number))


class Rates:
    """The moments kept in one store. They raise what the store raises."""

    __slots__ = ("_notes", "_now", "_random")

    def __init__(self, notes: Notes, *, now: Callable[[], int], random: Random) -> None:
        """Take the notes and the server's clock."""
        self._notes, self._now, self._random = notes, now, random

    def enter(self, name: str, *, rate: str, age: float, moment: int = 0) -> Reserved | Later:
        """Reserve a moment for a run; ``moment``: the one that it has reserved before. ``age``: seconds since the submission."""
        now = self._now()
        if moment and now < moment + LATE * _SECOND:
            return Reserved(moment, max(moment - now, 0) / _SECOND)
        ahead = min(_AHEAD + _AHEAD_BY_AGE * max(age, 0.0), _OLDEST_AHEAD)
        for _ in range(_TRIES):
            note = self._notes.read(SHELF, [name]).get(name)
            now = self._now()
            begins = max(now, int(note.value) if note else 0)
            if begins - now > ahead * _SECOND:
                return Later(self._random.uniform(*_AGAIN))
            following, left = begins + interval(rate), (begins - now) / _SECOND
            write = Write(name=name, value=b"%d" % following, ttl=left + 3600, expected=note.version if note else 0)
            if self._notes.write(SHELF, [write]) != [None]:
                return Reserved(begins, left)
        return Later(self._random.uniform(*_AGAIN))
