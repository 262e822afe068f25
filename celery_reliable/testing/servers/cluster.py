"""Start a private Redis Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, locate
from celery_reliable.testing.servers.group import Group
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.redis import REDIS, RedisServer, recipe
from celery_reliable.testing.servers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_reliable.testing.servers.binaries import Binary

SLOTS = 16_384
BUS_OFFSET = 10_000
FORM_TIMEOUT = 30.0
CONFIG: Mapping[str, str | int] = {"cluster-enabled": "yes", "cluster-node-timeout": 2000}


class RedisCluster(Group):
    """Redis Cluster of masters without replicas, all slots covered."""

    @property
    def url(self) -> str:
        """The first node, as redis-py takes it."""
        return self.nodes[0].url

    @property
    def ports(self) -> tuple[int, ...]:
        """The port of every node."""
        return tuple(node.port for node in self.nodes)

    def flush(self) -> None:
        """Empty every node."""
        for node in self.nodes:
            node.flush()

    def revive(self) -> None:
        """Bring every node back, and return once the cluster serves every slot."""
        super().revive()
        self.wait_formed()

    def wait_formed(self) -> None:
        """Return once every node knows all others and serves."""
        wait_for(lambda: all(map(self._is_formed, self.nodes)), timeout=FORM_TIMEOUT, what="the cluster's forming")

    def _is_formed(self, node: RedisServer) -> bool:
        info = str(node.command("CLUSTER", "INFO")).split()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes)}" in info


def start_redis_cluster(*, nodes: int = 3, lookup: Lookup | None = None) -> RedisCluster:
    """Start a cluster and return once every node serves."""
    binary = locate(REDIS, lookup=lookup or Lookup.from_environment())
    cluster = RedisCluster(tuple(_node(binary) for _ in range(nodes)))
    try:
        _form(cluster)
    except BaseException:
        cluster.close()
        raise
    return cluster


def _node(binary: Binary) -> RedisServer:
    port = free_port(offsets=(0, BUS_OFFSET))
    return RedisServer(recipe(binary, name="redis-cluster", port=port, config=CONFIG))


def _form(cluster: RedisCluster) -> None:
    for number, node in enumerate(cluster.nodes):
        node.start()
        # Distinct epochs from the start, else the nodes first have to settle a collision.
        node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        node.command("CLUSTER", "ADDSLOTS", *range(SLOTS)[number :: len(cluster.nodes)])
    for node in cluster.nodes[1:]:
        cluster.nodes[0].command("CLUSTER", "MEET", LOOPBACK, node.port)
    cluster.wait_formed()
