"""Tell on RabbitMQ, which shows no message, how old what waits in a queue may be (see `flow.ages`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.flow.ages import Ages
from celery_reliable.flow.lanes import Lanes
from celery_reliable.keys import HEADER
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.sight import Sight, sight_for
from celery_reliable.worker.background import Background

_EACH = 1.0  # seconds between two looks


class TellingAges(bootsteps.StartStopStep):
    """Note what this worker receives, and look each second which of its queues are empty: one thread, one connection.

    There only on AMQP, and only if a queue has a limit on age.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Take part where a broker does not show what producers have to know."""
        limits = runtime_of(parent.app).settings.queue_limits or {}
        return any(limit.age is not None for limit in limits.values()) and consumed_driver(parent.app) == "amqp"

    def create(self, parent: Any) -> None:
        """Hang the watch into the consumer; nothing connects yet."""
        self._consumer, self._runtime = parent, runtime_of(parent.app)
        limits, lanes = self._runtime.settings.queue_limits or {}, self._runtime.lanes or Lanes({})
        consumed = [queue for queue in parent.app.amqp.queues.consume_from if queue in limits]
        aged = lanes.expanded(queue for queue in consumed if limits[queue].age is not None)
        self._ages = Ages(self._runtime.store.notes, aged, now=self._runtime.store.now)
        self._background = Background(self._run, name="reliable-ages")
        self._sight: Sight | None = None
        parent.create_task_handler = _seeing(parent.create_task_handler, see=self._see)

    def start(self, parent: Any) -> None:
        """Look by the address of the present connection."""
        self._sight = sight_for(parent)
        self._background.begin()

    def shutdown(self, parent: Any) -> None:
        """End the thread; what was told stays true."""
        self._background.end()

    def _see(self, message: Any) -> None:
        headers = message.headers if isinstance(message.headers, dict) else {}
        if headers.get("eta"):  # it waited on purpose, and then says nothing of the queue
            return
        ours = headers.get(HEADER)
        stamp = ours.get("s") if isinstance(ours, dict) else 0
        queue = internals.queue_of(message, self._consumer.task_consumer)
        self._ages.received(queue, stamp if isinstance(stamp, int) else 0)

    def _run(self) -> None:
        used: Sight | None = None
        while not self._background.wait(_EACH):
            if used is not self._sight:
                if used is not None:
                    used.close()
                used = self._sight
            try:
                self._look(used)
                self._ages.tell()
            except StoreError:
                continue  # the lease keeper says so
        if used is not None:
            used.close()

    def _look(self, sight: Sight | None) -> None:
        for queue in self._ages.queues:
            at = self._runtime.store.now()
            if sight is not None and sight.look([queue]) == 0:
                self._ages.empty(queue, at=at)


def _seeing(make: Callable[..., Any], *, see: Callable[[Any], None]) -> Callable[..., Any]:
    """Wrap what makes the handler of messages, so that each is seen before it is handled."""

    def make_seeing(*args: Any, **kwargs: Any) -> Any:
        handle = make(*args, **kwargs)

        def handle_seen(message: Any) -> Any:
            see(message)
            return handle(message)

        return handle_seen

    return make_seeing
