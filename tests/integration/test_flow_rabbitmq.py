"""Breakers, limits, rates and budgets with messages that wait on RabbitMQ."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.flow.budgets import FLOOR
from tests.integration.apps.flow_jobs import CONF, add_tasks
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.flows import DEADLINE, flood_past_a_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import ExternalServer, RedisServer, Server
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.flow_jobs"


@pytest.fixture(scope="module")
def stage(
    module_redis: RedisServer,
    rabbitmq_server: Server | ExternalServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """A queue of its own on RabbitMQ; store and results on Redis."""
    conf = {**CONF, "task_default_queue": f"flow-{uuid.uuid4().hex}"}
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=conf)
    return dataclasses.replace(stage, broker=rabbitmq_server.url)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app to submit with."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """One worker with four children."""
    return module_workers.start(APP, concurrency=4, env=stage.environment(), arguments=QUICK)


def attempts(stage: Stage, label: str) -> dict[str, list[int]]:
    """Return the attempts of each job, in order."""
    entries = stage.entries(label)
    ids = dict.fromkeys(entry["task_id"] for entry in entries)
    return {task_id: [one["attempt"] for one in entries if one["task_id"] == task_id] for task_id in ids}


def test_a_failing_dependency_is_probed_and_nothing_is_lost(app: Celery, stage: Stage, label: str) -> None:
    """More jobs than the worker prefetches wait, with no attempt spent, and all end well."""
    results = [app.tasks["calling_bank"].delay(label, str(number)) for number in range(12)]
    for result in results:
        stage.wait_event("breaker_waits", result.id, timeout=DEADLINE)
    stage.open(f"{label}:well")
    assert sorted(result.get(timeout=DEADLINE) for result in results) == sorted(map(str, range(12)))
    assert all(one == list(range(1, len(one) + 1)) for one in attempts(stage, label).values())
    assert [event["by"] for event in stage.events("breaker_closed")] == ["probes"]


def test_a_limit_holds_and_blocks_nobody_else(app: Celery, stage: Stage, label: str) -> None:
    """Twelve jobs of one tenant wait in no slot: another tenant's runs meanwhile; each has spent one attempt."""
    flood_past_a_limit(app, stage, label, seconds=0.1)
    assert set(map(tuple, attempts(stage, label).values())) == {(1, 1)}


def test_a_rate_holds(app: Celery, stage: Stage, label: str) -> None:
    """Sixteen jobs at ten a second on four slots: never more than 5 % too many, and each with one attempt."""
    for _ in range(16):
        app.tasks["mailed"].delay(label)
    times = [entry["at"] for entry in stage.wait_entries(label, 16, timeout=DEADLINE)]
    assert (len(times) - 1) / (max(times) - min(times)) <= 10.5
    assert set(map(tuple, attempts(stage, label).values())) == {(1,)}


def test_retries_beyond_the_budget_are_postponed(app: Celery, stage: Stage, label: str) -> None:
    """Twelve jobs fail; of their retries ten run within the minute. The others wait, with nothing spent.

    The last of this module: they wait for up to a minute.
    """
    results: list[Any] = [app.tasks["calling_with_budget"].delay(label, str(number)) for number in range(12)]
    for result in results:
        stage.wait_event("budget_waits", result.id, timeout=DEADLINE)
    found = attempts(stage, label).values()
    assert sum(len(one) - 1 for one in found) == FLOOR
    assert all(one == list(range(1, len(one) + 1)) for one in found)
