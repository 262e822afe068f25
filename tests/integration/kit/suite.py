"""What somebody's test suite may be who uses the fixtures. Run by `test_pytest_plugin` with a pytest of its own."""

from __future__ import annotations

import os

import pytest

from celery_reliable.testing import StartBeat, StartWorker
from celery_reliable.testing.servers import RedisServer
from celery_reliable.testing.waiting import wait_until
from tests.integration.kit.shop import NOWHERE, app, count, tick, whoami

SHOP = "tests.integration.kit.shop"
DEADLINE = 30.0


def test_killed_worker(reliable_worker: StartWorker) -> None:
    """Its job goes on in another one, from the last checkpoint."""
    first = reliable_worker(SHOP)
    result = count.delay(30)
    first.wait_log("counts page 3.")
    first.kill9()
    assert not first.running
    second = reliable_worker(SHOP, concurrency=2, conf={"worker_prefetch_multiplier": 2})
    assert result.get(timeout=DEADLINE) == 30
    assert "counts page 1." not in second.logs()
    assert len(second.children) == 2
    assert second.stop() == 0


def test_faults_that_pass(reliable_worker: StartWorker, reliable_redis: RedisServer) -> None:
    """Frozen, cut off from broker and store, the server restarted: the worker is the same one, and works."""
    worker = reliable_worker(SHOP, pool="threads", queues=["celery", "other"])
    assert whoami.delay().get(timeout=DEADLINE) == worker.pid
    worker.freeze()
    result = whoami.apply_async(queue="other")
    worker.thaw()
    assert result.get(timeout=DEADLINE) == worker.pid
    with worker.broker_down():
        result = whoami.delay()
        worker.wait_log("Connection to broker lost")
        assert not result.ready()
    assert result.get(timeout=DEADLINE) == worker.pid
    with worker.store_down():
        result = whoami.delay()
        worker.wait_log("store unavailable")
        assert not result.ready()
    assert result.get(timeout=DEADLINE) == worker.pid
    reliable_redis.restart()
    assert whoami.delay().get(timeout=DEADLINE) == worker.pid
    worker.term()
    assert worker.wait() == 0


def test_two_beats(reliable_worker: StartWorker, reliable_beat: StartBeat) -> None:
    """One leads, the other stands by until the first is gone."""
    schedule = {"beat_schedule": {"tick": {"task": tick.name, "schedule": 1.0}}}
    worker = reliable_worker(SHOP, pool="solo")
    first = reliable_beat(SHOP, conf={**schedule, "reliable_leader_ttl": 3})
    second = reliable_beat(SHOP, conf={**schedule, "reliable_leader_ttl": 3}, ready=False)
    worker.wait_log("ticks.")
    first.kill9()
    second.wait_ready()
    ticks = worker.logs().count("ticks.")
    wait_until(lambda: worker.logs().count("ticks.") > ticks, DEADLINE, "a tick of the second beat")


class TestOnAnotherBroker:
    """A project on RabbitMQ overrides one fixture."""

    @pytest.fixture
    def reliable_broker_url(self) -> str:
        """A RabbitMQ that runs already."""
        return os.environ["KIT_RABBITMQ"]

    def test_cut_off(self, reliable_worker: StartWorker) -> None:
        """A job that was under way is done once, and its worker consumes again."""
        worker = reliable_worker(SHOP, pool="threads", concurrency=2)
        result = count.delay(20)
        worker.wait_log("counts page 1.")
        with worker.broker_down():
            worker.wait_log("Connection to broker lost")
        assert result.get(timeout=DEADLINE) == 20
        assert whoami.delay().get(timeout=DEADLINE) == worker.pid
        assert worker.logs().count("counts page 0.") == 1


def test_settings_are_the_project_s_own_again() -> None:
    """Whatever ran before; the variable that wins over the first of them, too."""
    assert app.conf["broker_url"] == app.conf.result_backend == app.conf.reliable_store_url == NOWHERE
    assert app.conf.broker_url == os.environ["CELERY_BROKER_URL"]
    assert app.conf.reliable_lease_ttl == 15
