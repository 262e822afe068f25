"""RabbitMQ closes the channel of a task that runs longer than ``consumer_timeout``: it runs once all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer, Server
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

DEADLINE = 40.0


@pytest.fixture
def impatient() -> Iterator[Server]:
    """A RabbitMQ that lets a message be out for two seconds, and looks each second."""
    with servers.start_rabbitmq(environment={"consumer_timeout": 2000, "channel_tick_interval": 1000}) as server:
        yield server


def test_task_outlives_its_channel(
    impatient: Server, redis_server: RedisServer, workers: Workers, tmp_path: Path, label: str
) -> None:
    """The worker connects again; the copy that comes meanwhile waits for the outcome; other tasks run, one with an ETA, too.

    Its longest time limit, half a minute more than the timeout that it has to presume, is told at the start.
    """
    redis_server.flush()
    redis = Stage.on(redis_server.url, directory=tmp_path)
    conf = {"task_time_limit": 1830}
    stage = Stage(tmp_path, broker=impatient.url, backend=redis.backend, store=redis.store, conf=conf)
    worker = workers.start("tests.integration.apps.worker", concurrency=2, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        later = app.tasks["add"].apply_async((1, f"{label}:later"), countdown=5)
        job = app.tasks["held"].delay(label, "gate")
        stage.wait_event("busy", job.id, timeout=DEADLINE)
        assert app.tasks["add"].delay(1, f"{label}:other").get(timeout=DEADLINE) == 2
        stage.open("gate")

        assert (job.get(timeout=DEADLINE), later.get(timeout=DEADLINE)) == (None, 2)
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            wait_until(lambda: channel.queue_declare("celery", passive=True).message_count == 0, DEADLINE, "no message")
    assert "PRECONDITION_FAILED" in worker.logs()
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert len(stage.entries(f"{label}:other")) == len(stage.entries(f"{label}:later")) == 1
    (warned,) = stage.events("consumer_timeout")
    assert (warned["limit"], warned["timeout"]) == (1830, 1800)
