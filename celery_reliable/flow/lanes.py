"""Spread what waits in a queue over lanes, queues of their own, so that who floods it fills one of them.

Which lane a submission takes follows from its fairness key alone: nothing is counted, stored or asked. Keys with a weight have
lanes that nobody else uses, all others share some lanes by a hash. Workers take turns over the lanes (see `turns`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from celery_reliable.settings.policies import FairQueue


def lane_name(queue: str, number: int) -> str:
    """Return the name of one lane, from 1."""
    return f"{queue}.lane.{number}"


def lane_names(queue: str, policy: FairQueue) -> list[str]:
    """Return all lanes of a queue: those that are shared, then those of keys with a weight."""
    return [lane_name(queue, number + 1) for number in range(policy.lanes + sum(policy.weights.values()))]


def lane_of(queue: str, policy: FairQueue, *, key: str, task_id: str) -> str:
    """Return the lane of a submission; of the lanes that a key has for itself its task id chooses one."""
    weight = policy.weights.get(key)
    if weight is None:
        return lane_name(queue, _drawn(key, policy.lanes) + 1)
    before = policy.lanes + sum(other for name, other in policy.weights.items() if name < key)
    return lane_name(queue, before + _drawn(task_id, weight) + 1)


def _drawn(text: str, most: int) -> int:
    """Return a number below ``most``, the same for a text in every process."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % most


class Lanes:
    """The lanes of an app's queues."""

    __slots__ = ("_policies", "_queue_of")

    def __init__(self, policies: Mapping[str, FairQueue]) -> None:
        """Take what the project says of each queue that has lanes."""
        self._policies = policies
        self._queue_of = {lane: queue for queue in policies for lane in self.of(queue)}

    def of(self, queue: str) -> list[str]:
        """Return the lanes of a queue, none for one that has none."""
        policy = self._policies.get(queue)
        return [] if policy is None else lane_names(queue, policy)

    def queue_of(self, name: str) -> str:
        """Return the queue to which a lane belongs; any other queue is its own."""
        return self._queue_of.get(name, name)

    def chosen(self, queue: str, *, key: str, task_id: str) -> str:
        """Return where a submission to a queue goes."""
        return lane_of(queue, self._policies[queue], key=key, task_id=task_id)

    def expanded(self, queues: Iterable[str]) -> list[str]:
        """Return queues, each followed by its lanes."""
        return [name for queue in queues for name in (queue, *self.of(queue))]

    def __contains__(self, queue: str) -> bool:
        """Tell whether a queue has lanes."""
        return queue in self._policies
