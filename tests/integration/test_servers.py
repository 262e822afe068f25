"""The servers that other tests stand on: each kind starts, answers, survives a kill with its data, and is reaped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest
import redis
import sqlalchemy
from kombu import Connection, pools

from celery_reliable.testing import servers
from celery_reliable.testing.processes import family, process_table
from celery_reliable.testing.servers.process import private_directory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration
T = TypeVar("T")


def _client(url: str, **options: object) -> redis.Redis:
    return redis.Redis.from_url(url, retry=None, socket_timeout=0.3, decode_responses=True, **options)


def _alive(pid: int) -> bool:
    return any(entry.pid == pid for entry in process_table())


@pytest.mark.parametrize("start", [servers.start_redis, servers.start_valkey, servers.start_redis_tls])
def test_a_killed_redis_starts_again_on_its_port_with_its_data(start: Callable[[], servers.RedisServer]) -> None:
    """Every acknowledged write survives SIGKILL, and clients reconnect to the same address."""
    with start() as server:
        server.command("SET", "key", "value")
        server.kill()
        assert not server.running
        server.restart()
        assert server.command("GET", "key") == "value"


def test_a_stopped_redis_starts_again_with_its_data(private_redis: servers.RedisServer) -> None:
    """`stop` is a clean end that keeps the data, and may be called twice."""
    private_redis.command("SET", "key", "value")
    private_redis.stop()
    private_redis.stop()
    private_redis.start()
    assert private_redis.command("GET", "key") == "value"


def test_a_frozen_redis_answers_nothing_until_it_is_thawed(private_redis: servers.RedisServer) -> None:
    """A frozen server keeps its connections open and silent, as a stuck machine does."""
    with closing(_client(private_redis.url)) as client:
        client.ping()
        private_redis.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        private_redis.thaw()
        assert client.ping()


def test_a_frozen_redis_can_be_stopped(private_redis: servers.RedisServer) -> None:
    """A test that ends with a frozen server leaves nothing behind."""
    pid = private_redis.pid
    private_redis.freeze()
    private_redis.stop()
    assert not _alive(pid)


def test_redis_takes_directives() -> None:
    """A memory limit and a policy can be set for one server."""
    with servers.start_redis(config={"maxmemory": "3mb", "maxmemory-policy": "allkeys-lru"}) as server:
        assert server.command("CONFIG", "GET", "maxmemory-policy") == ["maxmemory-policy", "allkeys-lru"]
        assert server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", str(3 * 1024 * 1024)]


def test_a_server_that_cannot_start_fails_with_its_log() -> None:
    """The failure shows the command and what the server said, and nothing is left running."""
    with pytest.raises(servers.ServerUnavailable, match="no-such-directive"):
        servers.start_redis(config={"no-such-directive": "1"})


def test_the_redis_of_the_tests_is_empty(redis_url: str) -> None:
    """Every test starts with an empty database; this test, run twice, would fail otherwise."""
    with closing(_client(redis_url)) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_the_redis_of_the_tests_is_empty_again(redis_url: str) -> None:
    """What the test before left is gone."""
    test_the_redis_of_the_tests_is_empty(redis_url)


def test_tls_is_verified(redis_tls: servers.RedisTlsServer) -> None:
    """A client that trusts the server's authority is served, another one is not."""
    with closing(_client(redis_tls.url, ssl_ca_certs=str(redis_tls.ca_file))) as client:
        assert client.ping()
    with closing(_client(redis_tls.url)) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE"):
        stranger.ping()


def test_the_cluster_serves_keys_of_every_node(redis_cluster: servers.RedisCluster) -> None:
    """A hundred keys land on all three masters and are read back."""
    redis_cluster.flush()
    with closing(redis.RedisCluster.from_url(redis_cluster.url, decode_responses=True)) as client:
        for number in range(100):
            client.set(f"key:{number}", number)
        assert [client.get(f"key:{number}") for number in range(100)] == [str(number) for number in range(100)]
    assert all(node.command("DBSIZE") > 0 for node in redis_cluster.nodes)


def test_a_cluster_whose_node_was_killed_can_be_revived() -> None:
    """A killed master comes back with its slots, and the cluster serves again."""
    with servers.start_redis_cluster() as cluster:
        cluster.nodes[1].kill()
        cluster.revive()
        assert all("cluster_state:ok" in node.command("CLUSTER", "INFO") for node in cluster.nodes)


@pytest.mark.parametrize("sentinels", [1, 3])
def test_sentinel_promotes_the_replica_of_a_killed_master(sentinels: int) -> None:
    """What the replica had is there after the fail-over, under the same service name."""
    with servers.start_redis_sentinel(sentinels=sentinels) as group:
        group.master.command("SET", "key", "value")
        wait_until(lambda: group.replica.command("GET", "key") == "value", 10, "replication")
        group.master.kill()
        wait_until(lambda: group.master_port == group.replica.port, 30, "fail-over")
        watch = redis.Sentinel(group.addresses, socket_timeout=1)
        leader = wait_until(lambda: _quietly(lambda: watch.discover_master(group.master_name)), 10, "a master")
        assert leader == ("127.0.0.1", group.replica.port)
        assert group.replica.command("GET", "key") == "value"


