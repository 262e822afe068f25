"""Two runs of one key do not run together, and of two that do, one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from tests.integration.apps.jobs import LEASE, QUICK, RESTORING, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0


@pytest.fixture
def stage(module_redis: RedisServer, tmp_path: Path) -> Stage:
    """A broker that gives the messages of a silent worker to another one after two seconds."""
    module_redis.flush()
    return Stage.on(module_redis.url, directory=tmp_path, conf=RESTORING)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


def steps(stage: Stage, label: str) -> list[str]:
    """Return what the runs noted, in order."""
    return [entry["step"] for entry in stage.entries(label)]


def test_a_task_longer_than_its_lease_runs_once(app: Celery, stage: Stage, workers: Workers, label: str) -> None:
    """Three leases long, with a second copy of its message in the queue and the broker giving away a third."""
    result = app.tasks["busy"].apply_async((label, 3 * LEASE), task_id=label)
    with redis.Redis.from_url(stage.broker) as broker:
        (message,) = broker.lrange("celery", 0, -1)
        broker.rpush("celery", message)
    workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)

    assert result.get(timeout=DEADLINE) == label
    assert stage.events("busy", label)
    stage.wait_event("replayed_outcome", label)
    stage.wait_no_message()
    assert steps(stage, label) == ["start", "end"]
    assert len(stage.events("done", label)) == 1


def test_a_holder_that_was_frozen_beyond_its_lease_changes_nothing(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """Another worker took over and finished. The thawed one's outcome is refused, its callback not sent."""
    add = app.tasks["add"]
    frozen = workers.start(APP, env=stage.environment(), arguments=QUICK)
    result = app.tasks["fenced"].apply_async((label,), task_id=label, link=add.s(f"{label}:link"))
    stage.wait_entries(label, 1)
    frozen.freeze()
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    stage.wait_entries(label, 2, timeout=DEADLINE)
    stage.open(f"{label}:2")
    fence = result.get(timeout=DEADLINE)
    assert steps(stage, label) == ["start", "start", "end"]

    stage.open(f"{label}:1")
    frozen.thaw()
    (stale,) = stage.wait_event("stale", label, timeout=DEADLINE)
    stage.wait_no_message()

    first, second = (event["fence"] for event in stage.events("claimed", label))
    assert first == stale["fence"] < second == fence
    assert app.AsyncResult(label).get(timeout=DEADLINE) == fence
    assert len(stage.events("done", label)) == 1
    assert len(stage.entries(f"{label}:link")) == 1
    assert frozen.running


def test_a_stale_holder_does_not_ack_the_message_of_the_live_one(
    module_redis: RedisServer, workers: Workers, tmp_path: Path, label: str
) -> None:
    """Thawed while the other worker runs, then that one is killed: the message still exists, a third run ends it.

    Without the ledger, which would publish a lost message again. The other worker starts when the lease is over, so
    that it never waits for the key: a worker that has waited may have the copy that was given back in its socket.
    """
    stage = Stage.on(module_redis.url, directory=tmp_path, first=3, conf={**RESTORING, "reliable_ledger": False})
    frozen = workers.start(APP, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        result = app.tasks["fenced"].apply_async((label,), task_id=label)
        stage.wait_entries(label, 1)
        frozen.freeze()
        wait_until(lambda: lease_is_over(app, label), DEADLINE, "the end of the lease")
        live = workers.start(APP, env=stage.environment(), arguments=QUICK, ready=False)
        wait_until(lambda: lease_is_over(app, label) and len(stage.entries(label)) > 1, DEADLINE, "the second run")
        frozen.thaw()
        stage.open(f"{label}:1")
        stage.wait_event("stale", label, timeout=DEADLINE)
        stage.wait_event("busy", label, timeout=DEADLINE)
        live.kill()
        stage.open(f"{label}:3")

        fence = result.get(timeout=DEADLINE)
    claims = stage.events("claimed", label)
    assert [claim["delivery"] for claim in claims] == [1, 2, 3]
    assert fence == claims[2]["fence"]
    assert steps(stage, label) == ["start", "start", "end", "start", "end"]


def lease_is_over(app: Celery, label: str) -> bool:
    """Keep the fleet's pulse, so that no grace is due, and tell whether the first lease of a job has ended."""
    store = runtime_of(app).store
    store.renew([], pulse_ttl=LEASE)
    record = store.inspect(Job(label, "given"))
    return record["delivery"] != "1" or int(record["at_ms"]) < store.now() / 1000
