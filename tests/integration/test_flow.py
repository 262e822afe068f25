"""Breakers, limits and rates, kept by real workers together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from celery_reliable.flow.budgets import FLOOR
from celery_reliable.runtime import runtime_of
from tests.integration.apps.flow_jobs import CONF, add_tasks
from tests.integration.apps.jobs import LEASE, QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.integration.flows import DEADLINE, flood_past_a_limit, most_at_once
from tests.integration.workers import ROOT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.flow_jobs"
OPEN_FOR = 2.0
SEEN_BY_ALL = 1.5  # seconds after which every process knows what one has written


@pytest.fixture(scope="module")
def stage(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Breakers that open soon, and not for long."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=CONF)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage, with the tasks behind breakers."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module", autouse=True)
def fleet(stage: Stage, module_workers: Workers) -> None:
    """Two workers: four processes and four threads that run tasks."""
    for pool, concurrency in (("prefork", 4), ("threads", 4)):
        module_workers.start(
            APP, pool=pool, concurrency=concurrency, env=stage.environment(), arguments=QUICK, ready=False
        )
    for worker in module_workers._started:
        worker.wait_ready()


def breaker(app: Celery, *words: str) -> str:
    """Run ``celery reliable breaker`` and return what it prints."""
    done = CliRunner().invoke(reliable, ["breaker", *words], obj=SimpleNamespace(app=app, no_color=True))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_failing_dependency_is_probed_and_nothing_is_lost(app: Celery, stage: Stage, label: str) -> None:
    """Once open, all wait in every process, with no attempt spent; one at a time probes; then every job ends well."""
    results = [app.tasks["calling_bank"].delay(label, str(number)) for number in range(12)]
    opened = wait_until(lambda: stage.events("breaker_opened"), DEADLINE, "breaker open")[0]
    wait_until(lambda: len(stage.events("breaker_opened")) > 2, DEADLINE, "two failed probes")
    down_until = time.monotonic()
    stage.open(f"{label}:well")
    assert sorted(result.get(timeout=DEADLINE) for result in results) == sorted(map(str, range(12)))

    probes = [entry for entry in stage.entries(label) if opened["at"] + SEEN_BY_ALL < entry["at"] < down_until]
    assert 1 <= len(probes) <= 1 + (down_until - opened["at"]) / OPEN_FOR
    runs = Counter(entry["name"] for entry in stage.entries(label))
    last = {entry["name"]: entry["attempt"] for entry in stage.entries(label)}
    assert last == dict(runs)
    assert len({event["pid"] for event in stage.events("breaker_waits")}) > 1
    assert [event["by"] for event in stage.events("breaker_closed")] == ["probes"]
    stage.wait_no_message()


def test_an_operator_opens_and_closes_a_breaker(app: Celery, stage: Stage, label: str) -> None:
    """Its tasks wait for as long as he wants."""
    assert "shop is open until it is closed" in breaker(app, "open", "shop")
    stage.open(f"{label}:well")
    result = app.tasks["calling_shop"].delay(label, "a")
    stage.wait_event("breaker_waits", result.id, count=2, timeout=DEADLINE)
    assert stage.entries(label) == []
    listed = {one["breaker"]: one for one in map(json.loads, breaker(app, "list", "--json").splitlines())}
    assert (listed["shop"]["state"], listed["shop"]["tasks"]) == ("held_open", ["calling_shop"])
    assert listed["bank"]["state"] == "closed"
    table = breaker(app, "list")
    assert "held open" in table
    assert "opened by hand" in table
    assert "shop is closed" in breaker(app, "close", "shop")
    assert result.get(timeout=DEADLINE) == "a"
    assert runtime_of(app).breakers.known() == {}


# --- limits


def test_a_limit_holds_in_the_whole_fleet_and_blocks_nobody_else(
    app: Celery, stage: Stage, module_workers: Workers, label: str
) -> None:
    """Twelve jobs of one tenant wait in no slot: another tenant's runs meanwhile; each has spent one attempt.

    A wait is an event, and no warning with a traceback in the worker's log.
    """
    flood_past_a_limit(app, stage, label, seconds=0.2)
    assert {entry["attempt"] for entry in stage.entries(label)} == {1}
    assert len({event["pid"] for event in stage.events("limit_waits")}) > 1
    assert [worker.logs().count("(limit_waits)") for worker in module_workers._started] == [0, 0]


def test_a_killed_holder_frees_its_place(app: Celery, stage: Stage, workers: Workers, label: str) -> None:
    """SIGKILL to its whole worker: the next one runs when the lease is over, the killed one after it."""
    killed = workers.start(APP, pool="threads", env=stage.environment(), arguments=(*QUICK, "-Q", label), ready=False)
    tenant = {"id": label}
    first = app.tasks["placed_alone"].apply_async((label, tenant), queue=label)
    stage.wait_entries(label, 1, timeout=DEADLINE)
    killed.kill()
    died = time.monotonic()
    second = app.tasks["placed_alone"].delay(label, tenant, 0.01)
    began = stage.wait_entries(label, 2, timeout=DEADLINE)[1]["at"]
    assert began - died < 3 * LEASE
    assert second.get(timeout=DEADLINE) is None
    app.control.add_consumer(label, reply=True, timeout=DEADLINE, limit=1)
    stage.open(f"{label}:{label}")
    assert first.get(timeout=DEADLINE) is None
    assert most_at_once(stage, label) == 2, "the killed one never ended"
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "start", "end", "start", "end"]


@pytest.mark.parametrize(
    ("task", "problem"), [("placed", "concurrency_key='tenant:{tenant[id]}'"), ("placed_by_code", "'id'")]
)
def test_a_call_without_the_field_of_the_key_is_a_letter(
    app: Celery, stage: Stage, label: str, task: str, problem: str
) -> None:
    """It could never run, however often it is tried."""
    result = app.tasks[task].delay(label, {"name": "no id"})
    found = letter(app, stage, result.id)
    assert (found.reason, found.attempts) == ("invalid", 1)
    assert problem in found.error_message
    assert stage.entries(label) == []
    with pytest.raises(Exception, match="id"):
        result.get(timeout=DEADLINE)


def test_a_rate_holds_in_the_whole_fleet(app: Celery, stage: Stage, label: str) -> None:
    """Sixty jobs at ten a second on eight slots of two workers: never more than 5 % too many, nor much too few."""
    for _ in range(60):
        app.tasks["mailed"].delay(label)
    times = [entry["at"] for entry in stage.wait_entries(label, 60, timeout=DEADLINE)]
    rate = (len(times) - 1) / (max(times) - min(times))
    assert 8.0 < rate <= 10.5
    assert {entry["attempt"] for entry in stage.entries(label)} == {1}
    assert len({entry["pid"] for entry in stage.entries(label)}) > 1  # of each worker one, at least
    stage.wait_no_message()


# --- one runs, one is queued

PRODUCERS = """
import multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
from tests.integration.apps.flow_jobs import app

