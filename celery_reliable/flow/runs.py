"""Keep how the last runs of this worker went: how long they took, and how many failed."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from celery_reliable.flow.window import Pair

_KEPT: Final = 50  # runs of one task from one queue
_MOST_KNOWN: Final = 100  # tasks by queue
_MINUTE: Final = 60.0
_APART: Final = 1.0  # seconds between two counts that are kept
_MOST_PLACES: Final = 10_000

Runtimes = dict[str, dict[str, tuple[int, float, float]]]
"""By queue and task: how many of the last runs are known, their median and the longest, in seconds."""


class Runs:
    """The last runs of a process. Safe for threads; bounded, whatever tasks are called."""

    __slots__ = ("_counts", "_kept", "_lock", "_samples", "_totals", "places")

    def __init__(self) -> None:
        """Begin with none; failures are not counted until `count` is called."""
        self._lock = threading.Lock()
        self._samples: dict[tuple[str, str], deque[float]] = {}
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, list[int]] = {}
        self._kept: deque[tuple[float, dict[str, Pair]]] = deque([(float("-inf"), {})])
        self.places: dict[Any, str] = {}
        """Queues by what a message says of where it came from."""

    def learn(self, place: Any, queue: str) -> str:
        """Keep from which queue messages of a place come, and return it."""
        if len(self.places) >= _MOST_PLACES:
            self.places.clear()
        self.places[place] = queue
        return queue

    def count(self, queues: Iterable[str]) -> None:
        """Count, from now on, how the runs of these queues end."""
        with self._lock:
            self._counts = {queue: [0, 0] for queue in queues}

    def note(self, queue: str, task: str, *, seconds: float | None, failed: bool) -> None:
        """Take one run; ``seconds`` None: it did not end by itself."""
        with self._lock:
            counts = self._counts.get(queue)
            if counts is not None:
                counts[failed] += 1
            total = self._totals.get(queue)
            if total is None and len(self._totals) < _MOST_KNOWN:
                total = self._totals[queue] = [0, 0]
            if total is not None:
                total[failed] += 1
            sample = self._samples.get((queue, task))
            if sample is None:
                if len(self._samples) >= _MOST_KNOWN:
                    return
                sample = self._samples[queue, task] = deque(maxlen=_KEPT)
            if seconds is not None:
                sample.append(seconds)

    def ended(self) -> dict[str, Pair]:
        """Return how many runs of each counted queue ended (well, failed) since the last call."""
        with self._lock:
            found = {queue: (well, failed) for queue, (well, failed) in self._counts.items()}
            for counts in self._counts.values():
                counts[:] = 0, 0
            return found

    def lately(self, *, now: float) -> dict[str, Pair]:
        """Return how many runs of each queue ended (well, failed) in the last minute; ``now`` is monotonic."""
        with self._lock:
            totals = {queue: (well, failed) for queue, (well, failed) in self._totals.items()}
        kept = self._kept
        while len(kept) > 1 and kept[1][0] <= now - _MINUTE:
            kept.popleft()
        before = kept[0][1]
        if now - kept[-1][0] >= _APART:
            kept.append((now, totals))
        return {
            queue: _since(before.get(queue, (0, 0)), one) for queue, one in totals.items() if one != before.get(queue)
        }

    def runtimes(self) -> Runtimes:
        """Return how long runs take."""
        with self._lock:
            samples = {place: list(sample) for place, sample in self._samples.items() if sample}
        found: Runtimes = {}
        for (queue, task), sample in samples.items():
            told = len(sample), round(statistics.median(sample), 3), round(max(sample), 3)
            found.setdefault(queue, {})[task] = told
        return found


def _since(before: Pair, now: Pair) -> Pair:
    return now[0] - before[0], now[1] - before[1]
