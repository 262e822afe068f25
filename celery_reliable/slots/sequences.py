"""Enumerate the slots of an entry. All times are microseconds since the epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from celery_reliable.slots.crontab import Crontab

SECOND = 1_000_000
Rhythm = str | float | None
"""A schedule in words that others understand: the five fields of a crontab and the name of a zone, or seconds between two
slots. None: it cannot be said in either."""

_SHORTEST = SECOND // 10  # an interval of nothing would be due without end


class Sequence(Protocol):
    """The due times of one entry."""

    @property
    def typical(self) -> int:
        """A usual distance of two slots; a wrong one costs time only."""
        ...

    @property
    def rhythm(self) -> Rhythm:
        """What others may be told of it."""
        ...

    def after(self, moment: int, *, anchor: int) -> int | None:
        """Return the first slot after a moment, of those that follow ``anchor``; None when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """An interval: its slots go on from the last one that fired, not from a grid in time."""

    interval: int

    @property
    def typical(self) -> int:
        """See `Sequence.typical`."""
        return max(self.interval, _SHORTEST)

    @property
    def rhythm(self) -> Rhythm:
        """See `Sequence.rhythm`."""
        return self.typical / SECOND

    def after(self, moment: int, *, anchor: int) -> int | None:
        """See `Sequence.after`."""
        passed = max(moment - anchor, 0) // self.typical
        return anchor + (passed + 1) * self.typical


@dataclass(frozen=True, slots=True)
class ByCrontab:
    """The minutes of a crontab."""

    crontab: Crontab

    @property
    def typical(self) -> int:
        """See `Sequence.typical`."""
        return 60 * SECOND

    @property
    def rhythm(self) -> Rhythm:
        """See `Sequence.rhythm`."""
        return self.crontab.text

    def after(self, moment: int, *, anchor: int) -> int | None:
        """See `Sequence.after`."""
        found = self.crontab.after(max(moment, anchor) // SECOND)
        return None if found is None else found * SECOND


@dataclass(frozen=True, slots=True)
class Once:
    """One moment."""

    moment: int

    @property
    def typical(self) -> int:
        """See `Sequence.typical`."""
        return 3600 * SECOND

    @property
    def rhythm(self) -> Rhythm:
        """See `Sequence.rhythm`."""
        return None

    def after(self, moment: int, *, anchor: int) -> int | None:
        """See `Sequence.after`."""
        return self.moment if self.moment > max(moment, anchor) else None


@dataclass(frozen=True, slots=True)
class Computed:
    """Whatever a function says comes next (the sun, a schedule of the project's own), in whole seconds."""

    following: Callable[[int], int | None]
    typical: int = 3600 * SECOND

    @property
    def rhythm(self) -> Rhythm:
        """See `Sequence.rhythm`."""
        return None

    def after(self, moment: int, *, anchor: int) -> int | None:
        """See `Sequence.after`. A function that does not move on ends the sequence."""
        start = max(moment, anchor)
        found = self.following(start)
        return found if found is not None and found > start else None


def latest(sequence: Sequence, *, first: int, until: int, anchor: int) -> int:
    """Return the last slot up to ``until``, given the first one that is; in about as many steps as the time has bits."""
    known, beyond = first, until
    while (following := sequence.after(known, anchor=anchor)) is not None and following <= until:
        known = following
        middle = (known + beyond) // 2
        found = sequence.after(middle, anchor=anchor)
        if found is not None and found <= until:
            known = found
        else:
            beyond = middle
    return known


def newest(sequence: Sequence, *, after: int, until: int, most: int, anchor: int) -> list[int]:
    """Return the slots after one moment and up to another, oldest first; when there are too many, the newest."""
    span = most * sequence.typical
    while True:
        start = max(after, until - span)
        found: deque[int] = deque(maxlen=most)
        slot = sequence.after(start, anchor=anchor)
        while slot is not None and slot <= until:
            found.append(slot)
            slot = sequence.after(slot, anchor=anchor)
        if len(found) == most or start <= after:
            return list(found)
        span *= 4
