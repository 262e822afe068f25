"""Decide when a dependency's breaker opens, who may try it, and when it closes.

A breaker is a value that the fleet shares; a step is a pure function of it. What is *asked* of it is who may call the
dependency now, what is *told* to it is how calls ended.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import Literal

from celery_reliable.flow.window import Window
from celery_reliable.settings.policies import BreakerPolicy

Phase = Literal["closed", "open", "half_open", "held_open"]

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known of one dependency. Times are microseconds of the server's clock.

    ``until``: nobody passes before, 0 while it is closed. ``held``: an operator opened it, and nobody passes until one
    closes it. ``failures`` in a row, ``calls`` (good, bad) lately. ``probes`` are out now, each until its time; ``passed``
    of them have succeeded since it opened last.
    """

    until: int = 0
    held: bool = False
    failures: int = 0
    calls: Window = field(default_factory=Window)
    probes: tuple[tuple[str, int], ...] = ()
    passed: int = 0

    def phase(self, now: int) -> Phase:
        """Say what it is at a time."""
        if self.held:
            return "held_open"
        if not self.until:
            return "closed"
        return "open" if now < self.until else "half_open"

    @property
    def is_calm(self) -> bool:
        """Whether nothing is known that a success would change."""
        return not (self.until or self.held or self.failures or any(self.calls.now) or any(self.calls.before))

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(dataclasses.astuple(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Breaker:
        """Decode what `to_bytes` made."""
        until, held, failures, calls, probes, passed = json.loads(raw)
        begins, now, before = calls
        window = Window(begins, (now[0], now[1]), (before[0], before[1]))
        return cls(until, held, failures, window, tuple((token, ends) for token, ends in probes), passed)


CALM = Breaker()


@dataclass(frozen=True, slots=True)
class Told:
    """How calls ended since the last report: so many good, then so many bad.

    ``mended``: some of the good ones came after failures that were known. ``probe``: one of them was that probe.
    """

    good: int = 0
    bad: int = 0
    mended: bool = False
    probe: str = ""


def probed(breaker: Breaker, token: str, *, policy: BreakerPolicy, now: int) -> Breaker | None:
    """Return a half-open breaker with one more probe out, None when enough are out.

    A probe that is never told of, since its process died, makes room after ``open_for``.
    """
    out = tuple((one, ends) for one, ends in breaker.probes if ends > now and one != token)
    if len(out) + breaker.passed >= policy.probes:
        return None
    return replace(breaker, probes=(*out, (token, now + int(policy.open_for * SECOND))))


def told(breaker: Breaker, report: Told, *, policy: BreakerPolicy, now: int) -> Breaker:
    """Return the breaker after a report. Of an open one only its probes count: other runs began before it opened."""
    if breaker.held:
        return breaker
    if breaker.until:
        return _told_by_probe(breaker, report, policy=policy, now=now) if report.probe else breaker
    length = int(policy.window * SECOND)
    calls = breaker.calls.at(now, length=length).plus(report.good, report.bad)
    failures = report.bad if report.mended else breaker.failures + report.bad
    if report.bad and (failures >= policy.failures or _fails_often(calls, policy=policy, now=now)):
        return opened(policy=policy, now=now)
    if failures == 0 and not calls.now[1] and not calls.before[1]:
        return CALM
    return replace(breaker, failures=failures, calls=calls)


def _told_by_probe(breaker: Breaker, report: Told, *, policy: BreakerPolicy, now: int) -> Breaker:
    if report.bad:
        return opened(policy=policy, now=now)
    out = tuple(one for one in breaker.probes if one[0] != report.probe)
    passed = breaker.passed + report.good
    return CALM if passed >= policy.probes else replace(breaker, probes=out, passed=passed)


def _fails_often(calls: Window, *, policy: BreakerPolicy, now: int) -> bool:
    good, bad = calls.counts(now, length=int(policy.window * SECOND))
    return good + bad >= policy.least_calls and bad >= policy.ratio * (good + bad)


def opened(*, policy: BreakerPolicy, now: int) -> Breaker:
    """Return a breaker that opens now."""
    return Breaker(until=now + int(policy.open_for * SECOND))
