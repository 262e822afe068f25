"""The result backend refuses what it is told, while broker and store are well."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from celery_reliable import Permanent
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 60.0


@pytest.fixture
def stage(module_redis: RedisServer, private_redis: RedisServer, tmp_path: Path) -> Stage:
    """The backend on a Redis of its own, which the test may break."""
    module_redis.flush()
    return dataclasses.replace(Stage.on(module_redis.url, directory=tmp_path), backend=private_redis.url)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


def test_outcomes_are_told_when_the_backend_takes_them_again(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers
) -> None:
    """A success stays one, a failure is told, a chord goes on, and the slots are free for others meanwhile.

    A job that has expired is told of by the worker's main process, which a refusal must not end.
    """
    workers.start(APP, pool="threads", concurrency=2, env=stage.environment(), arguments=QUICK)
    done, failed, again, member, body, late = (uuid.uuid4().hex for _ in range(6))
    members = [app.tasks["held"].s(member, "gate", 3).set(task_id=member), app.tasks["add"].s(1, body)]
    gathered = chord(members)(app.tasks["gather"].s(f"{body}:all"))
    stage.wait_entries(member, 1)
    private_redis.command("CONFIG", "SET", "maxmemory", "1mb")
    stage.open("gate")
    app.tasks["add"].apply_async((1, done), task_id=done)
    app.tasks["hopeless"].apply_async((failed,), task_id=failed)
    app.tasks["flaky"].apply_async((again, 1), task_id=again)
    app.tasks["add"].apply_async((1, late), task_id=late, expires=datetime.now(timezone.utc))
    for name in (done, failed, member, late):
        stage.wait_event("backend_unavailable", name, timeout=DEADLINE)
    stage.wait_entries(again, 2, timeout=DEADLINE)  # a retry is not kept by a state that cannot be shown
    private_redis.command("CONFIG", "SET", "maxmemory", "0")

    assert [app.AsyncResult(name).get(timeout=DEADLINE) for name in (done, again)] == [2, 2]
    with pytest.raises(Permanent):
        app.AsyncResult(failed).get(timeout=DEADLINE)
    with pytest.raises(TaskRevokedError, match="expired"):
        app.AsyncResult(late).get(timeout=DEADLINE)
    assert gathered.get(timeout=DEADLINE) == 5
    assert [len(stage.entries(name)) for name in (done, failed)] == [1, 1]
    assert [entry["step"] for entry in stage.entries(member)] == ["start", "end"]
    assert stage.entries(f"failure:{done}") == []
    stage.wait_no_message(DEADLINE)


def test_chord_whose_sender_died_is_sent_by_the_next_delivery(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """A worker that died while it sent the body leaves a claim (Celery 5.7) that tells others to leave it alone."""
    workers.start(APP, pool="threads", env=stage.environment(), arguments=QUICK)
    members = [app.tasks["held"].s(label, "gate", 3).set(task_id=label)]
    gathered = chord([*members, app.tasks["add"].s(1, f"{label}:2")])(app.tasks["gather"].s(f"{label}:all"))
    claim = app.backend.get_key_for_group(gathered.parent.id, ".c")
    app.backend.client.set(claim, "of a dead worker", px=4000)
    stage.wait_entries(label, 1)
    stage.open("gate")

    assert gathered.get(timeout=DEADLINE) == 5
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
