"""Spread what waits in a queue over lanes, queues of their own, so that who floods it fills few of them.

Which lane a submission takes follows from its fairness key: nothing is stored or asked. Keys with a weight have lanes that nobody
else uses, all others share some lanes by a hash. What a process submits for a key beyond an allowance goes into lanes for floods, so
that those who share a lane with a flood do not wait for all of it. Workers take turns over all lanes (see `turns`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from celery_reliable.settings.policies import FairQueue

FLOOD_LANES: Final = 4
ALLOWED: Final = 20
"""Submissions of one key by one process, at once or in a minute, that go into the lane of the key."""

_MINUTE: Final = 60.0
_MOST_KEYS: Final = 10_000  # of which a process knows what they have left


def lane_name(queue: str, number: int) -> str:
    """Return the name of one lane, from 1."""
    return f"{queue}.lane.{number}"


def lane_names(queue: str, policy: FairQueue) -> list[str]:
    """Return all lanes of a queue: those that are shared, those of keys with a weight, those for floods."""
    number = policy.lanes + sum(policy.weights.values())
    floods = [f"{queue}.flood.{one + 1}" for one in range(FLOOD_LANES)]
    return [*(lane_name(queue, one + 1) for one in range(number)), *floods]


def lane_of(queue: str, policy: FairQueue, *, key: str, task_id: str) -> str:
    """Return the lane of a key; of the lanes that it has for itself the task id chooses one."""
    weight = policy.weights.get(key)
    if weight is None:
        return lane_name(queue, _drawn(key, policy.lanes) + 1)
    before = policy.lanes + sum(other for name, other in policy.weights.items() if name < key)
    return lane_name(queue, before + _drawn(task_id, weight) + 1)


def flood_lane_of(queue: str, *, key: str) -> str:
    """Return where submissions of a key go that are too many for its lane."""
    return f"{queue}.flood.{_drawn(key, FLOOD_LANES) + 1}"


def _drawn(text: str, most: int) -> int:
    """Return a number below ``most``, the same for a text in every process."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % most


class Lanes:
    """The lanes of an app's queues, for one process. Safe for threads."""

    __slots__ = ("_clock", "_left", "_lock", "_policies", "_queue_of")

    def __init__(self, policies: Mapping[str, FairQueue], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take what the project says of each queue that has lanes."""
        self._policies, self._clock = policies, clock
        self._queue_of = {lane: queue for queue in policies for lane in self.of(queue)}
        self._left: dict[tuple[str, str], tuple[float, float]] = {}
        self._lock = threading.Lock()

    def of(self, queue: str) -> list[str]:
        """Return the lanes of a queue, none for one that has none."""
        policy = self._policies.get(queue)
        return [] if policy is None else lane_names(queue, policy)

    def queue_of(self, name: str) -> str:
        """Return the queue to which a lane belongs; any other queue is its own."""
        return self._queue_of.get(name, name)

    def expanded(self, queues: Iterable[str]) -> list[str]:
        """Return queues, each followed by its lanes."""
        return [name for queue in queues for name in (queue, *self.of(queue))]

    def __contains__(self, queue: str) -> bool:
        """Tell whether a queue has lanes."""
        return queue in self._policies

    def chosen(self, queue: str, *, key: str, task_id: str) -> str:
        """Return where a submission to a queue goes, and count it."""
        policy = self._policies[queue]
        if key not in policy.weights and not self._is_allowed(queue, key):
            return flood_lane_of(queue, key=key)
        return lane_of(queue, policy, key=key, task_id=task_id)

    def _is_allowed(self, queue: str, key: str) -> bool:
        """Take one of what a key has left, which fills up again within a minute."""
        now = self._clock()
        with self._lock:
            left, since = self._left.pop((queue, key), (float(ALLOWED), now))
            left = min(left + (now - since) * ALLOWED / _MINUTE, ALLOWED)
            self._left[queue, key] = (left - 1 if left >= 1 else left), now
            if len(self._left) > _MOST_KEYS:
                del self._left[next(iter(self._left))]
        return left >= 1
