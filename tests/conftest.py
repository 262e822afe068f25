"""Servers for the tests: real, private, started when first asked for, one set per xdist process.

A server that is missing fails the tests that need it, with the lines that install it; it never skips them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis

from celery_reliable.testing import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

S = TypeVar("S")
SHARED = ("CR_TEST_REDIS_URL", "CR_TEST_RABBITMQ_URL", "CR_TEST_POSTGRES_URL", "CR_TEST_MARIADB_URL")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a shared server for parallel tests: each process empties the database it uses."""
    named = [name for name in SHARED if os.environ.get(name)]
    if named and config.getoption("numprocesses", default=None):
        message = f"{' and '.join(named)} would be shared by all xdist processes; unset that or run with -n 0"
        raise pytest.UsageError(message)


def _serve(start: Callable[[], AbstractContextManager[S]]) -> Iterator[S]:
    with start() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Server | servers.ExternalServer]:
    """A Redis for all tests of this process. Tests that break their server take `private_redis`."""
    with servers.use_redis() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[servers.RedisServer]:
    """A Valkey for all tests of this process."""
    yield from _serve(servers.start_valkey)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[servers.RedisCluster]:
    """A Redis Cluster of three masters for all tests of this process."""
    yield from _serve(servers.start_redis_cluster)


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[servers.RedisSentinel]:
    """A master, a replica and one sentinel for all tests of this process."""
    yield from _serve(servers.start_redis_sentinel)


@pytest.fixture(scope="session")
def redis_tls() -> Iterator[servers.RedisTlsServer]:
    """A Redis behind TLS for all tests of this process."""
    yield from _serve(servers.start_redis_tls)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[servers.Server | servers.ExternalServer]:
    """A RabbitMQ for all tests of this process. Tests use queue names of their own."""
    with servers.use_rabbitmq() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Server | servers.ExternalServer]:
    """A PostgreSQL for all tests of this process. Tests use schemas of their own."""
    with servers.use_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[servers.Server | servers.ExternalServer]:
    """A MariaDB for all tests of this process. Tests use prefixes of their own."""
    with servers.use_mariadb() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: servers.Server | servers.ExternalServer) -> str:
    """The URL of a running Redis whose database is empty."""
    redis_server.revive()
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as client:
        client.flushall() if isinstance(redis_server, servers.Server) else client.flushdb()
    return redis_server.url


@pytest.fixture
def private_redis() -> Iterator[servers.RedisServer]:
    """A Redis of this test alone, to be killed, frozen and restarted."""
    yield from _serve(servers.start_redis)
