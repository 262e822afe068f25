"""A task that may take its process with it once more runs where it takes no neighbours along."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pytest

from celery_reliable import Permanent
from tests.integration.apps.jobs import QUICK, letter
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stage(request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage whose suspects have a queue of their own."""
    module_redis.flush()
    name = uuid.uuid4().hex
    conf = {"task_default_queue": name, "reliable_quarantine_queue": f"{name}-quarantine"}
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp(name), conf=conf)
    if request.param == "rabbitmq":
        return dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    return stage


@pytest.fixture(scope="module", autouse=True)
def usual(stage: Stage, module_workers: Workers) -> Iterator[Worker]:
    """The worker that everything is sent to."""
    worker = module_workers.start(APP, env=stage.environment(), arguments=QUICK, name=f"usual-{uuid.uuid4().hex[:6]}")
    yield worker
    worker.kill()


@pytest.fixture(scope="module", autouse=True)
def lonely(stage: Stage, module_workers: Workers) -> Iterator[Worker]:
    """The worker of the quarantine queue."""
    queues = [str(stage.conf["reliable_quarantine_queue"])]
    name = f"lonely-{uuid.uuid4().hex[:6]}"
    worker = module_workers.start(APP, env=stage.environment(), arguments=QUICK, name=name, queues=queues)
    yield worker
    worker.kill()


def test_suspect_runs_in_quarantine(app: Celery, stage: Stage, lonely: Worker, label: str) -> None:
    """After one death of two that are allowed it moves, under its own id; the move is no delivery."""
    result = app.tasks["suicidal"].apply_async((label, 1), task_id=label)

    assert result.get(timeout=DEADLINE) == 1
    first, second = stage.entries(label)
    assert first["pid"] not in lonely.children
    assert second["pid"] in lonely.children
    claims = [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)]
    assert claims == [(1, 1), (1, 2)]
    assert len(stage.events("quarantined", label)) == 1


def test_suspect_that_dies_again_is_poison(app: Celery, stage: Stage, lonely: Worker, label: str) -> None:
    """Its last delivery was the quarantine's: a letter, and the usual worker saw one death alone."""
    before = set(lonely.children)
    result = app.tasks["suicidal"].apply_async((label, 99), task_id=label)

    with pytest.raises(Permanent, match="claimed 2 times without a verdict"):
        result.get(timeout=DEADLINE)
    assert [letter(app, stage, label).reason, len(stage.entries(label))] == ["poison", 2]
    assert [entry["pid"] in before for entry in stage.entries(label)] == [False, True]


def test_suspect_is_not_lost_or_doubled_when_its_mover_dies(app: Celery, stage: Stage, label: str) -> None:
    """Killed after the publish, before the ack: the message comes back, and its copy runs once."""
    stage.plan("quarantined", label, "kill")
    result = app.tasks["suicidal"].apply_async((label, 1), task_id=label)

    assert result.get(timeout=DEADLINE) == 1
    stage.wait_met("quarantined", label)
    assert len(stage.entries(label)) == 2
