"""What RabbitMQ's consumer_timeout is, as far as it is to be seen, against the time limits of the tasks."""

from __future__ import annotations

from celery import Celery
from kombu import Queue

from celery_reliable.worker.consumer_timeout import DEFAULT, longest_limit, timeout_of


def test_shortest_of_the_queues_counts() -> None:
    """In milliseconds on the queue, in seconds here."""
    long, short = ({"x-consumer-timeout": value} for value in (7_200_000, 600_000))
    assert timeout_of([Queue("a", queue_arguments=long), Queue("b", queue_arguments=short), Queue("c")]) == 600.0


def test_without_the_argument_the_default_is_presumed() -> None:
    """Neither configuration nor policy can be read over AMQP."""
    assert timeout_of([Queue("a"), Queue("b", queue_arguments={"x-max-priority": 9})]) == DEFAULT


def test_longest_limit_is_that_of_a_task_or_of_all() -> None:
    """A task's own wins over the general one."""

    def body() -> None: ...

    app = Celery("limits", broker="memory://", set_as_current=False)
    app.task(name="long", time_limit=7200, shared=False)(body)
    app.task(name="short", time_limit=5, shared=False)(body)
    assert longest_limit(app) == (7200, "long")
    app.conf.task_time_limit = 9000
    assert longest_limit(app)[0] == 9000
