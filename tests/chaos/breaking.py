"""Break things and make them whole again, each noted in the ledger with those it hit."""

from __future__ import annotations

import heapq
import itertools
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from celery_reliable.testing import servers
from celery_reliable.testing.processes import family, send, signal_family
from celery_reliable.testing.servers import Server, command
from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet, Member
from tests.chaos.groups import fail_over, move_slots
from tests.chaos.network import Network, Role
from tests.chaos.site import Site

_LATENCY = 0.05
Heal = Callable[[], None]


class Breaker:
    """Performs drawn faults. What is broken already is not broken again."""

    def __init__(self, fleet: Fleet, network: Network, site: Site) -> None:
        """Take what there is to break; ``site`` is the judge's."""
        self._fleet, self._network, self._site = fleet, network, site
        self._ledger = site.ledger
        self._numbers = itertools.count(1)
        self._broken: set[tuple[str, str]] = set()
        self._due: list[tuple[float, int, tuple[str, str], str, Heal]] = []

    def perform(self, faults: Iterable[Fault], *, began: float, stopped: threading.Event) -> None:
        """Break each thing at its time, mend it when its time is over, and mend everything at the end."""
        for fault in faults:
            while self._due and self._due[0][0] < began + fault.at:
                self._wait(self._due[0][0], stopped)
                self._mend()
            self._wait(began + fault.at, stopped)
            if stopped.is_set():
                break
            self.break_(fault)
        while self._due:
            self._wait(self._due[0][0], stopped)
            self._mend()

    @staticmethod
    def _wait(until: float, stopped: threading.Event) -> None:
        stopped.wait(max(until - time.monotonic(), 0.0))

    def break_(self, fault: Fault) -> None:
        """Break one thing now."""
        thing = (fault.target, fault.link)
        if thing in self._broken or (fault.target, "") in self._broken:
            return
        name = f"{fault.kind}#{next(self._numbers)}"
        heal = self._acts()[fault.kind](fault, name)
        if heal is not None:
            self._broken.add(thing)
            heapq.heappush(self._due, (time.monotonic() + fault.seconds, next(self._numbers), thing, name, heal))

    def _mend(self) -> None:
        _, _, thing, name, heal = heapq.heappop(self._due)
        heal()
        self._broken.discard(thing)
        self._ledger.note("healed", name=name)

    def _acts(self) -> dict[str, Callable[[Fault, str], Heal | None]]:
        links = dict.fromkeys(("latency", "blackhole", "reset", "down"), self._link)
        return {
            "kill worker": self._kill,
            "kill main": self._kill,
            "kill child": self._kill,
            "kill producer": self._kill,
            "kill beat": self._kill,
            "restart": self._restart,
            "roll": self._roll,
            "freeze worker": self._freeze,
            "freeze beat": self._freeze,
            "clock": self._clock,
            "warrant": self._warrant,
            "kill server": self._kill_server,
            "freeze server": self._freeze_server,
            "memory": self._memory,
            "disk": self._disk,
            "fail over": self._fail_over,
            "move slots": self._move_slots,
            **links,
        }

    def _note(self, fault: Fault, name: str, victims: Iterable[int] = ()) -> None:
        facts: dict[str, Any] = {
            "target": fault.target,
            "link": fault.link,
            "seconds": fault.seconds,
            "victims": list(victims),
            "step": fault.step,
        }
        self._ledger.note("fault", kind=fault.kind, name=name, **facts)

    # --- processes

    def _kill(self, fault: Fault, name: str) -> None:
        def act(member: Member) -> None:
            main = [one for one in (member.pid,) if one]
            victims = {"kill main": main, "kill child": member.children[-1:]}.get(fault.kind, member.family)
            if not main or not victims or (fault.kind == "kill child" and not member.ready):
                return  # Celery (5.7) ends a worker whose child dies while it starts
            self._note(fault, name, victims)
            for pid in victims:
                send(pid, signal.SIGKILL)
            if fault.kind == "kill producer":
                member.roll()  # a producer is deployed anew, too

        self._fleet.on(fault.target, act)

    def _restart(self, fault: Fault, name: str) -> None:
        def act(member: Member) -> None:
            self._note(fault, name, member.family)
            member.terminate()

        self._fleet.on(fault.target, act)

    def _roll(self, fault: Fault, name: str) -> None:
        """Deploy the other version of the code."""

        def act(member: Member) -> None:
            self._note(fault, name, member.family)
            member.roll()
            member.terminate()

        self._fleet.on(fault.target, act)

    def _clock(self, fault: Fault, name: str) -> Heal | None:
        clock = self._fleet.members[fault.target].clock
        if clock is None:
            return None
        self._note(fault, name)
        clock.set(fault.step)
        return lambda: clock.set(0.0)

    def _freeze(self, fault: Fault, name: str) -> Heal | None:
        frozen: list[int] = []

        def act(member: Member) -> None:
            if pid := member.pid:
                frozen.append(pid)
                self._note(fault, name, member.family)
                signal_family(pid, signal.SIGSTOP)

        self._fleet.on(fault.target, act)
        return (lambda: signal_family(frozen[0], signal.SIGCONT)) if frozen else None

    def _warrant(self, fault: Fault, name: str) -> None:
        self._site.warrant(fault.moment, fault.victim)  # whoever it hits notes the fault

    # --- servers

    def _server(self, fault: Fault) -> Server:
        return self._network.server(_role(fault.target))

    def _kill_server(self, fault: Fault, name: str) -> Heal:
        self._note(fault, name)
        self._server(fault).kill()
        return self._server(fault).restart

    def _freeze_server(self, fault: Fault, name: str) -> Heal:
        self._note(fault, name)
        self._server(fault).freeze()
        return lambda: self._server(fault).thaw()

    def _memory(self, fault: Fault, name: str) -> Heal:
        self._note(fault, name)
        port = self._server(fault).port
        command(port, "CONFIG", "SET", "maxmemory", "1mb")
        return lambda: command(port, "CONFIG", "SET", "maxmemory", "0") and None

    def _disk(self, fault: Fault, name: str) -> Heal:
        """Let no file of a server grow, as on a full disk."""
        self._note(fault, name)
        server = self._server(fault)
        _limit_files(server, size=1)

        def heal() -> None:
            _limit_files(server, size=resource.RLIM_INFINITY)

        return heal

    def _fail_over(self, fault: Fault, name: str) -> Heal | None:
        group = self._network.services["store"]
        if not isinstance(group, servers.RedisSentinel):
            return None
        self._note(fault, name)
        return fail_over(group)

    def _move_slots(self, fault: Fault, name: str) -> None:
        cluster = self._network.services["store"]
        if isinstance(cluster, servers.RedisCluster):
            self._note(fault, name)
            move_slots(cluster, number=next(self._numbers))

    # --- network

    def _link(self, fault: Fault, name: str) -> Heal | None:
        proxy = self._network.proxy(fault.target, _role(fault.link))
        self._note(fault, name)
        if fault.kind == "reset":
            proxy.reset()
            return None
        {"latency": lambda: proxy.latency(_LATENCY), "blackhole": proxy.blackhole, "down": proxy.down}[fault.kind]()
        return proxy.heal


def _role(name: str) -> Role:
    roles: dict[str, Role] = {"broker": "broker", "backend": "backend"}
    return roles.get(name, "store")


def _limit_files(server: Server, *, size: int) -> None:
    for pid in family(server.pid):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
