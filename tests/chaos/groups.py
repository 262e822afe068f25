"""Break services of several nodes: end a master that Sentinel watches, move slots of a Cluster from node to node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_reliable.testing import servers
from celery_reliable.testing.servers.ports import LOOPBACK

_SHARDS = 64
_MOVED = 8  # shards in one move
_BATCH = 100
_TIMEOUT = 5000  # milliseconds for one MIGRATE


def fail_over(group: servers.RedisSentinel) -> Callable[[], None]:
    """Kill the present master; return what brings it back, as the replica of the one elected meanwhile."""
    port = group.master_port
    master = next(node for node in group.nodes if node.port == port)
    master.kill()
    return master.revive


def move_slots(cluster: servers.RedisCluster, *, number: int) -> None:
    """Move the slots of some shards to another node, key by key, while clients use them; other shards each time."""
    for shard in range(_MOVED):
        _move(cluster, slot=_slot(cluster, shard=(number * _MOVED + shard) % _SHARDS), number=number)


def _slot(cluster: servers.RedisCluster, *, shard: int) -> int:
    return int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"{{cr:{shard:02d}}}"))


def _move(cluster: servers.RedisCluster, *, slot: int, number: int) -> None:
    owner = next(node for node in cluster.nodes if slot in _own_slots(node))
    others = [node for node in cluster.nodes if node is not owner]
    taker = others[number % len(others)]
    taker.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _name(owner))
    owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _name(taker))
    while keys := owner.command("CLUSTER", "GETKEYSINSLOT", slot, _BATCH):
        owner.command("MIGRATE", LOOPBACK, taker.port, "", 0, _TIMEOUT, "KEYS", *keys)
    for node in (taker, owner, *others):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", _name(taker))


def _name(node: servers.RedisServer) -> str:
    return str(node.command("CLUSTER", "MYID"))


def _own_slots(node: servers.RedisServer) -> Sequence[int]:
    """Return the slots that a node says are its own."""
    (mine,) = [line for line in str(node.command("CLUSTER", "NODES")).splitlines() if "myself" in line]
    ranges = (word.partition("-") for word in mine.split()[8:] if not word.startswith("["))
    return [slot for first, _, last in ranges for slot in range(int(first), int(last or first) + 1)]
