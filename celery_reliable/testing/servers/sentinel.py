"""Start a private Redis with a replica under Sentinel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, locate
from celery_reliable.testing.servers.group import Group
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import Recipe, private_directory
from celery_reliable.testing.servers.redis import REDIS, RedisServer, recipe
from celery_reliable.testing.servers.resp import command
from celery_reliable.testing.servers.waiting import wait_for

if TYPE_CHECKING:
    from celery_reliable.testing.servers.binaries import Binary

MASTER_NAME = "mymaster"
FORM_TIMEOUT = 30.0
# Without the delay of 5 s that waits for more replicas to join one transfer.
FAST_SYNC = {"repl-diskless-sync-delay": 0}
DOWN_AFTER_MILLISECONDS = 1000
FAILOVER_TIMEOUT_MILLISECONDS = 5000


class RedisSentinel(Group):
    """One master and one replica, watched by sentinels that elect the replica about a second after the master's end."""

    master_name = MASTER_NAME

    def __init__(self, *, master: RedisServer, replica: RedisServer, sentinels: tuple[RedisServer, ...]) -> None:
        """Keep who is who at the start; `master_port` tells who leads now."""
        super().__init__((master, replica, *sentinels))
        self.master, self.replica, self.sentinels = master, replica, sentinels

    @property
    def url(self) -> str:
        """All sentinels as kombu takes them; ``master_name`` goes into the transport options."""
        return ";".join(f"sentinel://{LOOPBACK}:{sentinel.port}/0" for sentinel in self.sentinels)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """All sentinels as redis-py takes them."""
        return [(LOOPBACK, sentinel.port) for sentinel in self.sentinels]

    @property
    def master_port(self) -> int:
        """The port of the present master, as the first sentinel sees it."""
        return int(self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)[1])

    def flush(self) -> None:
        """Empty the present master."""
        command(self.master_port, "FLUSHALL")

    def wait_formed(self) -> None:
        """Return once the replica follows and every sentinel knows it and all other sentinels."""
        wait_for(self._is_formed, timeout=FORM_TIMEOUT, what="the replica's and the sentinels' joining")

    def _is_formed(self) -> bool:
        following = "master_link_status:up" in str(self.replica.command("INFO", "replication")).split()
        return following and all(map(self._knows_all, self.sentinels))

    def _knows_all(self, sentinel: RedisServer) -> bool:
        replicas = sentinel.command("SENTINEL", "REPLICAS", MASTER_NAME)
        others = sentinel.command("SENTINEL", "SENTINELS", MASTER_NAME)
        return len(replicas) == 1 and len(others) == len(self.sentinels) - 1


def start_redis_sentinel(*, sentinels: int = 1, lookup: Lookup | None = None) -> RedisSentinel:
    """Start master, replica and 1 or 3 sentinels, and return once they know each other."""
    binary = locate(REDIS, lookup=lookup or Lookup.from_environment())
    master = RedisServer(recipe(binary, name="redis-master", port=free_port(), config=FAST_SYNC))
    following = FAST_SYNC | {"replicaof": f"{LOOPBACK} {master.port}"}
    group = RedisSentinel(
        master=master,
        replica=RedisServer(recipe(binary, name="redis-replica", port=free_port(), config=following)),
        sentinels=tuple(_sentinel(binary, master=master, of=sentinels) for _ in range(sentinels)),
    )
    try:
        _form(group)
    except BaseException:
        group.close()
        raise
    return group


def _form(group: RedisSentinel) -> None:
    for node in group.nodes:
        node.start()
    group.wait_formed()


def _sentinel(binary: Binary, *, master: RedisServer, of: int) -> RedisServer:
    port, directory = free_port(), private_directory("redis-sentinel")
    # A file, for a sentinel keeps what it learns in its own configuration.
    configuration = directory / "sentinel.conf"
    configuration.write_text(_configuration(port, master=master, quorum=of // 2 + 1))
    return RedisServer(
        Recipe(
            name="redis-sentinel",
            url=f"redis://{LOOPBACK}:{port}/0",
            port=port,
            directory=directory,
            command=(str(binary.path), str(configuration), "--sentinel"),
            answers=lambda: command(port, "PING") == "PONG",
            environment=binary.environment(),
        )
    )


def _configuration(port: int, *, master: RedisServer, quorum: int) -> str:
    lines = (
        f"port {port}",
        f"bind {LOOPBACK}",
        f"sentinel monitor {MASTER_NAME} {LOOPBACK} {master.port} {quorum}",
        f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MILLISECONDS}",
        f"sentinel failover-timeout {MASTER_NAME} {FAILOVER_TIMEOUT_MILLISECONDS}",
    )
    return "\n".join(lines) + "\n"
