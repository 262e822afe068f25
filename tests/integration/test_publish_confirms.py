"""A call that returned is in the queue, whatever the network did meanwhile."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.testing.faultproxy import FaultProxy
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

DEADLINE = 30.0


@pytest.fixture
def proxy(rabbitmq_server: servers.Server) -> Iterator[FaultProxy]:
    """The network between producer and RabbitMQ."""
    with FaultProxy(rabbitmq_server.port) as proxy:
        yield proxy


@pytest.fixture
def queue() -> str:
    """A queue that no worker consumes."""
    return uuid.uuid4().hex


@pytest.fixture
def app(proxy: FaultProxy, redis_url: str, queue: str, tmp_path: Path) -> Iterator[Celery]:
    """A producer behind the network, with a connection to RabbitMQ that has been used."""
    broker = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
    with client(Stage(tmp_path, broker=broker, backend=redis_url, store=redis_url), broker_connection_timeout=1) as app:
        app.tasks["add"].apply_async((1, "first"), queue=queue)
        yield app


def waiting(server: servers.Server, queue: str) -> int:
    """How many messages a queue has, asked past the proxy."""
    with Connection(server.url) as connection:
        count: int = connection.default_channel.queue_declare(queue, passive=True).message_count
        return count


def test_a_publish_that_the_network_swallowed_is_published_again(
    app: Celery, proxy: FaultProxy, queue: str, rabbitmq_server: servers.Server
) -> None:
    """G1 on RabbitMQ: written to a socket is not accepted; the call returns when the broker has confirmed."""
    proxy.blackhole()
    call = threading.Thread(target=app.tasks["add"].apply_async, args=((1, "second"),), kwargs={"queue": queue})
    call.start()
    call.join(1.0)
    proxy.down()
    proxy.heal()
    call.join(DEADLINE)
    assert not call.is_alive()
    wait_until(lambda: waiting(rabbitmq_server, queue) >= 2, DEADLINE, "the second message in the queue")


def test_a_publish_that_is_not_confirmed_in_time_is_refused(app: Celery, proxy: FaultProxy, queue: str) -> None:
    """The caller does not wait for ever, and is told no: nothing of it will run, should the message have arrived."""
    job = uuid.uuid4().hex
    proxy.blackhole()
    with pytest.raises(OperationalError, match="timed out"):
        app.tasks["add"].apply_async((1, "second"), queue=queue, task_id=job, retry_policy={"max_retries": 1})
    assert runtime_of(app).store.inspect(Job(job, "given"))["reason"] == "withdrawn"