def _quietly(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except redis.ConnectionError:
        return None


def test_kombu_takes_the_sentinel_url(redis_sentinel: servers.RedisSentinel) -> None:
    """The URL is what a Celery project writes into `broker_url`."""
    options = {"master_name": redis_sentinel.master_name}
    with Connection(redis_sentinel.url, transport_options=options) as connection:
        queue = connection.SimpleQueue("by-sentinel")
        queue.put("message")
        assert queue.get(timeout=10).payload == "message"


def test_a_killed_rabbitmq_starts_again_with_its_durable_messages(rabbitmq_server: servers.Server) -> None:
    """A confirmed persistent message survives SIGKILL of the node."""
    with Connection(rabbitmq_server.url, transport_options={"confirm_publish": True}) as connection:
        connection.SimpleQueue("survivors").put("message")
    rabbitmq_server.kill()
    rabbitmq_server.restart()
    pools.reset()  # of all apps of this process, for the tests that come after: their connections are dead
    with Connection(rabbitmq_server.url) as connection:
        message = connection.SimpleQueue("survivors").get(timeout=10)
        message.ack()
    assert message.payload == "message"


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_leaves_pooled_connections_alone(rabbitmq_server: servers.Server) -> None:
    """So that a test that forks cuts off none that comes after it: see `tests.forking`."""
    pool = pools.connections[Connection(rabbitmq_server.url)]
    with pool.acquire(block=True) as connection:
        channel = connection.default_channel
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    with pool.acquire(block=True) as connection:
        assert connection.default_channel is channel
        assert channel.queue_declare("after-a-fork", auto_delete=True).queue == "after-a-fork"


def test_a_frozen_rabbitmq_answers_nothing_until_it_is_thawed(rabbitmq_server: servers.Server) -> None:
    """Freezing reaches the Erlang machine, not only the script that started it."""
    rabbitmq_server.freeze()
    try:
        with pytest.raises(OSError, match="timed out"):
            Connection(rabbitmq_server.url, connect_timeout=0.5).connect()
    finally:
        rabbitmq_server.thaw()
    with Connection(rabbitmq_server.url, connect_timeout=10) as connection:
        connection.connect()


def test_a_killed_postgres_starts_again_with_its_data() -> None:
    """A committed row survives SIGKILL of the server and all its backends."""
    with servers.start_postgres() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE survivors AS SELECT 42 AS answer")
        server.kill()
        server.restart()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT answer FROM survivors").fetchone() == (42,)


def test_a_killed_mariadb_starts_again_with_its_data() -> None:
    """A committed row survives SIGKILL of the server."""
    with servers.start_mariadb() as server:
        engine = sqlalchemy.create_engine(server.url.replace("mariadb://", "mariadb+pymysql://", 1))
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE survivors AS SELECT 42 AS answer")
        engine.dispose()
        server.kill()
        server.restart()
        with engine.begin() as connection:
            assert connection.exec_driver_sql("SELECT answer FROM survivors").all() == [(42,)]
        engine.dispose()


def test_a_frozen_postgres_answers_nothing_until_it_is_thawed(postgres_server: servers.Server) -> None:
    """Freezing reaches the backends, which live in sessions of their own."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        postgres_server.freeze()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: connection.execute("SELECT 1").fetchone())
            stopped = {entry.pid for entry in process_table() if entry.state == "T"}
            assert set(family(postgres_server.pid)) <= stopped
            assert not answer.done()
            postgres_server.thaw()
            assert answer.result(timeout=10) == (1,)


CHILD = """
from celery_reliable.testing.servers import start_redis
server = start_redis()
print(server.pid, server.directory, flush=True)
input()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "at exit"])
def test_no_server_outlives_the_process_that_started_it(end: signal.Signals | None) -> None:
    """Whatever way the starter ends, the server's process and files go with it."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
        starter.send_signal(end) if end else starter.stdin.write("\n")
    wait_until(lambda: not _alive(int(pid)) and not Path(directory).exists(), 10, "the server's end")


def test_a_closed_server_leaves_neither_process_nor_file() -> None:
    """Nothing is left after the context."""
    with servers.start_redis() as server:
        pid, directory = server.pid, server.directory
        assert directory.exists()
    assert not _alive(pid)
    assert not directory.exists()
    server.close()


def test_the_directory_of_a_server_is_private() -> None:
    """Other users of the machine cannot read a server's data and cookie."""
    directory = private_directory("test")
    assert directory.stat().st_mode & 0o077 == 0
    directory.rmdir()


def test_redis_starts_on_a_machine_that_has_none(tmp_path: Path) -> None:
    """With no system server and an empty cache, unpacked packages or the wheel serve, for several askers at once."""
    lookup = servers.Lookup(cache=tmp_path, system=False)
    with ThreadPoolExecutor(2) as pool:
        for server in pool.map(lambda _: servers.start_redis(lookup=lookup), range(2)):
            with server:
                assert server.command("PING") == "PONG"
    assert not list(tmp_path.rglob("*.partial"))


def test_postgres_starts_on_a_machine_that_has_none(tmp_path: Path) -> None:
    """With no system server the wheel serves, as root too, and no user account is made."""
    accounts = Path("/etc/passwd").read_bytes()
    with servers.start_postgres(lookup=servers.Lookup(cache=tmp_path, system=False)) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.info.server_version >= 18_00_00
        assert Path("/etc/passwd").read_bytes() == accounts
