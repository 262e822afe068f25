"""Say, from a seed, what is submitted: the same seed and number give the same submission in every process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Form = Literal[
    "own",
    "declared",
    "countdown",
    "expires",
    "revoke",
    "chain",
    "chord",
    "link",
    "parent",
    "changed",
    "fresh",
]

_SHARES: Mapping[Form, int] = {
    "own": 46,
    "declared": 18,
    "countdown": 5,
    "expires": 2,
    "revoke": 2,
    "chain": 6,
    "chord": 4,
    "link": 5,
    "parent": 6,
    "changed": 4,
    "fresh": 2,
}
_TOGETHER = 30  # submissions of each producer that meet on the same declared keys
_KEYS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What one body does: take some time, fail or snooze some times, submit children, fail for good."""

    seconds: float = 0.005
    fails: int = 0
    snoozes: int = 0
    children: int = 0
    hopeless: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as an argument of a task."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of a producer. ``parts`` are the bodies: the steps of a chain; members and, last, body of a chord."""

    form: Form
    label: str
    parts: tuple[Work, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def submission(seed: int, producer: str, number: int) -> Submission:
    """Return what a producer submits as its ``number``-th call."""
    draw = random.Random(f"{seed}:{producer}:{number}")
    form = draw.choices(list(_SHARES), list(_SHARES.values()))[0]
    label = f"{producer}.{number}"
    if form == "declared":
        label = f"key.{number // _TOGETHER}.{draw.randrange(_KEYS)}"
        return Submission(form, label, (work(random.Random(f"{seed}:{label}")),))
    return Submission(form, label, _parts(form, draw), _options(form, draw))


def work(draw: random.Random) -> Work:
    """Draw what a body does: mostly something short; now and then longer than a lease."""
    short = draw.uniform(0.001, 0.03)
    kind = draw.choices(("plain", "slow", "long", "flaky", "sleepy", "hopeless"), (76, 8, 1, 8, 3, 4))[0]
    match kind:
        case "slow":
            return Work(draw.uniform(0.1, 0.5))
        case "long":
            return Work(draw.uniform(3.5, 5.0))
        case "flaky":
            return Work(short, fails=draw.randint(1, 3))
        case "sleepy":
            return Work(short, snoozes=draw.randint(1, 2))
        case "hopeless":
            return Work(short, hopeless=True)
        case _:
            return Work(short)


def _parts(form: Form, draw: random.Random) -> tuple[Work, ...]:
    if form in ("chain", "chord"):
        return tuple(work(draw) for _ in range(draw.randint(3, 4)))
    if form == "link":
        return work(draw), Work()
    if form == "parent":
        return (Work(fails=draw.choice((0, 0, 1)), children=draw.randint(1, 3)),)
    return (work(draw),)


def _options(form: Form, draw: random.Random) -> Mapping[str, Any]:
    match form:
        case "countdown":
            return {"countdown": draw.uniform(0.5, 4.0)}
        case "expires":
            return {"expires": draw.uniform(1.0, 5.0)}
        case "revoke":
            return {"countdown": 3.0}
        case _:
            return {}
