"""Drains while broker or store are dead or frozen: the exit is in time, and nothing is lost or counted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from celery_reliable.testing.faultproxy import FaultProxy
from tests.integration.apps.jobs import QUICK
from tests.integration.drains import APP, SOON, Scene, scene_on, stage_of_drain, wait_ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing import servers
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

TIMEOUT = 1.0

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


@pytest.fixture
def proxied_rabbitmq(rabbitmq_server: servers.Server) -> Iterator[tuple[str, FaultProxy]]:
    """A way to the shared RabbitMQ that a test may cut."""
    url = urlsplit(rabbitmq_server.url)
    assert url.port is not None
    with FaultProxy(url.port) as proxy:
        yield rabbitmq_server.url.replace(f":{url.port}", f":{proxy.port}"), proxy


def drain_to_the_end(there: Scene, harm: Callable[[], None], *, pool: str, what: str) -> None:
    """Let the broker go while a worker drains: its last task ends all the same, and its outcome is stored."""
    worker = there.start(pool)
    label = there.running("gated")
    began = time.monotonic()
    worker.terminate()
    worker.wait_log("messages handed back")
    harm()
    there.stage.open(label)

    wait_ended(worker, since=began, what=what, timeout=TIMEOUT)
    assert there.steps(label) == ["start", "end"]
    there.stage.wait_event("done", there.step(label, "end")["task_id"])


@pytest.mark.parametrize(
    ("pool", "harm"), [("prefork", "freeze"), ("gevent", "kill"), ("threads", "freeze"), ("eventlet", "kill")]
)
def test_a_broker_that_goes_in_a_drain_does_not_hold_the_exit(
    scene: Build, private_redis: servers.RedisServer, pool: str, harm: str
) -> None:
    """Redis, dead or frozen."""
    with scene(broker=private_redis.url) as there:
        drain_to_the_end(there, getattr(private_redis, harm), pool=pool, what=f"exit, broker: {harm}")


@pytest.mark.parametrize(("pool", "harm"), [("prefork", "blackhole"), ("gevent", "blackhole"), ("threads", "down")])
def test_a_rabbitmq_that_goes_in_a_drain_does_not_hold_the_exit(
    scene: Build, proxied_rabbitmq: tuple[str, FaultProxy], pool: str, harm: str
) -> None:
    """The same on the other broker, out of reach."""
    url, proxy = proxied_rabbitmq
    with scene(broker=url) as there:
        drain_to_the_end(there, getattr(proxy, harm), pool=pool, what=f"exit, rabbitmq: {harm}")
        proxy.heal()


@pytest.mark.parametrize(("pool", "harm"), [("prefork", "kill"), ("gevent", "freeze"), ("solo", "freeze")])
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


@pytest.mark.parametrize(("pool", "harm"), [("prefork", "freeze"), ("gevent", "freeze"), ("threads", "kill")])
def test_a_store_that_is_gone_does_not_hold_the_exit(
    scene: Build, private_redis: servers.RedisServer, pool: str, harm: str
) -> None:
    """The message is back with the broker, for when the store is back."""
    with scene(reliable_store_url=private_redis.url) as there:
        worker = there.start(pool)
        there.running("saving")
        getattr(private_redis, harm)()

        began = time.monotonic()
        worker.terminate()
        wait_ended(worker, since=began, what=f"exit, store: {harm}", timeout=TIMEOUT)
        wait_until(lambda: there.waiting() == 1, SOON, "the message to be back")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_that_never_reached_its_broker_can_be_stopped(scene: Build, workers: Workers, pool: str) -> None:
    """Long before the timeout: it holds nothing."""
    with scene() as there:
        environment = there.stage.environment()
        environment["CR_STAGE"] = environment["CR_STAGE"].replace(there.stage.broker, "redis://127.0.0.1:1/0")
        worker = workers.start(APP, pool=pool, env=environment, arguments=QUICK, ready=False)
        worker.wait_log("Cannot connect", timeout=SOON)
        assert worker.stop(timeout=SOON) == 0
