"""Draw, from a seed, what is broken when, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.app import MOMENTS
from tests.chaos.network import ROLES, Broker
from tests.chaos.site import LEASE

_PROCESSES = {
    "kill worker": 3,
    "kill main": 2,
    "kill child": 4,
    "restart": 3,
    "freeze worker": 3,
    "kill producer": 2,
    "warrant": 8,
}
_SERVERS = {"kill server": 2, "freeze server": 2, "memory": 2}
_LINKS = {"latency": 2, "blackhole": 3, "reset": 3, "down": 3}
_SECONDS = {
    "freeze worker": (1.5 * LEASE, 2.5 * LEASE),
    "kill server": (0.5, 3.0),
    "freeze server": (1.0, 2.5 * LEASE),
    "memory": (1.0, 4.0),
    "latency": (2.0, 5.0),
    "blackhole": (1.0, 2.5 * LEASE),
    "down": (0.5, 2.5 * LEASE),
}
_PRODUCER_MOMENT = "submitted"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break: ``at`` seconds after the start, for ``seconds`` (0: at once and for good).

    ``target`` is a party or a server's role; ``link`` the server that a party is cut off from; ``moment`` and
    ``victim`` belong to a warrant.
    """

    kind: str
    at: float
    seconds: float = 0.0
    target: str = ""
    link: str = ""
    moment: str = ""
    victim: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What there is to break."""

    broker: Broker
    pool: str
    workers: tuple[str, ...]
    producers: tuple[str, ...]


def draw_faults(field: Field, *, seed: int, seconds: float, every: float) -> Iterator[Fault]:
    """Yield faults in order, one ``every`` so many seconds on average, the last before the time is over."""
    draw = random.Random(f"faults:{seed}")
    at = draw.uniform(0.0, every)
    while at < seconds:
        yield _fault(field, draw, at=at)
        at += draw.uniform(0.3 * every, 1.7 * every)


def _fault(field: Field, draw: random.Random, *, at: float) -> Fault:
    shares = {**_PROCESSES, **_SERVERS, **_LINKS}
    if field.pool != "prefork":
        del shares["kill child"], shares["kill main"]  # the main process is all there is
    kind = draw.choices(list(shares), list(shares.values()))[0]
    seconds = draw.uniform(*_SECONDS[kind]) if kind in _SECONDS else 0.0
    parties = (*field.workers, *field.producers)
    match kind:
        case "kill producer":
            return Fault(kind, at, target=draw.choice(field.producers))
        case "warrant":
            moment = draw.choice((*MOMENTS, _PRODUCER_MOMENT))
            victim = draw.choice(("process", "process", "worker"))
            return Fault(kind, at, moment=moment, victim="process" if moment == _PRODUCER_MOMENT else victim)
        case "kill server" | "freeze server" | "memory":
            return Fault(kind, at, seconds, target=_server(field, draw, kind=kind))
        case "latency" | "blackhole" | "reset" | "down":
            return Fault(kind, at, seconds, target=draw.choice(parties), link=draw.choice(ROLES))
        case _:
            return Fault(kind, at, seconds, target=draw.choice(field.workers))


def _server(field: Field, draw: random.Random, *, kind: str) -> str:
    """Return the role of a server; RabbitMQ takes long to start and has a memory limit of another kind."""
    alone = field.broker == "rabbitmq" and kind != "freeze server"
    return "store" if alone else draw.choice(ROLES)
