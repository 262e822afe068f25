"""An effect that is committed with its marker happens once, whatever the store forgets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import sqlalchemy

from celery_reliable.contrib.sqlalchemy import metadata, transaction
from celery_reliable.inbox import Claim, once_committed
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.testing import servers
from tests.integration.apps.inbox_worker import PAYMENTS, app_of, engine_of
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from sqlalchemy.engine import Engine

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.inbox_worker"
ROOT = Path(__file__).parents[2]
DEADLINE = 30.0


class Effects:
    """A database with payments and an inbox."""

    def __init__(self, server: servers.Server) -> None:
        """Make the tables."""
        self._url = server.url
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            connection.exec_driver_sql(PAYMENTS)

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return engine_of(self._url, os.getpid())

    def environment(self, stage: Stage) -> dict[str, str]:
        """Return what a worker must know."""
        return {**stage.environment(), "CR_TEST_EFFECTS": self._url}

    def payments(self, label: str) -> list[int]:
        """Return the fences of all payments."""
        with self.engine.connect() as connection:
            asked = sqlalchemy.text("SELECT fence FROM payment WHERE label = :label")
            return [fence for (fence,) in connection.execute(asked, {"label": label})]


@pytest.fixture(scope="module")
def effects() -> Iterator[Effects]:
    """The effects of all tests, in PostgreSQL."""
    with servers.start_postgres() as server:
        effects = Effects(server)
        yield effects
        effects.engine.dispose()


@pytest.fixture
def stage(module_redis: servers.RedisServer, tmp_path: Path) -> Stage:
    """Broker, backend and store in Redis; a broker that gives the messages of a silent worker away."""
    module_redis.flush()
    return Stage.on(module_redis.url, directory=tmp_path, conf=RESTORING)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage, make=app_of) as app:
        yield app


def test_a_run_after_the_commit_reports_what_was_committed(
    app: Celery, stage: Stage, effects: Effects, workers: Workers, label: str
) -> None:
    """Killed between the commit and the store: the next run meets the marker, and the callback gets the result."""
    stage.plan("committed", label, "kill")
    workers.start(APP, env=effects.environment(stage), arguments=QUICK)
    result = app.tasks["pay"].apply_async((label,), task_id=label, link=app.tasks["unbound"].s())

    assert result.get(timeout=DEADLINE) == "paid by run 1"
    assert len(stage.entries(label)) == 2
    assert len(effects.payments(label)) == 1
    assert len(stage.events("already_committed", label)) == 1
    stage.wait_entries("paid by run 1", 1)


def test_a_crash_before_the_commit_leaves_nothing(
    app: Celery, stage: Stage, effects: Effects, workers: Workers, label: str
) -> None:
    """Neither effect nor marker: the next run pays."""
    stage.plan("effect", label, "kill")
    workers.start(APP, env=effects.environment(stage), arguments=QUICK)
    result = app.tasks["pay"].apply_async((label,), task_id=label)

    assert result.get(timeout=DEADLINE) == "paid by run 2"
    assert len(effects.payments(label)) == 1
    assert stage.events("already_committed", label) == []


def test_a_redis_that_forgets_everything_doubles_nothing(
    app: Celery, stage: Stage, effects: Effects, workers: Workers, label: str
) -> None:
    """FLUSHALL between the commit and the store: broker, backend and store know nothing of the job any more.

    The message went with the broker's data, so the caller, who never got an answer, submits the same job again.
    """
    stage.plan("committed", label, "block")
    workers.start(APP, env=effects.environment(stage), arguments=QUICK)
    lost = app.tasks["pay"].apply_async((label,), task_id=label)
    with stage.blocked("committed", label), redis.Redis.from_url(stage.broker) as broker:
        assert len(effects.payments(label)) == 1
        broker.flushall()
    stage.wait_event("stale", label)
    lost.forget()
    result = app.tasks["pay"].apply_async((label,), task_id=label)

    assert result.get(timeout=DEADLINE) == "paid by run 1"
    assert len(stage.entries(label)) == 2
    assert len(effects.payments(label)) == 1
    assert len(stage.events("already_committed", label)) == 1


def test_a_paused_holder_cannot_commit(
    app: Celery, stage: Stage, effects: Effects, workers: Workers, label: str
) -> None:
    """Frozen in its transaction beyond its lease. The other run waits for the row; the thawed one is refused, it pays."""
    stage.plan("effect", label, "block")
    frozen = workers.start(APP, env=effects.environment(stage), arguments=QUICK)
    result = app.tasks["pay"].apply_async((label,), task_id=label)
    stage.wait_met("effect", label)
    frozen.freeze()
    workers.start(APP, env=effects.environment(stage), arguments=QUICK)
    stage.wait_entries(label, 2, timeout=DEADLINE)
    frozen.thaw()
    stage.release("effect", label)

    assert result.get(timeout=DEADLINE) == "paid by run 2"
    first, second = (event["fence"] for event in stage.events("claimed", label))
    assert effects.payments(label) == [second]
    assert [event["fence"] for event in stage.wait_event("stale", label)] == [first]


def test_the_inbox_of_a_django_project(app: Celery, stage: Stage, workers: Workers, tmp_path: Path, label: str) -> None:
    """A block, and a whole body by ``inbox=True``, on the project's SQLite: killed after the commit and before it."""
    file = tmp_path / "django.db"
    project = {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.django_settings", "CR_TEST_FILE": str(file)}
    environment = {**os.environ, **project, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "django", "migrate", "-v", "0"], env=environment, check=True)
    with contextlib.closing(sqlalchemy.create_engine(f"sqlite:///{file}").raw_connection()) as connection:
        connection.cursor().execute(PAYMENTS)
    stage.plan("committed", f"{label}:some", "kill")
    stage.plan("effect", f"{label}:all", "kill")
    stage.plan("done", f"{label}:all", "kill")
    workers.start(APP, env={**stage.environment(), **project}, arguments=QUICK)
    some = app.tasks["pay_some"].apply_async((f"{label}:some",), task_id=f"{label}:some")
    every = app.tasks["pay_all"].apply_async((f"{label}:all",), task_id=f"{label}:all")

    assert some.get(timeout=DEADLINE) == "paid by run 1"
    assert every.get(timeout=DEADLINE) == "paid by run 2"
    with contextlib.closing(sqlalchemy.create_engine(f"sqlite:///{file}").raw_connection()) as connection:
        found: Any = connection.cursor().execute("SELECT label FROM payment ORDER BY label")
        assert found.fetchall() == [(f"{label}:all",), (f"{label}:some",)]


def test_an_inbox_is_one_statement_in_the_transaction_of_the_effect(tmp_path: Path) -> None:
    """And one more to keep a result; the store is asked once."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/effects.db")
    metadata.create_all(engine)
    said: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda _, __, text, *___: said.append(text.split()[0]))
    for result, expected in ((None, ["INSERT"]), (7, ["INSERT", "UPDATE"])):
        claim = Claim(Job(f"job {result}", "own"), 1, "cr:", 60.0, MemoryStore())
        with engine.connect() as connection, once_committed(partial(transaction, connection), claim) as done:
            done.result = result
        assert said == expected
        said.clear()
    engine.dispose()
