"""Free at once what a dead worker held, when a worker starts in its place.

Without it, its claims end with their leases and its messages come back when they have been silent for as long. A worker
that finds a predecessor of its own node name, whose process is proven gone (`celery_reliable.worker.owners`), ends
those leases and gives those messages back to the near end of their queues. Who held what is told by the token of each
delivery, which begins with its owner's: on Redis every message that is out is marked with it; RabbitMQ has returned the
messages already, and the one that meets a predecessor's lease here ends it.

A message given back too early is harmless: its claim answers `Busy`, then `Done`. A lease ended too early is not: it
fences a holder that lives. Hence the proof.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_reliable import keys
from celery_reliable.errors import StoreError
from celery_reliable.keys import HEADER, TOKEN, owner_of
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.broker import RedisBroker, Silent, away
from celery_reliable.worker.owners import NodeName, Owner

if TYPE_CHECKING:
    from celery_reliable.stores.base import Job

_EACH = 1.0  # seconds between two tries while something is away
_AT_ONCE = 100


class Rescue(bootsteps.StartStopStep):
    """Enter this worker among the owners of its node name, and take over from those that are gone."""

    requires = ("celery.worker.consumer.tasks:Tasks", "celery_reliable.worker.holding:Holding")

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the consumer; a thread begins with its first connection and ends when its work is done."""
        super().__init__(parent, **kwargs)
        self._runtime = runtime_of(parent.app)
        self._owner = Owner.here(self._runtime.owner)
        self._consumer = parent
        self._background = Background(self._run, name="reliable-rescue")

    def start(self, parent: Any) -> None:
        """Begin, with the first connection."""
        self._background.begin()

    def shutdown(self, parent: Any) -> None:
        """End the thread, if it still waits for a store that is away."""
        self._background.end()

    def _run(self) -> None:
        pause = 0.0
        while not self._background.wait(pause):
            try:
                self._take_over(self._consumer)
                break
            except away():
                pause = _EACH

    def _take_over(self, consumer: Any) -> None:
        runtime = self._runtime
        name = NodeName(consumer.hostname, notes=runtime.store.notes)
        before = name.enter(self._owner)
        for owner in before.alive:
            runtime.events.emit("node_name_taken", node=consumer.hostname, pid=owner.pid)
        if before.gone:
            runtime.holding.expect_leases_of([one.token for one in before.gone])
            claims, messages = self._free(consumer, before.gone)
            name.leave([one.token for one in before.gone])
            pids = [one.pid for one in before.gone]
            runtime.events.emit("rescued", node=consumer.hostname, pids=pids, claims=claims, messages=messages)

    def _free(self, consumer: Any, gone: Sequence[Owner]) -> tuple[int, int]:
        """End the claims of messages that are out, and give these back. Return how many of both."""
        if consumer.connection.transport.driver_type != "redis":
            return 0, 0
        broker = RedisBroker(consumer.task_consumer.channel)
        try:
            owners = {one.token: one for one in gone}
            scores, claims, messages = broker.held_anywhere(), 0, 0
            marked = broker.marked(owners)
            while some := list(islice(marked, _AT_ONCE)):
                claims += sum(self._free_claim(held[0], owners) for _, held in some)
                messages += len(broker.restore([Silent(tag, scores[tag], held) for tag, held in some if tag in scores]))
            return claims, messages
        finally:
            broker.close()

    def _free_claim(self, message: dict[str, Any], owners: dict[str, Owner]) -> bool:
        headers, token = message.get("headers") or {}, str(message["properties"][TOKEN])
        nesting = int(headers.get("replaced_task_nesting") or 0)
        identity = keys.identity_of(headers.get(HEADER), task_id=str(headers.get("id")), nesting=nesting)
        if identity is None:
            return False  # sent from elsewhere: its job is known to its task only
        return free(self._runtime, identity.job, token=token, owner=owners[owner_of(token)])


def free(runtime: Runtime, job: Job, *, token: str, owner: Owner | None = None) -> bool:
    """End the lease of a claim whose worker is gone."""
    evidence = {"cause": "worker_gone", "pid": owner.pid if owner else None, "host": owner.host if owner else None}
    return runtime.store.free(job, token=token, evidence=json.dumps(evidence).encode(), keep=LIVE_RECORD_TTL)


def free_holder(runtime: Runtime, job: Job, *, gone: Collection[str]) -> bool:
    """End the lease of a job whose holder is one of the owners that are gone."""
    try:
        token = runtime.store.inspect(job).get("holder", "")
        return owner_of(token) in gone and free(runtime, job, token=token)
    except StoreError:
        return False  # the lease ends by itself
