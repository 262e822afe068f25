"""Hold submissions up when too much waits in their queue: refuse, block, shed or slow down.

What waits is looked at once a second at most, and what this process has sent since is added to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from celery_reliable.errors import QueueFull
from celery_reliable.settings.policies import QueueLimit

CACHED = 1.0
"""Seconds for which a process believes what it has seen of a queue."""

HEADROOM = 2.0
"""How many times its limit a queue may hold of what has room of its own: beat's slots, and in ``shed`` what is not shed."""

_BLOCKED_EACH = 0.25  # seconds between two looks of a submission that waits
_SOONEST, _LATEST = 1.0, 300.0  # seconds, between which a caller is told to come back
_UNKNOWN = 5.0


class Load(Protocol):
    """What waits in a queue; see `sight.Load`."""

    @property
    def depth(self) -> int:
        """How many messages."""
        ...

    @property
    def oldest(self) -> int:
        """The submit stamp of the oldest in microseconds, 0 if it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in a queue now: how many messages, and how many seconds ago the oldest was submitted (None: not known)."""

    depth: int
    age: float | None = None


@dataclass(slots=True)
class _Seen:
    depth: int = 0
    oldest: int = 0
    looked_at: float = float("-inf")
    sent: int = 0


def excess(waiting: Waiting, limit: QueueLimit) -> float:
    """Return how many times its limit a queue holds: 1.0 or more is full."""
    by_depth = waiting.depth / limit.depth if limit.depth else 0.0
    by_age = (waiting.age or 0.0) / limit.age if limit.age else 0.0
    return max(by_depth, by_age)


def retry_after(waiting: Waiting, limit: QueueLimit) -> float:
    """Return in how many seconds there may be room, at the pace at which the oldest message came to its age."""
    if waiting.age is None or not waiting.depth:
        return _UNKNOWN
    above = max(waiting.depth - (limit.depth or waiting.depth), 0) / waiting.depth * waiting.age
    too_old = waiting.age - limit.age if limit.age else 0.0
    return min(max(above, too_old, _SOONEST), _LATEST)


class Admission:
    """The queues of one app that have limits, as one process sees them. Safe for threads."""

    __slots__ = ("_clock", "_emit", "_limits", "_lock", "_look", "_now", "_seen", "_sleep")

    def __init__(
        self,
        limits: Mapping[str, QueueLimit],
        *,
        look: Callable[[str], Load | None],
        now: Callable[[], int],
        emit: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take what looks at a queue (None: the broker does not answer) and the server's clock."""
        self._limits, self._look, self._now, self._emit = limits, look, now, emit
        self._clock, self._sleep = clock, sleep
        self._seen = {name: _Seen() for name in limits}
        self._lock = threading.Lock()

    def ask(self, queue: str, *, may_shed: bool = False, headroom: bool = False) -> Waiting | None:
        """Return when one more may be sent: None, or what waits in the queue if it is to be shed instead.

        Raises `QueueFull`. A broker that does not answer refuses by itself, or does not: it is not asked here.
        """
        limit = self._limits.get(queue)
        if limit is None:
            return None
        waiting, room = self._waiting(queue), HEADROOM if headroom or limit.mode == "shed" else 1.0
        if limit.mode == "slow":
            self._slow_down(excess(waiting, limit), limit)
        elif limit.mode == "shed" and may_shed and excess(waiting, limit) >= 1.0:
            return waiting
        elif excess(waiting, limit) >= room:
            self._refuse_or_block(queue, waiting, limit, room=room)
        with self._lock:
            self._seen[queue].sent += 1
        return None

    def _slow_down(self, full: float, limit: QueueLimit) -> None:
        """Hold a submission up the longer the fuller the queue is; it is sent all the same."""
        if full >= 1.0:
            self._sleep(min(full - 1.0, 1.0) * limit.wait)

    def _refuse_or_block(self, queue: str, waiting: Waiting, limit: QueueLimit, *, room: float) -> None:
        ends = self._clock() + (limit.wait if limit.mode == "block" else 0.0)
        while excess(waiting, limit) >= room:
            left = ends - self._clock()
            if left <= 0:
                raise self._full(queue, waiting, limit)
            self._sleep(min(left, _BLOCKED_EACH))
            waiting = self._waiting(queue)

    def _full(self, queue: str, waiting: Waiting, limit: QueueLimit) -> QueueFull:
        seconds = retry_after(waiting, limit)
        self._emit("queue_full", queue=queue, depth=waiting.depth, age=waiting.age, retry_after=seconds)
        old = "" if waiting.age is None else f", the oldest for {waiting.age:.0f} s"
        msg = (
            f"queue {queue!r} is full, nothing was submitted: {waiting.depth} messages wait{old} "
            f"(reliable_queue_limits: depth {limit.depth}, age {limit.age}); try again in {seconds:.0f} s"
        )
        return QueueFull(msg, queue=queue, depth=waiting.depth, age=waiting.age, retry_after=seconds)

    def _waiting(self, queue: str) -> Waiting:
        seen = self._seen[queue]
        with self._lock:
            is_due = self._clock() - seen.looked_at >= CACHED
            if is_due:
                seen.looked_at = self._clock()  # before the look: the other threads go on with what is known
        if is_due:
            self._see(queue, seen)
        age = max(self._now() - seen.oldest, 0) / 1e6 if seen.oldest else None
        return Waiting(seen.depth + seen.sent, age)

    def _see(self, queue: str, seen: _Seen) -> None:
        load = self._look(queue)
        with self._lock:
            seen.sent = 0
            seen.depth, seen.oldest = (0, 0) if load is None else (load.depth, load.oldest)
