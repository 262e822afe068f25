"""The network faults that other tests rely on."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_reliable.testing.faultproxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing.servers import RedisServer

pytestmark = pytest.mark.integration
NO_RETRY = Retry(NoBackoff(), 0)


@pytest.fixture
def proxy(private_redis: RedisServer) -> Iterator[FaultProxy]:
    """A proxy in front of a Redis."""
    with FaultProxy(private_redis.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A connected client behind the proxy that neither waits long nor tries again."""
    with closing(redis.Redis(port=proxy.port, socket_timeout=0.5, retry=NO_RETRY)) as client:
        client.ping()
        yield client


def test_latency_holds_every_answer_back(proxy: FaultProxy, client: redis.Redis) -> None:
    """A round trip takes the latency twice."""
    proxy.latency(0.1)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.2


def test_a_blackhole_answers_nothing_on_old_and_new_connections(proxy: FaultProxy, client: redis.Redis) -> None:
    """Clients see no error but their own timeout."""
    proxy.blackhole()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    with (
        closing(redis.Redis(port=proxy.port, socket_timeout=0.2, retry=NO_RETRY)) as other,
        pytest.raises(redis.TimeoutError),
    ):
        other.ping()


def test_a_reset_breaks_open_connections_and_takes_new_ones(proxy: FaultProxy, client: redis.Redis) -> None:
    """The open connection ends with an error, the next one works."""
    pinned = client.connection_pool.get_connection()
    proxy.reset()
    with pytest.raises(redis.ConnectionError):
        _ping(pinned)
    client.connection_pool.release(pinned)
    pinned.disconnect()
    assert client.ping()


def test_a_proxy_that_is_down_refuses_until_it_is_up(proxy: FaultProxy, client: redis.Redis) -> None:
    """A server that is gone refuses connections, and is back on the same port."""
    proxy.down()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    proxy.up()
    assert client.ping()


def test_heal_ends_every_fault(proxy: FaultProxy, client: redis.Redis) -> None:
    """Whatever was switched on, the client is served again."""
    proxy.latency(5)
    proxy.blackhole()
    proxy.down()
    proxy.heal()
    assert client.ping()


def _ping(connection: redis.Connection) -> object:
    connection.send_command("PING")
    return connection.read_response()
