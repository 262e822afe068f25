"""Consume the lanes of this worker's queues, and take turns over them."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.flow.lanes import Lanes
from celery_reliable.flow.turns import Turns
from celery_reliable.runtime import consumed_driver, runtime_of


class TakingTurns(bootsteps.StartStopStep):
    """On Redis this worker chooses the order itself; RabbitMQ gives each queue that has messages its turn.

    There only if a queue has lanes, or lower priorities have their share.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Take part where there is anything to take turns over."""
        settings = runtime_of(parent.app).settings
        return bool(settings.fair_queues) or settings.low_priority_every is not None

    def create(self, parent: Any) -> None:
        """Take the lanes of what the worker was told to consume, before it begins to."""
        runtime = runtime_of(parent.app)
        lanes = runtime.lanes or Lanes({})
        internals.consume_also(parent.app, lanes.of)
        self._turns = Turns(queue_of=lanes.queue_of, every=runtime.settings.low_priority_every)

    def start(self, parent: Any) -> None:
        """Order each connection's channel; whose turn it is is remembered."""
        if consumed_driver(parent.app) == "redis":
            internals.take_turns(parent.task_consumer.channel, self._turns)
