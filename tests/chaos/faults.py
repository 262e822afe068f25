"""Draw, from a seed, what is broken when, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.app import MOMENTS
from tests.chaos.network import Broker, Kind, Role, reached_by_proxy, servers_of
from tests.chaos.site import LEASE

_WORKERS = {"kill worker": 3, "restart": 2, "roll": 2, "freeze worker": 3}
_CHILDREN = {"kill main": 2, "kill child": 4}  # on other pools the main process is all there is
_OTHERS = {"kill producer": 2, "kill beat": 2, "freeze beat": 2, "warrant": 8}
_SERVERS = {"kill server": 2, "freeze server": 2, "memory": 2, "disk": 2}
_LINKS = {"latency": 2, "blackhole": 3, "reset": 3, "down": 3}
_GROUPS: Mapping[Kind, Mapping[str, int]] = {"sentinel": {"fail over": 16}, "cluster": {"move slots": 16}}
_CLOCK = {"clock": 16}
_SECONDS = {
    "freeze worker": (1.5 * LEASE, 2.5 * LEASE),
    "freeze beat": (1.5 * LEASE, 2.5 * LEASE),
    "kill server": (0.5, 3.0),
    "freeze server": (1.0, 2.5 * LEASE),
    "memory": (1.0, 4.0),
    "disk": (1.0, 4.0),
    "latency": (2.0, 5.0),
    "blackhole": (1.0, 2.5 * LEASE),
    "down": (0.5, 2.5 * LEASE),
    "clock": (2.0, 3.0 * LEASE),
    "fail over": (1.0, 4.0),
}
STEPS = (-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0)
"""By how many seconds a clock is put forward or back."""
_PRODUCER_MOMENT = "submitted"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break: ``at`` seconds after the start, for ``seconds`` (0: at once and for good).

    ``target`` is a party or a server's role; ``link`` the server that a party is cut off from; ``moment`` and
    ``victim`` belong to a warrant, ``step`` to a clock.
    """

    kind: str
    at: float
    seconds: float = 0.0
    target: str = ""
    link: str = ""
    moment: str = ""
    victim: str = ""
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Field:
    """What there is to break."""

    broker: Broker
    pool: str
    workers: tuple[str, ...]
    producers: tuple[str, ...]
    store: Kind = "redis"
    beats: tuple[str, ...] = ()
    clock: bool = False

    @property
    def parties(self) -> tuple[str, ...]:
        """All that have a process and a way to each server."""
        return (*self.workers, *self.producers, *self.beats)

    @property
    def shares(self) -> Mapping[str, int]:
        """How often each kind of fault is drawn, against the others."""
        shares = {**_WORKERS, **_OTHERS, **_SERVERS, **_LINKS, **_GROUPS.get(self.store, {})}
        shares |= _CHILDREN if self.pool == "prefork" else {}
        shares |= _CLOCK if self.clock else {}
        absent = () if self.beats else ("kill beat", "freeze beat")
        return {kind: share for kind, share in shares.items() if kind not in absent}

    def roles(self, kind: str) -> tuple[Role, ...]:
        """Return the servers that a kind of fault can strike.

        Memory and disk are limited from outside on Redis only: RabbitMQ blocks its producers by itself long before, and
        PostgreSQL ends when it cannot write, which is ``kill server``. Of several nodes none is meant alone.
        """
        alone = [role for role in servers_of(self.store) if role != "store" or self.store in ("redis", "sql")]
        redis = {"broker": self.broker == "redis", "store": self.store == "redis", "backend": True}
        return tuple(role for role in alone if kind not in ("memory", "disk") or redis[role])


def draw_faults(field: Field, *, seed: int, every: float, seconds: float = float("inf")) -> Iterator[Fault]:
    """Yield faults in order, one ``every`` so many seconds on average, the last before the time is over."""
    draw = random.Random(f"faults:{seed}")
    at = draw.uniform(0.0, every)
    while at < seconds:
        yield _fault(field, draw, at=at)
        at += draw.uniform(0.3 * every, 1.7 * every)


def _fault(field: Field, draw: random.Random, *, at: float) -> Fault:
    shares = field.shares
    kind = draw.choices(list(shares), list(shares.values()))[0]
    seconds = draw.uniform(*_SECONDS[kind]) if kind in _SECONDS else 0.0
    match kind:
        case "warrant":
            return _warrant(draw, at=at)
        case "kill server" | "freeze server" | "memory" | "disk":
            return Fault(kind, at, seconds, target=draw.choice(field.roles(kind)))
        case "latency" | "blackhole" | "reset" | "down":
            link = draw.choice(reached_by_proxy(field.store))
            return Fault(kind, at, seconds, target=draw.choice(field.parties), link=link)
        case "fail over" | "move slots":
            return Fault(kind, at, seconds, target="store")
        case "clock":
            return Fault(kind, at, seconds, target=draw.choice(field.parties), step=draw.choice(STEPS))
        case _:
            return Fault(kind, at, seconds, target=draw.choice(_kin(field, kind)))


def _kin(field: Field, kind: str) -> tuple[str, ...]:
    """Return those whom a fault of a process can strike."""
    if kind.endswith("producer"):
        return field.producers
    return field.beats if kind.endswith("beat") else field.workers


def _warrant(draw: random.Random, *, at: float) -> Fault:
    moment = draw.choice((*MOMENTS, _PRODUCER_MOMENT))
    victim = draw.choice(("process", "process", "worker"))
    return Fault("warrant", at, moment=moment, victim="process" if moment == _PRODUCER_MOMENT else victim)
