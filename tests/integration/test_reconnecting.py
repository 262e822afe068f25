"""A worker that lost its connection to RabbitMQ consumes on, in pools whose tasks end in threads of their own."""

from __future__ import annotations

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
