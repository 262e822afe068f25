"""``celery reliable purge`` empties a queue for good, which ``celery purge`` does not."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
import redis

from celery_reliable.cli.purge import purge_queue
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.worker.broker import RedisBroker
from celery_reliable.worker.recovery import LedgerSweep
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.integration.workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Stage:
    """An empty Redis."""
    redis_server.flush()
    return Stage.on(redis_server.url, directory=tmp_path)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


def purge(stage: Stage, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.apps.worker", "reliable", "purge", *arguments]
    environment = {**os.environ, **stage.environment()}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def sweep(app: Celery, *queues: str) -> None:
    """Look through the whole ledger, with no patience."""
    with app.connection_for_write() as connection:
        view = RedisBroker(connection.default_channel)
        ledger = LedgerSweep(app, quiet=0.0)
        for _ in range(3):
            ledger.look(view, queues=set(queues))
        view.close()


def test_purged_messages_stay_away(app: Celery, stage: Stage) -> None:
    """Of every priority, of the named queue alone; what is not a message goes too."""
    tasks = [app.tasks["add"].apply_async((1, "x"), queue="one", priority=priority) for priority in (0, 0, 9)]
    app.tasks["order"].apply_async(("x", "x"), queue="one")
    kept = app.tasks["add"].apply_async((1, "x"), queue="two")
    with redis.Redis.from_url(stage.broker) as broker:
        broker.lpush("one", "no message")
        done = purge(stage, "-Q", "one", "--yes")
        sweep(app, "one")
        assert (done.returncode, done.stdout) == (0, "one: 5 dropped\n"), done.stderr
        assert broker.llen("one") == 0
        assert broker.llen("two") == 1
    assert [task_id for task_id, _ in runtime_of(app).store.ledger()] == [kept.id]
    assert stage.events("published_again") == []
    assert runtime_of(app).store.inspect(Job("order:x", "declared"))["state"] == "revoked"
    assert len(tasks) == 3


def test_purge_asks_first(app: Celery, stage: Stage) -> None:
    """Nobody there to answer: refused, with the option that answers; nothing is dropped."""
    app.tasks["add"].delay(1, "x")
    done = purge(stage)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert stage.messages() == (1, 0)


def test_purge_on_rabbitmq(rabbitmq_server: RedisServer, stage: Stage) -> None:
    """The same; a queue that is not there is empty."""
    name = f"purge-{uuid.uuid4().hex}"
    with client(dataclasses.replace(stage, broker=rabbitmq_server.url, conf={"task_default_queue": name})) as app:
        for number in range(3):
            app.tasks["order"].delay(f"{name}{number}", "x")
        assert purge_queue(app, name) == 3
        assert purge_queue(app, "not-there") == 0
        assert runtime_of(app).store.inspect(Job(f"order:{name}0", "declared"))["state"] == "revoked"
