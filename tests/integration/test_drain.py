"""A worker that is told to stop: what waits goes back at once, what runs may end, what does not end goes back in time."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import process_table
from tests.integration.apps.stage import Stage
from tests.integration.conftest import stage_on
from tests.integration.drains import AFTER_TIMEOUT, SOON, Scene, figure, scene_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
BROKERS = ["redis", "rabbitmq"]
TIMEOUT = 1.0  # seconds of drain, where a test lets it pass
PATIENT = 60.0  # seconds of drain, where a test does not


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, module_redis: RedisServer) -> str:
    """The URL of each broker in turn."""
    if request.param == "redis":
        return f"{module_redis.url.removesuffix('/0')}/0"
    url: str = request.getfixturevalue("rabbitmq_server").url
    return url


def make_stage(module_redis: RedisServer, directory: Path, *, broker: str, timeout: float) -> Stage:
    """A stage whose workers drain for so long."""
    plain = stage_on(module_redis, directory=directory)
    return Stage(directory, broker=broker, backend=plain.backend, store=plain.store, conf={"reliable_drain_timeout": timeout})


@pytest.fixture
def patient(module_redis: RedisServer, tmp_path: Path, workers: Workers, broker: str) -> Iterator[Scene]:
    """Workers that let tasks run on for long."""
    with scene_on(make_stage(module_redis, tmp_path, broker=broker, timeout=PATIENT), workers) as scene:
        yield scene


@pytest.fixture
def hasty(module_redis: RedisServer, tmp_path: Path, workers: Workers, broker: str) -> Iterator[Scene]:
    """Workers that interrupt tasks after a second."""
    with scene_on(make_stage(module_redis, tmp_path, broker=broker, timeout=TIMEOUT), workers) as scene:
        yield scene


def wait_ended(worker: Worker, *, since: float, what: str) -> None:
    """Wait for the end of a worker whose timeout passes, and hold it to the promise."""
    assert worker.wait(TIMEOUT + AFTER_TIMEOUT + 5.0) == 0
    figure(what, time.monotonic() - since)
    assert time.monotonic() - since < TIMEOUT + AFTER_TIMEOUT + 0.2  # the last: to notice it


# --- hand over


@pytest.mark.parametrize("pool", POOLS)
def test_what_has_not_begun_goes_back_while_the_running_task_ends(patient: Scene, pool: str) -> None:
    """Prefetched, ETA and rate-limited messages are back at once; the worker ends with its last task."""
    worker = patient.start(pool, arguments=("--prefetch-multiplier", "4"))
    running = patient.running("gated")
    others = [patient.send("gated") for _ in range(2)]
    others += [patient.send("gated", countdown=600) for _ in range(2)]

    if pool == "prefork":
        patient.held(worker)
    worker.terminate()
    figure("messages back", patient.wait_waiting(len(others), "all that did not run"))
    assert patient.steps(running) == ["start"]

    patient.stage.open(running)
    assert worker.wait(SOON) == 0
    end = patient.step(running, "end")
    figure("exit after the last task", time.monotonic() - end["at"])
    assert end["draining"] is True
    assert patient.waiting() == len(others)
    assert [patient.steps(label) for label in others] == [[]] * len(others)
    assert patient.unacked() in {0, None}


# --- the timeout


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_that_still_runs_at_the_timeout_saves_and_goes_on_elsewhere(hasty: Scene, pool: str) -> None:
    """`Draining` is raised in it; the message is back; the next run has the checkpoint, and nothing was spent."""
    worker = hasty.start(pool)
    label = hasty.running("saving")

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what="exit at the timeout")

    assert hasty.steps(label) == ["start", "interrupted"]
    hasty.wait_waiting(1, "the interrupted message")
    start = hasty.finish_elsewhere(label)
    assert (start["saved"], start["attempt"], hasty.delivery(label)) == ("interrupted", 1, [1, 1])
