"""The store is away, or full, while the broker is not."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import redis
from celery import Celery

from celery_reliable import QueueFull, StoreUnavailable
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0  # a message whose claim cannot be asked for waits up to 15 s


@pytest.fixture
def stage(module_redis: RedisServer, private_redis: RedisServer, tmp_path: Path) -> Stage:
    """The store on a Redis of its own, which the test may break."""
    module_redis.flush()
    backend = f"{module_redis.url.removesuffix('/0')}/1"
    return Stage(tmp_path, broker=module_redis.url, backend=backend, store=private_redis.url)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


@pytest.fixture
def bare(stage: Stage) -> Iterator[Celery]:
    """A process without celery_reliable, which can send while the store is away."""
    with Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False) as bare:
        yield bare
        bare.backend.result_consumer.subscribed_to.clear()


@pytest.fixture
def label() -> str:
    """A name that no other test uses; also a task id."""
    return uuid.uuid4().hex


def messages(stage: Stage, queue: str = "celery") -> int:
    """Return how many messages the broker has, waiting or not acked."""
    with redis.Redis.from_url(stage.broker) as broker:
        return int(broker.llen(queue)) + int(broker.hlen("unacked"))


# --- running


def test_a_worker_started_without_its_store_runs_tasks_when_the_store_is_back(
    bare: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """It becomes ready, takes a message and keeps it; no body runs, no attempt is spent."""
    private_redis.stop()
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    result = bare.send_task("add", (1, label), task_id=label)
    (away, *_) = stage.wait_event("store_unavailable", label)
    assert away["verb"] == "claim"
    assert [messages(stage), stage.entries(label)] == [1, []]
    private_redis.start()

    assert result.get(timeout=DEADLINE) == 2
    (claim,) = stage.events("claimed", label)
    assert [claim["attempt"], claim["delivery"]] == [1, 1]
    wait_until(lambda: messages(stage) == 0, DEADLINE, "the message acked")


def test_messages_wait_while_the_store_is_away(
    app: Celery, bare: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """Two waiting messages of a worker that has claimed before: both run once, as their first attempt."""
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    app.tasks["add"].delay(1, f"{label}:before").get(timeout=DEADLINE)
    private_redis.stop()
    results = [bare.send_task("add", (number, label), task_id=f"{label}-{number}") for number in range(2)]
    stage.wait_event("store_unavailable", f"{label}-0")
    assert stage.entries(label) == []
    private_redis.start()

    assert [result.get(timeout=2 * DEADLINE) for result in results] == [1, 2]
    assert [entry["attempt"] for entry in stage.entries(label)] == [1, 1]


def test_an_outcome_is_written_when_the_store_is_back(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """The store goes while the body runs and comes back after its lease is over: the body does not run again."""
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    result = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    stage.wait_entries(label, 1)
    private_redis.stop()
    stage.open(label)
    stage.wait_entries(label, 2)
    away = stage.wait_event("store_unavailable", label, count=4)
    assert {event["verb"] for event in away} == {"complete"}
    assert not result.ready()
    private_redis.start()

    assert result.get(timeout=DEADLINE) == "kept"
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert len(stage.events("done", label)) == 1


# --- submitting


def test_a_submission_without_a_store_is_refused(
    app: Celery, stage: Stage, private_redis: RedisServer, label: str
) -> None:
    """`StoreUnavailable`, and nothing is published: with a key and without."""
    private_redis.stop()
    for task, args in (("add", (1, label)), ("order", (label, label))):
        with pytest.raises(StoreUnavailable):
            app.tasks[task].apply_async(args)

    assert messages(stage) == 0


def test_a_full_store_refuses_submissions_and_lets_tasks_finish(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """At maxmemory: `QueueFull`, nothing published; the running task, its retry and its letter are written."""
    workers.start(APP, concurrency=3, env=stage.environment(), arguments=QUICK)
    running = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    retrying = app.tasks["flaky"].apply_async((f"{label}:again", 1, 1.0), task_id=f"{label}-again")
    stage.plan("retried", f"{label}-again", "block")
    failing = app.tasks["held_then_failing"].apply_async((f"{label}:failing", label), task_id=f"{label}-failing")
    stage.wait_entries(label, 1)
    stage.wait_entries(f"{label}:failing", 1)
    stage.wait_met("retried", f"{label}-again")
    private_redis.command("CONFIG", "SET", "maxmemory", "1")

    for task, args in (("add", (1, label)), ("order", (label, label))):
        with pytest.raises(QueueFull, match="memory limit"):
            app.tasks[task].apply_async(args, queue="elsewhere")
    assert messages(stage, "elsewhere") == 3  # what runs, not acked yet

    stage.release("retried", f"{label}-again")
    stage.open(label)
    assert running.get(timeout=DEADLINE) == "kept"
    assert retrying.get(timeout=DEADLINE) == 2
    with pytest.raises(LookupError, match="mistake"):
        failing.get(timeout=DEADLINE)
    assert stage.events("buried", f"{label}-failing")
