"""Drains while broker or store are dead or frozen: the exit is in time, and nothing is lost or counted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK
from tests.integration.drains import APP, SOON, Scene, scene_on, stage_of_drain, wait_ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
TIMEOUT = 3.0


@pytest.fixture
def private_rabbitmq() -> Iterator[servers.Server]:
    """A RabbitMQ of this test alone."""
    with servers.start_rabbitmq() as server:
        yield server


Build = Callable[..., "AbstractContextManager[Scene]"]


@pytest.fixture
def scene(module_redis: servers.RedisServer, tmp_path: Path, workers: Workers) -> Build:
    """Make a scene of which one server is the test's own, given as ``broker=`` or as a setting."""

    @contextlib.contextmanager
    def build(*, broker: str = f"{module_redis.url.removesuffix('/0')}/0", **settings: str) -> Iterator[Scene]:
        stage = stage_of_drain(module_redis, tmp_path, broker=broker, timeout=TIMEOUT)
        stage.conf.update(settings)  # type: ignore[attr-defined]  # a dict here
        with scene_on(stage, workers) as made:
            yield made

    return build


@pytest.mark.parametrize("harm", ["kill", "freeze"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_broker_that_is_gone_does_not_hold_the_exit(
    scene: Build, private_redis: servers.RedisServer, pool: str, harm: str
) -> None:
    """Gone while the last task runs: it ends, its outcome is stored, and the worker ends with code 0 in time."""
    with scene(broker=private_redis.url) as there:
        worker = there.start(pool)
        label = there.running("gated")
        began = time.monotonic()
        worker.terminate()
        worker.wait_log("messages handed back")
        getattr(private_redis, harm)()
        there.stage.open(label)

        wait_ended(worker, since=began, what=f"exit, broker: {harm}", timeout=TIMEOUT)
        assert there.steps(label) == ["start", "end"]
        there.stage.wait_event("done", there.step(label, "end")["task_id"])


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_never_reached_its_broker_can_be_stopped(scene: Build, workers: Workers, pool: str) -> None:
    """Long before the timeout: it holds nothing."""
    with scene() as there:
        environment = there.stage.environment()
        environment["CR_STAGE"] = environment["CR_STAGE"].replace(there.stage.broker, "redis://127.0.0.1:1/0")
        worker = workers.start(APP, pool=pool, env=environment, arguments=QUICK, ready=False)
        worker.wait_log("Cannot connect", timeout=SOON)
        assert worker.stop(timeout=SOON) == 0


@pytest.mark.parametrize("harm", ["kill", "freeze"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_broker_that_is_gone_before_the_signal_does_not_hold_the_exit(
    scene: Build, private_redis: servers.RedisServer, pool: str, harm: str
) -> None:
    """Nothing can be handed back; the running body is interrupted all the same."""
    with scene(broker=private_redis.url) as there:
        worker = there.start(pool)
        label = there.running("saving")
        getattr(private_redis, harm)()

        began = time.monotonic()
        worker.terminate()
        wait_ended(worker, since=began, what=f"exit, broker before: {harm}", timeout=TIMEOUT)
        assert there.steps(label)[0] == "start"


@pytest.mark.parametrize("harm", ["kill", "freeze"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_rabbitmq_that_is_gone_does_not_hold_the_exit(
    scene: Build, private_rabbitmq: servers.Server, pool: str, harm: str
) -> None:
    """The same on the other broker."""
    with scene(broker=private_rabbitmq.url) as there:
        worker = there.start(pool)
        label = there.running("gated")
        began = time.monotonic()
        worker.terminate()
        worker.wait_log("messages handed back")
        getattr(private_rabbitmq, harm)()
        there.stage.open(label)
        wait_ended(worker, since=began, what=f"exit, rabbitmq: {harm}", timeout=TIMEOUT)
        assert there.steps(label) == ["start", "end"]


@pytest.mark.parametrize("harm", ["kill", "freeze"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_store_that_is_gone_does_not_hold_the_exit(
    scene: Build, private_redis: servers.RedisServer, pool: str, harm: str
) -> None:
    """The message is back with the broker; when the store is back, the job runs again and ends."""
    with scene(reliable_store_url=private_redis.url) as there:
        worker = there.start(pool)
        there.running("saving")
        getattr(private_redis, harm)()

        began = time.monotonic()
        worker.terminate()
        wait_ended(worker, since=began, what=f"exit, store: {harm}", timeout=TIMEOUT)
        wait_until(lambda: there.waiting() == 1, SOON, "the message to be back")
