"""A worker's wall clock is hours ahead: what waits is due by the store's clock, and nobody takes what another holds."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from tests.chaos.clocks import FakeClock
from tests.integration.apps.jobs import LEASE, QUICK
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
AHEAD = 7200.0  # seconds; more than kombu's visibility timeout
DEADLINE = 30.0
SOON = 1.5  # seconds


@pytest.fixture(scope="module", autouse=True)
def _workers(stage: Stage, module_workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start two workers, each with a queue of its own; one is two hours ahead."""
    clock = FakeClock(tmp_path_factory.mktemp("clocks"), "ahead")
    clock.set(AHEAD)
    for name, environment in (("ahead", clock.environment()), ("right", {})):
        env = {**stage.environment(), **environment}
        module_workers.start(APP, pool="threads", name=name, queues=[name], env=env, arguments=QUICK, ready=False)
    ahead, right = (worker.wait_ready() for worker in module_workers._started)
    assert clock_of(ahead) - clock_of(right) > timedelta(seconds=AHEAD / 2)


def clock_of(worker: Worker) -> datetime:
    """Return when a worker says that it wrote the first line of its log."""
    found = re.search(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),", worker.logs())
    assert found is not None
    return datetime.fromisoformat(found[1])


def test_a_retry_published_by_a_clock_ahead_is_not_late_elsewhere(app: Celery, stage: Stage, label: str) -> None:
    """Its ETA is two hours from now for the worker that receives it; the store knows better."""
    retry = {"countdown": SOON, "queue": "right"}
    app.tasks["asking"].apply_async((label, 1), retry, task_id=label, queue="ahead")
    first, second = stage.wait_entries(label, 2, timeout=DEADLINE)

    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["at"] - first["at"] >= SOON  # both processes read the same monotonic clock


def test_a_countdown_is_not_early_where_the_clock_is_ahead(app: Celery, stage: Stage, label: str) -> None:
    """By the clock of the worker that receives it, its ETA was two hours ago."""
    submitted = time.monotonic()
    app.tasks["add"].apply_async((1, label), countdown=SOON, queue="ahead")
    (entry,) = stage.wait_entries(label, 1, timeout=DEADLINE)

    assert entry["at"] - submitted > SOON / 2  # the store's clock is measured, within a round trip


def test_seconds_until_an_expiry_are_the_store_s(app: Celery, stage: Stage, label: str) -> None:
    """By the clock of the worker that receives it, and its retry, it has expired long ago."""
    app.tasks["asking"].apply_async((label, 1), {"countdown": 0.1}, task_id=label, queue="ahead", expires=60)

    assert [entry["attempt"] for entry in stage.wait_entries(label, 2, timeout=DEADLINE)] == [1, 2]


def test_an_expiry_that_a_retry_says_is_that_of_the_retry(app: Celery, label: str) -> None:
    """It ends before the retry is due; the one of the call would let it run."""
    retry = {"countdown": 0.2, "expires": 0.01}
    result = app.tasks["asking"].apply_async((label, 1), retry, task_id=label, queue="right", expires=60)

    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)


def test_a_worker_that_starts_with_a_clock_ahead_takes_no_message_of_another(
    app: Celery, stage: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """Kombu sweeps when it connects; what it does before its first task, it has done."""
    clock = FakeClock(tmp_path, "ahead")
    clock.set(AHEAD)
    app.tasks["held"].apply_async((label, label), task_id=label, queue="right")
    stage.wait_entries(label, 1)
    env = {**stage.environment(), **clock.environment()}
    workers.start(APP, pool="threads", queues=[label], env=env, arguments=QUICK)
    assert app.tasks["add"].apply_async((1, f"{label}:other"), queue=label).get(timeout=DEADLINE) == 2
    back, _ = stage.messages("right")  # the other one may not be acked yet
    stage.open(label)
    stage.wait_entries(label, 2)

    assert back == 0
    assert stage.events("stolen") == []


def test_a_clock_ahead_gives_no_message_to_a_second_worker(app: Celery, stage: Stage, label: str) -> None:
    """By its clock kombu's sweep takes all that the other one holds for lost; its own messages have scores of the future."""
    app.tasks["add"].apply_async((1, label), task_id=f"{label}:later", countdown=600, queue="ahead")
    app.tasks["held"].apply_async((label, label), task_id=label, queue="right")
    stage.wait_entries(label, 1)
    wait_until(lambda: stage.messages("ahead") == (0, 2), DEADLINE, "one message held by each")
    time.sleep(LEASE + 3)  # that they were not taken can only be seen by waiting past the moment
    waiting, out = stage.messages("right")
    stage.open(label)
    stage.wait_entries(label, 2)

    assert (waiting, out) == (0, 2)
    assert stage.events("stolen") == stage.events("restored") == []