fork, processes, threads = multiprocessing.get_context("fork"), 25, 2
barrier = fork.Barrier(processes)

def produce(process):
    barrier.wait()
    with ThreadPoolExecutor(threads) as pool:
        names = [f"{process}.{thread}" for thread in range(threads)]
        return [one.id for one in pool.map(lambda name: app.tasks["indexed"].delay(sys.argv[1], name), names)]

with fork.Pool(processes) as pool:
    print(*sum(pool.map(produce, range(processes), chunksize=1), []), sep="\\n")
"""


def test_fifty_producers_queue_one_job_behind_the_one_that_runs(app: Celery, stage: Stage, label: str) -> None:
    """One message, the newest arguments; it waits in no slot until the other has ended, and a third round follows."""
    first = app.tasks["indexed"].delay(label, "first")
    stage.wait_entries(label, 1, timeout=DEADLINE)
    environment = {**os.environ, **stage.environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRODUCERS, label]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (queued,) = set(run.stdout.split())
    assert len(stage.events("submitted", queued)) == 1
    stage.wait_event("queue_waits", queued, count=2, timeout=DEADLINE)
    newest = app.tasks["indexed"].delay(label, "newest")
    assert newest.id == queued != first.id
    stage.open(f"{label}:index")
    assert (first.get(timeout=DEADLINE), newest.get(timeout=DEADLINE)) == ("first", "newest")
    assert app.tasks["indexed"].delay(label, "again").get(timeout=DEADLINE) == "again"
    names = [(entry["name"], entry["step"]) for entry in stage.entries(label)]
    assert names == [(name, step) for name in ("first", "newest", "again") for step in ("start", "end")]
    stage.wait_no_message()


# --- budgets


def test_retries_beyond_the_budget_are_postponed_in_the_whole_fleet(app: Celery, stage: Stage, label: str) -> None:
    """Twelve jobs fail; of their retries ten run within the minute, whoever asks. The others wait, with nothing spent.

    The last of this module: they wait for up to a minute.
    """
    results = [app.tasks["calling_with_budget"].delay(label, str(number)) for number in range(12)]
    for result in results:
        stage.wait_event("budget_waits", result.id, timeout=DEADLINE)
    retries = [entry for entry in stage.entries(label) if entry["attempt"] > 1]
    assert len(retries) == FLOOR
    assert len({entry["pid"] for entry in stage.entries(label)}) > 1  # of each worker one, at least
    assert stage.messages()[1] == len(results)
    for result in results:
        runs = [entry["attempt"] for entry in stage.entries(label) if entry["task_id"] == result.id]
        assert runs == list(range(1, len(runs) + 1))
