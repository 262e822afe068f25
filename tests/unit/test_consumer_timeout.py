"""What RabbitMQ's consumer_timeout is, as far as it is to be seen, against the time limits of the tasks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Queue

from celery_reliable.worker.consumer_timeout import DEFAULT, FarEtas, longest_limit, timeout_of
from tests.unit.test_task import make_app

if TYPE_CHECKING:
    from collections.abc import Mapping


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


@pytest.mark.parametrize(("driver", "told"), [("amqp", ["far"]), ("redis", [])])
def test_a_message_whose_time_is_beyond_the_timeout_is_told_once_a_task(driver: str, told: list[str]) -> None:
    """A naive time is UTC, as Celery takes it."""
    found: list[tuple[str, float]] = []

    def hook(event: str, fields: Mapping[str, Any]) -> None:
        if event == "consumer_timeout":
            found.append((fields["task"], fields["limit"] - fields["timeout"]))

    queues = [Queue("a", queue_arguments={"x-consumer-timeout": 60_000})]
    consumer = SimpleNamespace(
        app=make_app(reliable_event_hooks=(hook,)),
        connection=SimpleNamespace(transport=SimpleNamespace(driver_type=driver)),
        task_consumer=SimpleNamespace(queues=queues),
    )
    etas, now = FarEtas(consumer), datetime.now(timezone.utc)
    etas.look("near", (now + timedelta(seconds=50)).isoformat())
    for _ in range(2):
        etas.look("far", (now + timedelta(seconds=160)).replace(tzinfo=None).isoformat())
    assert [task for task, _ in found] == told
    assert all(99 < beyond <= 100 for _, beyond in found)
