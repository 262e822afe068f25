"""Servers for the tests: real, private, started when first asked for, one set per xdist process.

A server that is missing fails the tests that need it, with the lines that install it; it never skips them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis

from celery_reliable.testing import servers
from tests.forking import spare_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

S = TypeVar("S")
# Files that take longer than half a minute, the longest first: none of them is begun when all else is done.
LONGEST = (
    "test_every_pool",
    "test_recovery",
    "test_heartbeat",
    "test_drain",
    "test_demo",
    "test_chaos_smoke",
    "test_redis_store",
    "test_intake",
    "test_drain_outages",
    "test_drain_signals",
    "test_drain_stuck",
    "test_store_outages",
    "test_cli_dlq",
    "test_redis_restart",
    "test_pytest_plugin",
    "test_docs_examples",
    "test_retries_acting",
    "test_beat",
    "test_servers",
    "test_replay_of_outcome",
    "test_overlap",
    "test_flow",
    "test_demo_django",
)
SHARED = ("CR_TEST_REDIS_URL", "CR_TEST_RABBITMQ_URL", "CR_TEST_POSTGRES_URL", "CR_TEST_MARIADB_URL")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a shared server for parallel tests: each process empties the database it uses."""
    spare_connections()
    named = [name for name in SHARED if os.environ.get(name)]
    if named and config.getoption("numprocesses", default=None):
        message = f"{' and '.join(named)} would be shared by all xdist processes; unset that or run with -n 0"
        raise pytest.UsageError(message)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # in the background of a script; what we start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, and end with the unit tests, which fill what is left of the other processes' time."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    name = item.path.stem
    if name in LONGEST and "integration" in item.path.parts:
        return LONGEST.index(name)
    return len(LONGEST) + ("unit" in item.path.parts)


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
