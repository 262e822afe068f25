"""Know for how long RabbitMQ lets a message be out, and say which tasks run, or wait for their time, for longer.

RabbitMQ closes the channel of a consumer that has had a message for longer than ``consumer_timeout``, half an hour unless
it is set; the worker connects again, what ran goes on, and the copy that is delivered meanwhile waits for its outcome.
Nothing is lost or doubled, but everything this worker held is delivered again each time. What the server's
configuration or a policy says cannot be read over AMQP; the argument ``x-consumer-timeout`` of a queue can.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from celery import bootsteps
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_reliable.runtime import consumed_driver, runtime_of

ARGUMENT = "x-consumer-timeout"
DEFAULT = 1800.0
"""Seconds; RabbitMQ's own since 3.8.17."""


class ConsumerTimeout(bootsteps.StartStopStep):
    """Warn, when a worker starts on RabbitMQ, of the task whose time limit is the longest beyond the timeout."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Nothing is said yet."""
        super().__init__(parent, **kwargs)
        self._said = False

    def include_if(self, parent: Any) -> bool:
        """Take part on AMQP only."""
        return consumed_driver(parent.app) == "amqp"

    def start(self, parent: Any) -> None:
        """Compare, once."""
        if self._said:
            return
        self._said = True
        timeout = timeout_of(parent.task_consumer.queues)
        limit, task = longest_limit(parent.app)
        if limit > timeout:
            runtime_of(parent.app).events.emit("consumer_timeout", task=task, limit=limit, timeout=timeout)


class FarEtas:
    """Warn of messages that will wait in this worker for longer than the timeout; once for each task, on AMQP only."""

    def __init__(self, consumer: Any) -> None:
        """Take the consumer, whose queues may change."""
        self._consumer = consumer
        self._told: set[str] = set()

    def look(self, task: str, eta: str) -> None:
        """Compare the ETA of a message that was received just now."""
        consumer = self._consumer
        if task in self._told or consumer.connection.transport.driver_type != "amqp":
            return
        timeout = timeout_of(consumer.task_consumer.queues)
        moment = maybe_make_aware(maybe_iso8601(eta), timezone.utc)
        seconds = round((moment - datetime.now(timezone.utc)).total_seconds(), 1)
        if seconds > timeout:
            self._told.add(task)
            runtime_of(consumer.app).events.emit("consumer_timeout", task=task, limit=seconds, timeout=timeout)


def timeout_of(queues: Iterable[Any]) -> float:
    """Return the shortest timeout that these queues name, else RabbitMQ's default, in seconds."""
    named = [(queue.queue_arguments or {}).get(ARGUMENT) for queue in queues]
    return min((float(one) / 1000 for one in named if one), default=DEFAULT)


def longest_limit(app: Any) -> tuple[float, str]:
    """Return the longest hard time limit and the task that has it; 0 and "" without one."""
    general = app.conf.task_time_limit
    limits = [(float(task.time_limit or general or 0), name) for name, task in app.tasks.items()]
    return max(limits, default=(0.0, ""))
