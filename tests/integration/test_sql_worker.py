"""A real worker whose store is a database and whose broker is Redis."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from celery_reliable.app_letters import letters_of
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.stores.sql import open_sql_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery import Celery

    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0


@pytest.fixture(scope="module")
def stage(
    module_redis: servers.RedisServer, module_postgres: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    """Broker and backend in Redis, the store in PostgreSQL."""
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"))
    return dataclasses.replace(stage, store=module_postgres.url)


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children."""
    return module_workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)


def test_a_killed_child_s_task_runs_again_at_once(app: Celery, stage: Stage, label: str) -> None:
    """Its parent frees the lease in the database; the ledger is empty at the end."""
    result = app.tasks["suicidal"].apply_async((label, 1), task_id=label)

    assert result.get(timeout=DEADLINE) == 1
    assert stage.events("busy", label) == []  # nobody waited for the end of the lease
    assert [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)] == [(1, 1), (1, 2)]
    assert runtime_of(app).store.inspect(Job(label, "given"))["state"] == "done"
    wait_until(lambda: list(runtime_of(app).store.ledger()) == [], DEADLINE, "an empty ledger")


def test_a_submission_of_a_key_that_is_done_gets_its_result(app: Celery, stage: Stage, label: str) -> None:
    """One effect, one id."""
    order = app.tasks["order"]
    first = order.delay(label, label)
    assert first.get(timeout=DEADLINE) == f"{label}:1"
    second = order.delay(label, label)

    assert second.id == first.id
    assert second.get(timeout=DEADLINE) == f"{label}:1"
    assert len(stage.entries(label)) == 1


def test_a_dead_letter_is_kept_and_replayed(app: Celery, stage: Stage, label: str) -> None:
    """Under a new id, in a new life; a retry before it counted an attempt."""
    result = app.tasks["held_then_failing"].apply_async((label, label), {"fails": None}, task_id=label)
    stage.open(label)
    with pytest.raises(LookupError):
        result.get(timeout=DEADLINE)
    buried = letter(app, stage, label)
    assert buried.task_id == label

    letters_of(app).replay(buried.id, who="a test")
    again = stage.wait_entries(label, 2, timeout=DEADLINE)[1]
    assert again["task_id"] != label
    assert again["fence"] > stage.entries(label)[0]["fence"]


def test_a_worker_that_died_is_followed_by_another(app: Celery, stage: Stage, workers: Workers, label: str) -> None:
    """The lease in the database ends, the message comes back, and the fence is larger."""
    queue = f"q-{label}"
    doomed = workers.start(APP, env=stage.environment(), queues=[queue], arguments=QUICK)
    result = app.tasks["fenced"].apply_async((label,), task_id=label, queue=queue)
    stage.wait_entries(label, 1)
    doomed.kill()
    workers.start(APP, env=stage.environment(), queues=[queue], arguments=QUICK)
    stage.wait_entries(label, 2, timeout=DEADLINE)
    stage.open(f"{label}:2")

    fences = [event["fence"] for event in stage.events("claimed", label)]
    assert result.get(timeout=DEADLINE) == fences[1] > fences[0]


def test_an_outcome_waits_for_a_database_that_restarts(
    app: Celery, stage: Stage, module_postgres: servers.Server, label: str
) -> None:
    """The task ends while the database is away; it does not run again, and its outcome is written."""
    result = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    stage.wait_entries(label, 1)
    module_postgres.stop()
    stage.open(label)
    stage.wait_entries(label, 2)
    stage.wait_event("store_unavailable", label)
    module_postgres.start()

    assert result.get(timeout=DEADLINE) == "kept"
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert len(stage.events("done", label)) == 1


def test_a_worker_on_mariadb_runs_a_lost_job_again_and_a_done_one_never(
    stage: Stage, mariadb_server: servers.Server | servers.ExternalServer, workers: Workers, label: str
) -> None:
    """Its parent frees the lease of a killed child there; a second submission of a key gets the first one's result."""
    with contextlib.closing(open_sql_store(mariadb_server.url)) as store:
        store.create_tables()
    elsewhere = dataclasses.replace(stage, store=mariadb_server.url)
    queue = f"q-{label}"
    workers.start(APP, concurrency=2, env=elsewhere.environment(), queues=[queue], arguments=QUICK)
    with client(elsewhere) as app:
        lost = app.tasks["suicidal"].apply_async((label, 1), task_id=label, queue=queue)
        first = app.tasks["order"].apply_async((label, f"{label}-order"), queue=queue)
        assert lost.get(timeout=DEADLINE) == 1
        assert first.get(timeout=DEADLINE) == f"{label}-order:1"
        assert app.tasks["order"].apply_async((label, f"{label}-order"), queue=queue).id == first.id
        wait_until(lambda: list(runtime_of(app).store.ledger()) == [], DEADLINE, "an empty ledger")
    assert [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)] == [(1, 1), (1, 2)]
