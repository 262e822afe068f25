"""Decide when a queue is stopped, who may try it, and when it goes on.

A switch is a value that the fleet shares; a step is a pure function of it. Each worker of the queue takes a step once a
second, and tells with it how its runs ended.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from celery_reliable.flow.window import Pair, Window
from celery_reliable.settings.policies import KillSwitch

Phase = Literal["running", "stopped", "tried", "held"]

SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Switch:
    """What is known of one queue. Times are microseconds of the server's clock.

    ``until``: nobody consumes it before, 0 while it runs. ``held``: an operator stopped it, and nobody consumes it until
    one starts it. ``runs`` (well, failed) lately. ``trial`` is the worker that tries it after ``until``, to ``trial_ends``.
    ``judged`` are the runs for which it was stopped, then those of the trial.
    """

    until: int = 0
    held: bool = False
    runs: Window = field(default_factory=Window)
    trial: str = ""
    trial_ends: int = 0
    judged: Pair = (0, 0)

    def phase(self, now: int) -> Phase:
        """Say what it is at a time."""
        if self.held:
            return "held"
        if not self.until:
            return "running"
        return "stopped" if now < self.until else "tried"

    def lets(self, worker: str, *, now: int) -> bool:
        """Tell whether a worker may consume the queue."""
        phase = self.phase(now)
        return phase == "running" or (phase == "tried" and self.trial == worker)

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Switch:
        """Decode what `to_bytes` made, in this or a later version."""
        facts = {name: value for name, value in json.loads(raw).items() if name in cls.__dataclass_fields__}
        runs = facts["runs"]
        window = Window(runs["begins"], _pair(runs["now"]), _pair(runs["before"]))
        return cls(**{**facts, "runs": window, "judged": _pair(facts["judged"])})


RUNNING: Final = Switch()


def stopped(*, seconds: float, now: int, judged: Pair = (0, 0)) -> Switch:
    """Return a switch that stops its queue now, for the sake of some runs."""
    return Switch(until=now + int(seconds * SECOND), judged=judged)


def after(switch: Switch, ended: Pair, *, worker: str, policy: KillSwitch, now: int) -> Switch:
    """Return the switch after a worker's step, since whose last one so many runs ended (well, failed).

    Runs that end while the queue is stopped say nothing: they began before. So do, while it is tried, those of other
    workers.
    """
    switch = _no_longer(switch, policy=policy, now=now)
    match switch.phase(now):
        case "held" | "stopped":
            return switch
        case "running":
            return _counted(switch, ended, policy=policy, now=now)
        case "tried":
            return _tried(switch, ended, worker=worker, policy=policy, now=now)


def _no_longer(switch: Switch, *, policy: KillSwitch, now: int) -> Switch:
    """Return a switch whose pause and trial end within a pause from now, also after the server's clock went back.

    Not what an operator stopped for a time of his own, which no run was judged for.
    """
    latest = now + int(policy.pause * SECOND)
    until = min(switch.until, latest) if any(switch.judged) else switch.until
    return replace(switch, until=until, trial_ends=min(switch.trial_ends, latest))


def _counted(switch: Switch, ended: Pair, *, policy: KillSwitch, now: int) -> Switch:
    length = int(policy.window * SECOND)
    runs = switch.runs.at(now, length=length).plus(*ended)
    well, failed = runs.counts(now, length=length)
    if ended[1] and well + failed >= policy.minimum and failed >= policy.failure_ratio * (well + failed):
        return stopped(seconds=policy.pause, now=now, judged=(round(well), round(failed)))
    return replace(switch, runs=runs) if runs.now[1] or runs.before[1] else RUNNING


def _tried(switch: Switch, ended: Pair, *, worker: str, policy: KillSwitch, now: int) -> Switch:
    """Let one worker try the queue. When its time is over whoever looks decides: it may have died, or nothing came."""
    if not switch.trial:
        return replace(switch, trial=worker, trial_ends=now + int(policy.pause * SECOND), judged=(0, 0))
    well, failed = switch.judged
    if switch.trial == worker:
        well, failed = well + ended[0], failed + ended[1]
    if well + failed < policy.trial_runs and now < switch.trial_ends:
        return replace(switch, judged=(well, failed))
    if failed and failed >= policy.failure_ratio * (well + failed):
        return stopped(seconds=policy.pause, now=now, judged=(well, failed))
    return RUNNING


def _pair(given: list[int]) -> Pair:
    return given[0], given[1]
