"""``dedup_for``, ``debounce``, ``replace`` and ``queue_one`` between processes, on Redis and RabbitMQ."""

from __future__ import annotations

import dataclasses
import itertools
import json
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

PRODUCERS = """
import json, multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
from tests.integration.apps.window_jobs import app

calls, processes, threads = json.loads(sys.argv[1]), 5, 10
fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(processes)

def produce(process):
    with ThreadPoolExecutor(threads) as pool:
        return [submit(pool, process, *call) for call in calls]

def submit(pool, process, task, label, queue):
    barrier.wait()
    names = [f"{process}.{thread}" for thread in range(threads)]
    return [one.id for one in pool.map(lambda name: app.tasks[task].apply_async((label, name), queue=queue), names)]

with fork.Pool(processes) as pool:
    found = pool.map(produce, range(processes), chunksize=1)
print(json.dumps([sorted(set(sum(ids, []))) for ids in zip(*found)]))
"""

VICTIMS = """
import os, sys
from tests.integration.apps.window_jobs import app

for task in ("once", "last"):
    child = os.fork()
    if not child:
        app.tasks[task].delay(sys.argv[1], "killed")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
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


def script(stage: Stage, text: str, argument: str) -> str:
    """Run a script beside the worker; return what it prints."""
    environment = {**os.environ, **stage.environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", text, argument]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_fifty_producers_at_once_are_one_run(app: Celery, stage: Stage, label: str) -> None:
    """One begins a job, all others are given its id; what is submitted before it runs joins it, too.

    Nobody consumes the queue of any but the last yet, which is done while they submit; that changes nothing.
    """
    waiting = [(task, label, label) for task in ("once", "last", "newer", "queued")]
    calls = [*waiting, ("once", f"{label}:fast", app.conf.task_default_queue)]
    ids = [one for (one,) in json.loads(script(stage, PRODUCERS, json.dumps(calls)))]
    results = [app.tasks[task].apply_async((name, "newest"), queue=queue) for task, name, queue in calls * 2]
    assert [result.id for result in results] == ids * 2
    assert [len(stage.events("submitted", task_id)) for task_id in ids] == [1] * len(ids)
    assert results[4].get(timeout=DEADLINE) != "newest"
    app.control.add_consumer(label, reply=True, limit=1, timeout=DEADLINE)
    assert results[0].get(timeout=DEADLINE) != "newest"
    assert [result.get(timeout=DEADLINE) for result in results[1:4]] == ["newest"] * 3
    fast = ids.pop()
    assert app.tasks["once"].delay(f"{label}:fast", "again").id == fast
    assert sorted(entry["task_id"] for entry in stage.entries(label)) == sorted(ids)
    assert [entry["task_id"] for entry in stage.entries(f"{label}:fast")] == [fast]


def test_a_stream_of_submissions_runs_at_each_bound(app: Celery, stage: Stage, label: str) -> None:
    """Each burst is one run with its newest arguments, whatever the pace; a stream that does not end starves nobody.

    A message that a busy worker takes up late is due at once; of three one has to wait.
    """
    newest = {}
    for number in itertools.count():
        result = app.tasks["last"].delay(label, str(number))
        newest[result.id] = str(number)
        if len(newest) > 2:
            break
    assert result.get(timeout=DEADLINE) == newest[result.id]
    runs = [(entry["task_id"], entry["name"]) for entry in stage.entries(label)]
    assert runs == list(newest.items())
    assert any(stage.events("not_yet", task_id) for task_id in newest)


def test_a_producer_that_is_killed_before_its_publish_frees_itself(app: Celery, stage: Stage, label: str) -> None:
    """SIGKILL between the claim of the key and the publish: the next submission joins its job, which runs."""
    keys = {task: f"{task}:{label} round 1" for task in ("once", "last")}
    for key in keys.values():
        stage.plan("submitted", key, "kill")
    assert set(script(stage, VICTIMS, label).split()) == {str(-signal.SIGKILL)}
    results = {task: app.tasks[task].delay(label, "next") for task in keys}
    lost = {task: submitted["task_id"] for task, key in keys.items() for submitted in stage.events("submitted", key)}
    assert {task: result.id for task, result in results.items()} == lost
    outcomes = {task: result.get(timeout=DEADLINE + 3 * LEASE) for task, result in results.items()}
    assert outcomes["last"] == "next"
    assert sorted(entry["task"] for entry in stage.entries(label)) == ["last", "once"]
