"""A RabbitMQ that is killed and comes back, with the files it had, makes no worker forget what it has seen."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from celery_reliable import Permanent
from celery_reliable.testing import servers
from celery_reliable.testing.processes import send
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import Server
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

DEADLINE = 60.0


@pytest.fixture
def private_rabbitmq() -> Iterator[Server]:
    """A RabbitMQ of this test alone."""
    with servers.start_rabbitmq() as server:
        yield server


def test_deaths_before_and_after_a_restart_add_up(
    private_rabbitmq: Server, redis_url: str, workers: Workers, tmp_path: Path, label: str
) -> None:
    """Killed before, killed after: poison at the second death, whatever the broker counts. What runs on runs once.

    The broker delivers all three messages anew; the one with an ETA waits in the worker again.
    """
    redis, steady = Stage.on(redis_url, directory=tmp_path), f"{label}:steady"
    conf = {"reliable_max_deliveries": 2}
    stage = Stage(tmp_path, broker=private_rabbitmq.url, backend=redis.backend, store=redis.store, conf=conf)
    worker = workers.start("tests.integration.apps.worker", concurrency=2, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        waiting = app.tasks["add"].apply_async((1, f"{label}:waiting"), countdown=5)
        running = app.tasks["held"].apply_async((steady, "gate", "kept"), task_id=steady)
        dying = app.tasks["held"].apply_async((label, "gate"), task_id=label)
        (first,) = stage.wait_entries(label, 1)
        send(first["pid"], signal.SIGKILL)
        _, second = stage.wait_entries(label, 2)
        private_rabbitmq.kill()
        private_rabbitmq.start()
        wait_until(lambda: worker.logs().count("Connected to amqp") == 2, DEADLINE, "connected again")
        send(second["pid"], signal.SIGKILL)

        with pytest.raises(Permanent, match="claimed 2 times without a verdict"):
            dying.get(timeout=DEADLINE)
        kept = letter(app, stage, label)
        stage.open("gate")
        assert (running.get(timeout=DEADLINE), waiting.get(timeout=DEADLINE)) == ("kept", 2)
    assert (kept.reason, kept.deliveries) == ("poison", 2)
    assert [json.loads(one)["signal"] for one in kept.evidence] == [9, 9]
    assert [entry["step"] for entry in stage.entries(steady)] == ["start", "end"]
    assert len(stage.entries(f"{label}:waiting")) == 1
    assert worker.running
