"""Run the servers of a cell, and put a faulty network between each party and each server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from celery_reliable.testing import servers
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.testing.servers.binaries import Lookup, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.redis import REDIS, recipe
from tests.chaos.site import Site

if TYPE_CHECKING:
    from typing_extensions import Self

Broker = Literal["redis", "rabbitmq"]
Kind = Literal["redis", "sql", "sentinel", "cluster"]
Role = Literal["broker", "store", "backend"]
JUDGE = "judge"
# A write beyond the size that a file may have is an error then, as on a full disk, and not the server's end.
_OUTLIVE_FULL_DISKS = ("/bin/sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh")

Service = servers.Server | servers.RedisSentinel | servers.RedisCluster


def servers_of(store: Kind) -> tuple[Role, ...]:
    """Return the roles that have a server of their own. A Redis store keeps the results, too."""
    return ("broker", "store") if store == "redis" else ("broker", "store", "backend")


def reached_by_proxy(store: Kind) -> tuple[Role, ...]:
    """Return the roles behind proxies: clients of Sentinel and Cluster are told the nodes' own addresses."""
    return servers_of(store) if store in ("redis", "sql") else ("broker", "backend")


def _start_redis() -> servers.RedisServer:
    found = recipe(locate(REDIS, lookup=Lookup.from_environment()), name="redis", port=free_port())
    return servers.RedisServer(replace(found, command=(*_OUTLIVE_FULL_DISKS, *found.command))).start()


_START: Mapping[str, Callable[[], Service]] = {
    "redis": _start_redis,
    "rabbitmq": servers.start_rabbitmq,
    "sql": servers.start_postgres,
    "sentinel": servers.start_redis_sentinel,
    "cluster": servers.start_redis_cluster,
}


class Network:
    """The servers, and one proxy for each party and server. The judge goes past them."""

    def __init__(self, broker: Broker, parties: tuple[str, ...], *, store: Kind = "redis") -> None:
        """Nothing runs before the context is entered."""
        self._kinds: dict[Role, str] = {"broker": broker, "store": store, "backend": "redis"}
        self._store: Kind = store
        self._parties = parties
        self._stack = contextlib.ExitStack()
        self.services: dict[Role, Service] = {}
        self._proxies: dict[tuple[str, Role], FaultProxy] = {}

    def __enter__(self) -> Self:
        """Start the servers, then the proxies."""
        for role in servers_of(self._store):
            service = _START[self._kinds[role]]()
            self._stack.enter_context(service)
            self.services[role] = service
        for party in self._parties:
            for role in reached_by_proxy(self._store):
                self._proxies[party, role] = self._stack.enter_context(FaultProxy(self.server(role).port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._stack.close()

    def server(self, role: Role) -> servers.Server:
        """Return the one server of a role."""
        found = self.services[role]
        if isinstance(found, servers.Server):
            return found
        message = f"expected one server as the {role}, found several: {found}"
        raise TypeError(message)

    def proxy(self, party: str, role: Role) -> FaultProxy:
        """Return what a party's connections to a server go through."""
        return self._proxies[party, role]

    def heal(self) -> None:
        """End every fault of servers and network."""
        for service in self.services.values():
            service.revive()
            if isinstance(service, servers.RedisServer):
                service.command("CONFIG", "SET", "maxmemory", "0")
        for proxy in self._proxies.values():
            proxy.heal()

    def site(self, party: str, *, directory: Path, seed: int, rate: float, conf: Mapping[str, object]) -> Site:
        """Return the site as a party sees it; the judge sees the servers themselves."""
        broker, backend, store = self._broker_url(party), self._backend_url(party), self._store_url(party)
        return Site(directory, party, broker, backend, store, seed=seed, rate=rate, conf=conf)

    def _broker_url(self, party: str) -> str:
        port = self._port(party, "broker")
        return f"redis://{LOOPBACK}:{port}/0" if self._is_redis("broker") else f"amqp://guest:guest@{LOOPBACK}:{port}//"

    def _backend_url(self, party: str) -> str:
        if "backend" in self.services:
            return f"redis://{LOOPBACK}:{self._port(party, 'backend')}/0"
        return f"redis://{LOOPBACK}:{self._port(party, 'store')}/1"

    def _store_url(self, party: str) -> str:
        service = self.services["store"]
        if isinstance(service, servers.RedisSentinel):
            hosts = ",".join(f"{host}:{port}" for host, port in service.addresses)
            return f"sentinel://{hosts}/{service.master_name}"
        if isinstance(service, servers.RedisCluster):
            return f"redis+cluster://{LOOPBACK}:{service.ports[0]}"
        port = self._port(party, "store")
        return f"redis://{LOOPBACK}:{port}/0" if self._is_redis("store") else self._postgres_url(port)

    def _postgres_url(self, port: int) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{port}/postgres"

    def _is_redis(self, role: Role) -> bool:
        return self._kinds[role] == "redis"

    def _port(self, party: str, role: Role) -> int:
        return self.server(role).port if party == JUDGE else self._proxies[party, role].port
