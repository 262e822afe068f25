"""Run the store contract on real servers: Redis, Valkey, a cluster, Sentinel and TLS."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from redis import Redis

pytest.register_assert_rewrite("tests.store_contract")

from celery_reliable.stores import open_store  # noqa: E402  # the contract's asserts must be rewritten first
from celery_reliable.stores.redis import RedisStore  # noqa: E402
from celery_reliable.testing.servers import ExternalServer  # noqa: E402
from tests.store_contract import StoreContract, StoreUnderTest  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

TICK = 0.2  # seconds: a lease must end within a test, on a server that nobody can hurry


@contextlib.contextmanager
def _under_test(url: str) -> Iterator[StoreUnderTest]:
    """Give a store whose keys nobody else uses; its time is the server's, so passing it means waiting."""
    with contextlib.closing(open_store(url, key_prefix=f"cr-test-{uuid.uuid4().hex}:")) as store:
        yield StoreUnderTest(store=store, elapse=time.sleep, tick=TICK)


def _expect(server: servers.Server | servers.ExternalServer, *, name: str, at_least: int) -> None:
    """Look at what the server says it is: the lookup may find one for the other. One that the environment names is used as it is."""
    if isinstance(server, ExternalServer):
        return
    with contextlib.closing(Redis.from_url(server.url)) as client:
        facts = client.info("server")
    found = "valkey" if "valkey_version" in facts else "redis"
    version = str(facts[f"{found}_version"])
    assert (found, int(version.split(".", maxsplit=1)[0]) >= at_least) == (name, True), (
        f"expected {name} {at_least} or newer, found {found} {version}; install it, or see CONTRIBUTING.md, Servers"
    )


class RedisContract(StoreContract):
    """What is promised of the Redis store besides."""

    def test_the_layout_is_noted_once(self, harness: StoreUnderTest) -> None:
        """A look at an empty store notes ours, and newer code's stays."""
        store = harness.store
        assert isinstance(store, RedisStore)
        key = store._keys.layout
        assert [store.newer_layout(), store._link.command("GET", key, key=key)] == ["", b"1"]
        store._link.command("SET", key, "2", key=key)
        assert "upgrade celery-reliable" in store.newer_layout()
        assert store._link.command("GET", key, key=key) == b"2"


class TestRedisStore(RedisContract):
    """The contract on Redis 7."""

    def test_the_server_is_a_redis(self, redis_server: servers.Server | servers.ExternalServer) -> None:
        """And no Valkey, which the lookup takes where there is no Redis."""
        _expect(redis_server, name="redis", at_least=7)

    @pytest.fixture
    def harness(self, redis_server: servers.Server | servers.ExternalServer) -> Iterator[StoreUnderTest]:
        """A store on the shared Redis."""
        with _under_test(redis_server.url) as harness:
            yield harness


class TestValkeyStore(RedisContract):
    """The contract on Valkey 9."""

    def test_the_server_is_a_valkey(self, valkey_server: servers.RedisServer) -> None:
        """Of this version, whatever else the machine has."""
        _expect(valkey_server, name="valkey", at_least=9)

    @pytest.fixture
    def harness(self, valkey_server: servers.RedisServer) -> Iterator[StoreUnderTest]:
        """A store on the shared Valkey."""
        with _under_test(valkey_server.url) as harness:
            yield harness


class TestClusterStore(RedisContract):
    """The contract on a cluster of three nodes."""

    @pytest.fixture(scope="class")
    def shared(self, redis_cluster: servers.RedisCluster) -> Iterator[StoreUnderTest]:
        """One store for all tests: a client of a cluster takes half a second to learn its nodes."""
        with _under_test(redis_cluster.url.replace("redis://", "redis+cluster://", 1)) as harness:
            yield harness

    @pytest.fixture
    def harness(self, shared: StoreUnderTest, redis_cluster: servers.RedisCluster) -> StoreUnderTest:
        """The shared store on an empty cluster."""
        redis_cluster.flush()
        return shared


class TestSentinelStore(RedisContract):
    """The contract on the master that Sentinel names."""

    @pytest.fixture
    def harness(self, redis_sentinel: servers.RedisSentinel) -> Iterator[StoreUnderTest]:
        """A store behind the shared Sentinel."""
        hosts = ",".join(f"{host}:{port}" for host, port in redis_sentinel.addresses)
        with _under_test(f"sentinel://{hosts}/{redis_sentinel.master_name}") as harness:
            yield harness


class TestTlsStore(StoreContract):
    """The contract on a Redis that speaks TLS only."""

    @pytest.fixture
    def harness(self, redis_tls: servers.RedisTlsServer) -> Iterator[StoreUnderTest]:
        """A store on the shared TLS server, whose certificate is verified."""
        with _under_test(f"{redis_tls.url}?ssl_ca_certs={quote(str(redis_tls.ca_file))}") as harness:
            yield harness
