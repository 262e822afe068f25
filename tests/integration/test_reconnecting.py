"""A worker that lost its connection to RabbitMQ consumes on, and keeps what it runs."""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.faultproxy import FaultProxy
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery_reliable.testing import servers
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

DEADLINE = 30.0
SLOTS = 2
FORMAT = "%(threadName)s said: %(message)s"
SAID = re.compile(r"(\S+) said: basic.qos: prefetch_count->(\d+)")


def test_only_the_loop_tells_rabbitmq_the_prefetch_count(
    rabbitmq_server: servers.Server, redis_url: str, workers: Workers, tmp_path: Path, label: str
) -> None:
    """After a reconnect Celery raises it where a task ends: with two readers of one connection both could wait for ever."""
    conf = {"task_default_queue": f"reconnecting-{uuid.uuid4().hex}", "worker_log_format": FORMAT}
    with FaultProxy(rabbitmq_server.port) as proxy:
        broker = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
        stage = Stage(tmp_path, broker=broker, backend=redis_url, store=redis_url, conf=conf)
        worker = workers.start(
            "tests.integration.apps.worker",
            pool="threads",
            concurrency=SLOTS,
            env=stage.environment(),
            arguments=[*QUICK, "--loglevel", "DEBUG"],
        )
        with client(stage) as app:
            result = app.tasks["held"].delay(label, label)
            stage.wait_entries(label, 1)
            proxy.down()
            worker.wait_log("Temporarily reducing the prefetch count to 1")
            stage.open(label)
            stage.wait_entries(label, 2)
            proxy.up()
            result.get(timeout=DEADLINE)
            for number in range(SLOTS):
                assert app.tasks["add"].delay(number, label).get(timeout=DEADLINE) == number + 1
            wait_until(
                lambda: str(SLOTS) in dict(SAID.findall(worker.logs())).values(), DEADLINE, "the full prefetch count"
            )
        assert {thread for thread, _ in SAID.findall(worker.logs())} == {"MainThread"}


def test_a_green_worker_without_its_broker_keeps_its_leases(
    rabbitmq_server: servers.Server, redis_url: str, workers: Workers, tmp_path: Path, label: str
) -> None:
    """RabbitMQ gives its message to the next worker at once; that one may begin when the lease has ended, and not before."""
    conf = {"task_default_queue": f"reconnecting-{uuid.uuid4().hex}", "reliable_lease_ttl": 3.0}
    stage = Stage(tmp_path, broker=rabbitmq_server.url, backend=redis_url, store=redis_url, conf=conf)
    with FaultProxy(rabbitmq_server.port) as proxy:
        behind = dataclasses.replace(stage, broker=f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        app_module = "tests.integration.apps.worker"
        green = workers.start(app_module, pool="gevent", env=behind.environment(), arguments=QUICK)
        with client(stage) as app:
            result = app.tasks["held"].delay(label, label, "done")
            stage.wait_entries(label, 1)
            workers.start(app_module, pool="threads", env=stage.environment(), arguments=QUICK)
            proxy.down()
            # It tries again after 2, 4 and 6 seconds: between the last two the lease would end.
            wait_until(lambda: green.logs().count("Cannot connect") > 3, DEADLINE, "the fourth try to connect")
            stage.open(label)
            assert result.get(timeout=DEADLINE) == "done"
            proxy.up()
        assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
