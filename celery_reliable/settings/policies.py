"""Name what a project may say of each dependency and each queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery_reliable.settings.rules import Column, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens, and how it closes again. Durations in seconds.

    It opens after ``failures`` in a row, or when ``ratio`` of at least twice as many calls within ``window`` failed. It
    stays open for ``open_for``; then ``probes`` at a time pass, and it closes when as many have succeeded.
    """

    failures: int = 5
    ratio: float = 0.5
    window: float = 60.0
    open_for: float = 30.0
    probes: int = 3

    @property
    def least_calls(self) -> int:
        """How many calls within the window say anything about a ratio."""
        return 2 * self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """How much may wait in a queue before submissions are held up. Durations in seconds.

    ``depth``: so many messages; ``age``: the oldest was submitted so long ago; None: no limit. ``wait`` is for how long a
    submission is held up at most, where ``mode`` does that.
    """

    depth: int | None = None
    age: float | None = None
    mode: str = "raise"
    wait: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FairQueue:
    """How a queue is spread over lanes: so many that keys share, and so many more for each key that has a weight."""

    lanes: int = 16
    weights: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSwitch:
    """When a queue is stopped, and for how long. Durations in seconds.

    It is stopped when ``failure_ratio`` of at least ``minimum`` runs within ``window`` failed, for ``pause``. Then one worker
    tries it; a quarter of ``minimum``, or another ``pause``, decides.
    """

    failure_ratio: float = 0.5
    window: float = 60.0
    minimum: int = 20
    pause: float = 60.0

    @property
    def trial_runs(self) -> int:
        """How many runs decide whether a queue that was stopped is well again."""
        return max(self.minimum // 4, 1)


QUEUE_MODES: Final = ("raise", "block", "shed", "slow")


def _whole(least: int, most: int) -> Column:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and is_number(value, at_least=least) and value <= most

    return Column(f"a whole number from {least} to {most}", accepts)


def _seconds(least: float, most: float) -> Column:
    expected = f"a number of seconds from {least:.12g} to {most:.12g}"
    return Column(expected, lambda value: is_number(value, at_least=least) and value <= most)


def _weights(most: int, in_all: int) -> Column:
    """Accept whole numbers for keys. Each is a queue, which every worker of the queue consumes."""

    def accepts(value: Any) -> bool:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
            return False
        weights = value.values()
        return all(one.accepts(weight) for weight in weights) and sum(weights) <= in_all

    one = _whole(1, most)
    return Column(f"a dict that gives fairness keys whole numbers from 1 to {most}, {in_all} in all", accepts)


_DAY: Final = 86_400
_RATIO: Final = Column("a number above 0 and at most 1", lambda value: is_number(value, at_least=0) and 0 < value <= 1)

BREAKER_COLUMNS: Final[Mapping[str, Column]] = {
    "failures": _whole(1, 1000),
    "ratio": _RATIO,
    "window": _seconds(1, _DAY),
    "open_for": _seconds(1, _DAY),
    "probes": _whole(1, 100),
}

QUEUE_COLUMNS: Final[Mapping[str, Column]] = {
    "depth": _whole(1, 1_000_000_000),
    "age": _seconds(1, 30 * _DAY),
    "mode": Column(" or ".join(map(repr, QUEUE_MODES)), lambda value: value in QUEUE_MODES),
    "wait": _seconds(0, 3600),
}

FAIR_COLUMNS: Final[Mapping[str, Column]] = {"lanes": _whole(2, 64), "weights": _weights(16, 64)}

KILL_COLUMNS: Final[Mapping[str, Column]] = {
    "failure_ratio": _RATIO,
    "window": _seconds(1, _DAY),
    "minimum": _whole(1, 1_000_000),
    "pause": _seconds(1, _DAY),
}
