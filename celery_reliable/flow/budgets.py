"""Keep retries to a share of first attempts in the whole fleet: what is beyond it is postponed, not dropped.

What is kept small are retries in vain: one that ends well is given back, so that nothing holds up the rest once a dependency
is well again, whatever new work there is.

One note for each dependency, or task without one, counts both over the last minute. A process counts first attempts for
itself, and tells them once a second at most, or when it asks for a retry.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_reliable.errors import StoreError
from celery_reliable.flow.chance import Random
from celery_reliable.flow.window import Window
from celery_reliable.stores.notes import Notes, Write

SHELF = "budgets"
FLOOR = 10
"""Retries a minute that are always granted: a share of next to nothing would be nothing."""

POSTPONED = (10.0, 60.0)
"""Seconds between which the time to the next question is drawn."""

_MINUTE = 60_000_000
_TELL_EACH = 1.0
_TTL = 180.0
_TRIES = 20


@dataclass(slots=True)
class _Mine:
    """What this process has not told yet."""

    firsts: int = 0
    told_at: float = float("-inf")


def grants(spent: Window, *, share: float, now: int) -> bool:
    """Tell whether one retry more is within the budget of the last minute. Ask a window that is `at` that time."""
    firsts, retries = spent.counts(now, length=_MINUTE)
    return retries + 1 <= FLOOR + share * firsts


class Budgets:
    """The budgets kept in one store, for one process. Safe for threads."""

    __slots__ = ("_clock", "_lock", "_mine", "_notes", "_now", "_random")

    def __init__(
        self,
        notes: Notes,
        *,
        now: Callable[[], int],
        random: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the notes, the server's clock, and the clock of this process."""
        self._notes, self._now, self._random, self._clock = notes, now, random, clock
        self._mine: dict[str, _Mine] = {}
        self._lock = threading.Lock()

    def first(self, name: str) -> None:
        """Count a first attempt. Never raises: one that cannot be told now is told later."""
        with self._lock:
            mine = self._mine.setdefault(name, _Mine())
            mine.firsts += 1
            if self._clock() - mine.told_at < _TELL_EACH:
                return
            mine.told_at = self._clock()
        try:
            self._change(name, lambda spent, _: spent)
        except StoreError:
            return

    def retry(self, name: str, *, share: float) -> float:
        """Ask for a retry: 0 when it is granted, else the seconds for which it is postponed. Raises what the store raises."""

        def spend(spent: Window, now: int) -> Window | None:
            return spent.plus(0, 1) if grants(spent, share=share, now=now) else None

        return 0.0 if self._change(name, spend) else self._random.uniform(*POSTPONED)

    def give_back(self, name: str) -> None:
        """Give a retry back that ended well. Never raises: what is not given back ends with its minute."""
        try:
            self._change(name, lambda spent, _: _given_back(spent))
        except StoreError:
            return

    def _change(self, name: str, step: Callable[[Window, int], Window | None]) -> bool:
        """Tell what was not told, and take a step; False when it was None, or too many write at once."""
        firsts = self._taken(name)
        try:
            for _ in range(_TRIES):
                note = self._notes.read(SHELF, [name]).get(name)
                now = self._now()
                before = (_window(note.value) if note else Window()).at(now, length=_MINUTE).plus(firsts, 0)
                after = step(before, now)
                if after is None and not firsts:
                    return False
                value, expected = _bytes(after or before), note.version if note else 0
                if self._notes.write(SHELF, [Write(name=name, value=value, ttl=_TTL, expected=expected)]) != [None]:
                    firsts = 0
                    return after is not None
            return False
        finally:
            with self._lock:
                self._mine[name].firsts += firsts

    def _taken(self, name: str) -> int:
        with self._lock:
            mine = self._mine.setdefault(name, _Mine())
            firsts, mine.firsts = mine.firsts, 0
            return firsts


def _given_back(spent: Window) -> Window:
    """Return a window with one retry less, in the stretch that has one."""
    if spent.now[1]:
        return spent.plus(0, -1)
    return replace(spent, before=(spent.before[0], max(spent.before[1] - 1, 0)))


def _window(raw: bytes) -> Window:
    begins, now, before = json.loads(raw)
    return Window(begins, (now[0], now[1]), (before[0], before[1]))


def _bytes(window: Window) -> bytes:
    return json.dumps([window.begins, window.now, window.before], separators=(",", ":")).encode()
