"""Run the servers of a cell, and put a faulty network between each party and each server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from celery_reliable.testing import servers
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.testing.servers.ports import LOOPBACK
from tests.chaos.site import Site

if TYPE_CHECKING:
    from typing_extensions import Self

Broker = Literal["redis", "rabbitmq"]
Role = Literal["broker", "store"]
ROLES: tuple[Role, ...] = ("broker", "store")
JUDGE = "judge"


class Network:
    """Two servers, and one proxy for each party and server. The judge goes past them."""

    def __init__(self, broker: Broker, parties: tuple[str, ...]) -> None:
        """Nothing runs before the context is entered."""
        self._kind = broker
        self._parties = parties
        self._stack = contextlib.ExitStack()
        self.servers: dict[Role, servers.Server] = {}
        self._proxies: dict[tuple[str, Role], FaultProxy] = {}

    def __enter__(self) -> Self:
        """Start the servers, then the proxies."""
        start = servers.start_redis if self._kind == "redis" else servers.start_rabbitmq
        self.servers = {
            "broker": self._stack.enter_context(start()),
            "store": self._stack.enter_context(servers.start_redis()),
        }
        for party in self._parties:
            for role in ROLES:
                self._proxies[party, role] = self._stack.enter_context(FaultProxy(self.servers[role].port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._stack.close()

    def proxy(self, party: str, role: Role) -> FaultProxy:
        """Return what a party's connections to a server go through."""
        return self._proxies[party, role]

    def heal(self) -> None:
        """End every fault of servers and network."""
        for server in self.servers.values():
            server.revive()
            if isinstance(server, servers.RedisServer):
                server.command("CONFIG", "SET", "maxmemory", "0")
        for proxy in self._proxies.values():
            proxy.heal()

    def site(self, party: str, *, directory: Path, seed: int, rate: float, conf: Mapping[str, object]) -> Site:
        """Return the site as a party sees it; the judge sees the servers themselves."""
        broker, store = (self._port(party, role) for role in ROLES)
        urls = {
            "broker": f"redis://{LOOPBACK}:{broker}/0"
            if self._kind == "redis"
            else f"amqp://guest:guest@{LOOPBACK}:{broker}//",
            "backend": f"redis://{LOOPBACK}:{store}/1",
            "store": f"redis://{LOOPBACK}:{store}/0",
        }
        return Site(directory, party, seed=seed, rate=rate, conf=conf, **urls)

    def _port(self, party: str, role: Role) -> int:
        if party == JUDGE:
            return self.servers[role].port
        return self._proxies[party, role].port
