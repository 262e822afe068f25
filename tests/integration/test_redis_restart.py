"""A Redis that is killed and comes back, with the files it had, ends no worker and runs nothing twice."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.apps.jobs import LEASE, QUICK, client
from tests.integration.apps.plain import make_plain
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

DEADLINE = 30.0
PLAIN = "tests.integration.apps.plain"
OURS = "tests.integration.apps.worker"


@pytest.fixture
def stage(private_redis: RedisServer, tmp_path: Path) -> Stage:
    """Broker, backend and store in one Redis, which a test may kill."""
    return Stage.on(private_redis.url, directory=tmp_path)


def crash(server: RedisServer) -> None:
    """Kill Redis and start it again on its port with its append-only file."""
    server.kill()
    server.start()


def test_plain_worker_ends(stage: Stage, private_redis: RedisServer, workers: Workers, label: str) -> None:
    """The fault of kombu 5.7 exists: a free slot, a message out, a restart, and the main process is gone."""
    worker = workers.start(PLAIN, concurrency=2, env=stage.environment(), arguments=QUICK)
    with make_plain(stage) as app:
        app.tasks["held"].apply_async((label, "gate"), ignore_result=True)
        stage.wait_entries(label, 1)
        crash(private_redis)
        stage.open("gate")

    assert worker.wait(DEADLINE) == 1
    assert "_connparams" in worker.logs()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_worker_goes_on(stage: Stage, private_redis: RedisServer, workers: Workers, label: str, pool: str) -> None:
    """What runs is acked on its old tag, what waited runs on time, and the worker takes new work.

    Solo has no slot free beside a running task: there a message with an ETA is what is out.
    """
    worker = workers.start(OURS, pool=pool, concurrency=2, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        waiting = app.tasks["add"].apply_async((1, f"{label}:waiting"), countdown=3)
        wait_until(lambda: stage.messages() == (0, 1), DEADLINE, "the countdown received")
        running = app.tasks["held"].delay(label, "gate") if pool != "solo" else None
        if running:
            stage.wait_entries(label, 1)
        crash(private_redis)
        other = app.tasks["add"].delay(2, f"{label}:other")
        assert other.get(timeout=DEADLINE) == 3
        if pool == "prefork":
            time.sleep(
                LEASE + 2
            )  # that the sweep does not take its message can only be seen by waiting past the moment
        stage.open("gate")

        assert running is None or running.get(timeout=DEADLINE) is None
        assert waiting.get(timeout=DEADLINE) == 2
    stage.wait_no_message()
    assert worker.running
    assert [entry["step"] for entry in stage.entries(label)] == (["start", "end"] if running else [])
    assert len(stage.entries(f"{label}:waiting")) == len(stage.entries(f"{label}:other")) == 1
    assert [event for event in stage.events("restored") if running and event["task_id"] == running.id] == []


def test_message_of_an_earlier_connection_can_be_given_back(
    stage: Stage, private_redis: RedisServer, workers: Workers, tmp_path: Path, label: str
) -> None:
    """A child that dies after the restart: its message finds its queue, here through an exchange, and runs again.

    One died before: the restart forgets neither that delivery nor its evidence.
    """
    topical = dataclasses.replace(stage, conf={"task_default_exchange_type": "topic"})
    worker = workers.start(OURS, concurrency=1, env=topical.environment(), arguments=QUICK)
    with client(topical) as app:
        # An ETA that waits raises the prefetch count, so that a BRPOP is pending.
        waiting = app.tasks["add"].apply_async((1, f"{label}:waiting"), countdown=5)
        wait_until(lambda: topical.messages() == (0, 1), DEADLINE, "the countdown received")
        job = app.tasks["held"].apply_async((label, "gate"), task_id=label)
        topical.wait_entries(label, 1)
        worker.kill_child()
        topical.wait_entries(label, 2)
        crash(private_redis)
        wait_until(lambda: worker.logs().count("Connected to") == 2, DEADLINE, "connected again")
        worker.kill_child()
        topical.wait_entries(label, 3)
        topical.open("gate")

        assert job.get(timeout=DEADLINE) is None
        assert waiting.get(timeout=DEADLINE) == 2
    topical.wait_no_message()
    assert topical.events("published_again") == []
    claims = [(event["attempt"], event["delivery"]) for event in topical.events("claimed", label)]
    assert claims == [(1, 1), (1, 2), (1, 3)]


def test_lost_connection_gives_back_what_waits_and_only_that(
    stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """The server is well, the connections are gone: what runs is received by nobody else, what waited at once again."""
    worker = workers.start(OURS, pool="threads", concurrency=2, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        running = app.tasks["held"].delay(label, "gate")
        stage.wait_entries(label, 1)
        waiting = app.tasks["add"].apply_async((1, f"{label}:waiting"), countdown=5)
        wait_until(lambda: stage.messages() == (0, 2), DEADLINE, "the countdown received")
        private_redis.command("CLIENT", "KILL", "TYPE", "normal")
        wait_until(lambda: worker.logs().count(f"add[{waiting.id}] received") == 2, DEADLINE, "received again")

        assert stage.events("restored") == []
        stage.open("gate")
        assert running.get(timeout=DEADLINE) is None
        assert waiting.get(timeout=DEADLINE) == 2
    stage.wait_no_message()
    assert worker.logs().count(f"held[{running.id}] received") == 1
    assert stage.events("busy") == []
