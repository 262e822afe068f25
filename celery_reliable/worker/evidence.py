"""Decide what a worker may say of itself, by what was seen of its loop, its broker, its store and its queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_RECONNECT = 60.0  # seconds: Celery's pauses between two attempts to connect grow to thirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen since the last look. ``stuck``: see `StuckWatch`."""

    draining: bool
    broker: bool
    store: bool
    stuck: bool
    running: int
    slots: int
    received: int


def state_of(seen: Evidence) -> str:
    """Name the state, the gravest first; what it means for probes stands in `celery_reliable.probe`."""
    if seen.draining:
        return "draining"
    if not seen.broker:
        return "broker_down"
    if not seen.store:
        return "store_down"
    if seen.stuck:
        return "stuck"
    if seen.running >= seen.slots > 0:
        return "busy"
    return "consuming" if seen.running or seen.received else "idle"


class LoopWatch:
    """Tell whether the consumer's loop turns, or has an excuse for standing still.

    Excuses are a broker that does not answer, a task that runs in the loop's own thread, a drain: they end with their
    cause, and from then on the loop has a moment to turn again. Without a connection that moment is a minute: Celery
    sleeps between two attempts.
    """

    def __init__(self, *, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take how long a connected loop may stand still."""
        self._patience = patience
        self._clock = clock
        self._turned = self._excused = float("-inf")

    def turn(self) -> None:
        """Note a turn. Called from the loop, often."""
        self._turned = self._clock()

    def excuse(self) -> None:
        """Note that the loop has an excuse now."""
        self._excused = self._clock()

    def still_for(self) -> float:
        """Return the seconds since its last turn; infinite before the first."""
        return self._clock() - self._turned

    def lives(self, *, connected: bool) -> bool:
        """Tell whether it turned, or was excused, lately."""
        silent = self._clock() - max(self._turned, self._excused)
        return silent <= (self._patience if connected else max(self._patience, _RECONNECT))


class StuckWatch:
    """Tell a worker that consumes nothing: messages wait in its queues, it has room for them, and none came.

    That must have been so for ``after`` seconds, at every look.
    """

    def __init__(self, *, after: float) -> None:
        """Begin with nothing seen."""
        self._after = after
        self._since: float | None = None

    def look(self, *, now: float, waiting: int, room: bool, received: int) -> bool:
        """Take in one look."""
        if not waiting or not room or received:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._after
