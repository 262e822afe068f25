"""``dedup_for`` and ``debounce`` between processes, on Redis and RabbitMQ."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.apps.jobs import LEASE, QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.apps.window_jobs import add_tasks
from tests.integration.workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import ExternalServer, RedisServer, Server
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.window_jobs"
DEADLINE = 40.0
MANY = 50

PRODUCERS = """
import multiprocessing, sys
from tests.integration.apps.window_jobs import app

def produce(number):
    barrier.wait()
    return app.tasks[name].apply_async((label, str(number)), queue=queue).id

task, label, queue, count = sys.argv[1:]
name, fork = task, multiprocessing.get_context("fork")
barrier = fork.Barrier(int(count))
with fork.Pool(int(count)) as pool:
    print(*pool.map(produce, range(int(count)), chunksize=1), sep="\\n")
"""


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stage(
    request: pytest.FixtureRequest,
    module_redis: RedisServer,
    rabbitmq_server: Server | ExternalServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """Each broker in turn, with queues of its own."""
    directory = tmp_path_factory.mktemp("stage")
    stage = Stage.on(module_redis.url, directory=directory, conf={"task_default_queue": directory.name})
    return stage if request.param == "redis" else dataclasses.replace(stage, broker=rabbitmq_server.url)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Iterator[None]:
    """Two children; it goes when its broker's turn is over."""
    worker = module_workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)
    yield
    worker.kill()


def produce(stage: Stage, task: str, label: str, *, queue: str, count: int) -> subprocess.CompletedProcess[str]:
    """Submit one key from so many processes at once."""
    environment = {**os.environ, **stage.environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRODUCERS, task, label, queue, str(count)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("task", ["once", "last"])
def test_fifty_processes_at_once_are_one_run(app: Celery, stage: Stage, label: str, task: str) -> None:
    """One begins a job, all others are given its id; what is submitted before it runs joins it, too."""
    (first,) = set(produce(stage, task, label, queue=label, count=MANY).stdout.split())
    joined = app.tasks[task].apply_async((label, "newest"), queue=label)
    assert joined.id == first
    assert len(stage.events("submitted", first)) == 1
    app.control.add_consumer(label, reply=True, limit=1, timeout=DEADLINE)
    expected = {"last": {"newest"}, "once": set(map(str, range(MANY)))}[task]
    assert joined.get(timeout=DEADLINE) in expected
    assert [entry["task_id"] for entry in stage.entries(label)] == [first]


def test_many_that_meet_a_fast_job_are_one_run_in_its_window(app: Celery, stage: Stage, label: str) -> None:
    """It is done while they submit, which changes nothing; nor does it after that."""
    queue = app.conf.task_default_queue
    ids = set(produce(stage, "once", label, queue=queue, count=MANY).stdout.split())
    again = app.tasks["once"].delay(label, "again")
    assert {again.id} == ids
    assert again.get(timeout=DEADLINE) != "again"
    assert app.tasks["once"].delay(label, "and again").id == again.id
    assert len(stage.entries(label)) == 1


def test_a_stream_of_submissions_runs_at_each_bound(app: Celery, stage: Stage, label: str) -> None:
    """Each burst is one run with its newest arguments, whatever the pace; a stream that does not end starves nobody."""
    newest = {}
    for number in itertools.count():
        result = app.tasks["last"].delay(label, str(number))
        newest[result.id] = str(number)
        if len(newest) > 2:
            break
    assert result.get(timeout=DEADLINE) == newest[result.id]
    runs = [(entry["task_id"], entry["name"]) for entry in stage.entries(label)]
    assert runs == list(newest.items())
    assert stage.events("not_yet", result.id)


def test_a_producer_that_is_killed_before_its_publish_frees_itself(app: Celery, stage: Stage, label: str) -> None:
    """SIGKILL between the claim of the key and the publish: the next submission joins its job, which runs."""
    results = {}
    for task in ("once", "last"):
        stage.plan("submitted", f"{task}:{label} round 1", "kill")
        victim = subprocess.run(
            [
                sys.executable,
                "-c",
                f"from {APP} import app; app.tasks[{task!r}].delay({label!r}, 'killed')",
            ],
            cwd=ROOT,
            env={**os.environ, **stage.environment(), "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert victim.returncode == -signal.SIGKILL
        (submitted,) = stage.events("submitted", f"{task}:{label} round 1")
        results[task] = app.tasks[task].delay(label, "next")
        assert results[task].id == submitted["task_id"]
    outcomes = {task: result.get(timeout=DEADLINE + 3 * LEASE) for task, result in results.items()}
    assert outcomes["last"] == "next"
    assert sorted(entry["task"] for entry in stage.entries(label)) == ["last", "once"]
