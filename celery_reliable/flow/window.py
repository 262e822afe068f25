"""Count what happened lately, in a few numbers that processes can share."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]

SKEW = 1_000_000
"""Microseconds by which what two processes know of the server's clock may differ."""


@dataclass(frozen=True, slots=True)
class Window:
    """Two counts over a sliding time, kept as those of the present stretch of that length and of the one before.

    What was counted in the stretch before counts with the share of it that the sliding time still covers. ``begins`` is in
    microseconds of the server's clock; one that went back by more than `SKEW` begins a new window rather than an endless one.
    """

    begins: int = 0
    now: Pair = (0, 0)
    before: Pair = (0, 0)

    def at(self, now: int, *, length: int) -> Window:
        """Return the window as it is at a time."""
        passed = now - self.begins
        if -SKEW <= passed < length:
            return self
        if length <= passed < 2 * length:
            return Window(self.begins + length, (0, 0), self.now)
        return Window(now)

    def plus(self, first: int, second: int) -> Window:
        """Return the window with more counted in its present stretch."""
        return Window(self.begins, (self.now[0] + first, self.now[1] + second), self.before)

    def counts(self, now: int, *, length: int) -> tuple[float, float]:
        """Return both counts of the last ``length`` microseconds. Ask a window that is `at` that time."""
        share = min(max(0.0, 1 - (now - self.begins) / length), 1.0)
        return self.now[0] + self.before[0] * share, self.now[1] + self.before[1] * share
