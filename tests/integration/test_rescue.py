"""A worker that starts in a dead one's place takes its work over at once, not when the lease is over."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
LEASE = 15.0
AT_ONCE = 5.0  # seconds; two for the guarantee, the rest for a loaded machine
DEADLINE = 30.0


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Stage:
    """The default lease; a restart is far quicker than that."""
    redis_server.flush()
    return Stage.on(redis_server.url, directory=tmp_path, conf={"reliable_lease_ttl": LEASE})


def start(workers: Workers, stage: Stage, pool: str = "prefork") -> Worker:
    """Start a worker of the one node name."""
    arguments = (*QUICK, "--hostname", "same@%h")
    return workers.start(APP, pool=pool, concurrency=1, env=stage.environment(), arguments=arguments)


PLACES = [("redis", "prefork"), ("redis", "threads"), ("redis", "gevent"), ("rabbitmq", "prefork")]


@pytest.mark.parametrize(("broker", "pool"), PLACES)
def test_successor_takes_over(  # noqa: PLR0917  # fixtures
    broker: str, pool: str, stage: Stage, workers: Workers, label: str, request: pytest.FixtureRequest
) -> None:
    """The job that ran starts again, the message that waited for its time is received again."""
    if broker == "rabbitmq":
        conf = {**stage.conf, "task_default_queue": f"rescue-{uuid.uuid4().hex}"}
        stage = dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url, conf=conf)
    first = start(workers, stage, pool)
    with client(stage) as app:
        waiting = app.tasks["add"].apply_async((1, f"{label}:waiting"), countdown=600)
        first.wait_log(f"add[{waiting.id}] received", DEADLINE)
        job = app.tasks["held"].delay(label, "gate")
        stage.wait_entries(label, 1)
        os.kill(first.pid, signal.SIGKILL)  # not its child: Celery has that die with it (Linux)
        first.wait()
        second = start(workers, stage, pool)
        ready = time.monotonic()
        again = stage.wait_entries(label, 2, timeout=DEADLINE)[1]
        stage.open("gate")

        assert job.get(timeout=DEADLINE) is None
        second.wait_log(f"add[{waiting.id}] received", DEADLINE)
    assert again["at"] - ready < AT_ONCE
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "start", "end"]
    (rescued,) = stage.events("rescued")
    assert rescued["pids"] == [first.pid]
    assert (rescued["claims"], rescued["messages"]) == ((1, 2) if broker == "redis" else (0, 0))
    assert stage.events("node_name_taken") == []


def test_worker_of_the_same_name_that_is_alive_keeps_its_work(stage: Stage, workers: Workers, label: str) -> None:
    """Two workers of one node name: nothing is taken from either, and a warning says so."""
    first = start(workers, stage, "threads")
    with client(stage) as app:
        job = app.tasks["held"].delay(label, "gate")
        stage.wait_entries(label, 1)
        start(workers, stage, "threads")
        (taken,) = wait_until(lambda: stage.events("node_name_taken"), DEADLINE, "a warning")
        stage.open("gate")

        assert job.get(timeout=DEADLINE) is None
    assert taken["pid"] == first.pid
    assert stage.events("rescued") == []
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
