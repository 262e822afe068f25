"""Play an outage of a dependency with 5,000 waiting jobs, and draw what it gets to bear: ``python docs/simulate_outage.py``.

Delays, budgets and breakers are those of the package; only the clock is played. With its seed it is the same each time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Final

from celery_reliable.flow.breakers import Breakers, Closed, Pass
from celery_reliable.flow.budgets import Budgets
from celery_reliable.retries import Release, Verdict, next_step
from celery_reliable.stores.notes import MemoryNotes

PICTURE: Final = Path(__file__).resolve().parent / "_static" / "outage-light.svg"
JOBS: Final = 5000
OUTAGE: Final = 300.0  # seconds, from the beginning
SEED: Final = 7

_BEGIN = 1_900_000_000.0
_PROCESSES, _SLOTS = 8, 40
_FAILS_IN, _WORKS_IN = 0.05, 0.2
_END = 1800.0
_BUDGET = 0.2
_SETTINGS: Mapping[str, float] = {"backoff": 1.0, "backoff_max": 600.0}


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet: what spares the dependency."""

    name: str
    colour: str
    budget: bool = False
    breaker: bool = False


CASES: Final = (
    Case("retries with full jitter alone", "#b45309"),
    Case("with a retry budget of 20 %", "#2563eb", budget=True),
    Case("with the budget and a breaker", "#059669", budget=True, breaker=True),
)


@dataclass(slots=True)
class Outcome:
    """What happened: calls of the dependency in each second, and how the jobs ended, the last one when."""

    calls: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    done: int = 0
    dead: int = 0
    ended: float = 0.0

    def per_second(self, begin: float, end: float) -> float:
        """Return the mean load over a time."""
        return sum(count for second, count in self.calls.items() if begin <= second < end) / (end - begin)


class Fleet:
    """Eight processes with five slots each; all jobs wait when the outage begins."""

    def __init__(self, case: Case) -> None:
        """Make the processes of a case."""
        self.now, self._case, self.outcome = 0.0, case, Outcome()
        self._random = random.Random(SEED)  # a simulation
        notes = MemoryNotes(clock=lambda: _BEGIN + self.now)
        tokens = map(str, range(1_000_000))
        clocks = {"now": lambda: int((_BEGIN + self.now) * 1e6), "clock": lambda: self.now, "random": self._random}
        told = {"policies": None, "token": lambda: next(tokens), "emit": lambda *_, **__: None}
        self._breakers = [Breakers(notes, **clocks, **told) for _ in range(_PROCESSES)]  # type: ignore[arg-type]
        self._budgets = [Budgets(notes, **clocks) for _ in range(_PROCESSES)]  # type: ignore[arg-type]
        self._attempt = [1] * JOBS
        self._ready, self._free = deque(range(JOBS)), _SLOTS
        self._events: list[tuple[float, int, Pass | None]] = []

    def play(self) -> Outcome:
        """Let time pass until every job has ended."""
        self._start()
        while self._events and self.now < _END:
            self.now, job, passed = heapq.heappop(self._events)
            if passed is None:
                self._ready.append(job)
            else:
                self._end(job, passed)
            self._start()
        self.outcome.ended = self.now
        return self.outcome

    def _start(self) -> None:
        while self._free and self._ready:
            job = self._ready.popleft()
            passed = self._pass(job)
            if isinstance(passed, float):
                self._later(job, passed)
                continue
            self._free -= 1
            self.outcome.calls[int(self.now)] += 1
            heapq.heappush(self._events, (self.now + (_FAILS_IN if self._is_down else _WORKS_IN), job, passed))

    @property
    def _is_down(self) -> bool:
        return self.now < OUTAGE

    def _later(self, job: int, seconds: float) -> None:
        heapq.heappush(self._events, (self.now + seconds, job, None))

    def _pass(self, job: int) -> Pass | float:
        """Ask the gates, as a worker does."""
        breakers, budgets = self._breakers[job % _PROCESSES], self._budgets[job % _PROCESSES]
        passed = breakers.enter("payments") if self._case.breaker else Pass("payments")
        if isinstance(passed, Closed):
            return passed.seconds
        if not self._case.budget:
            return passed
        if self._attempt[job] == 1:
            budgets.first("payments")
            return passed
        wait = budgets.retry("payments", share=_BUDGET)
        if wait and self._case.breaker:
            breakers.leave(passed, well=None)
        return wait or passed

    def _end(self, job: int, passed: Pass) -> None:
        self._free += 1
        well = not self._is_down
        if self._case.breaker:
            self._breakers[job % _PROCESSES].leave(passed, well=well)
        if self._case.budget and well and self._attempt[job] > 1:
            self._budgets[job % _PROCESSES].give_back("payments")
        self.outcome.done += well
        if not well:
            self._fail(job)

    def _fail(self, job: int) -> None:
        self.outcome.failed += 1
        step = next_step(
            Verdict.retry(),
            attempt=self._attempt[job],
            max_retries=5,
            retry_for=None,
            age=self.now,
            random=self._random,
            **_SETTINGS,
        )
        self._attempt[job] += 1
        if isinstance(step, Release):
            self._later(job, step.delay)
        else:
            self.outcome.dead += 1


def play() -> dict[Case, Outcome]:
    """Play every case."""
    return {case: Fleet(case).play() for case in CASES}


# --- the picture

_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 300, 80, 60
_SECONDS, _EACH = 420, 5
_LOWEST, _HIGHEST = -1, 3  # powers of ten, calls a second

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 480" role="img" aria-labelledby="title description">
  <title id="title">Calls of a dependency during an outage</title>
  <desc id="description">{description}</desc>
  <style>
    text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 15px; fill: #1e293b }}
    .note {{ font-size: 14px; fill: #64748b }}
    .end {{ text-anchor: end }} .middle {{ text-anchor: middle }}
    .panel {{ fill: #fbfcfe; stroke: #e2e8f0 }}    path {{ fill: none; stroke-width: 2.5; stroke-linejoin: round }}
    .line {{ stroke: #e2e8f0; stroke-width: 1 }}
  </style>
"""


def drawn(outcomes: Mapping[Case, Outcome]) -> str:
    """Return the picture."""
    told = "; ".join(f"{case.name}: {_words(one)}" for case, one in outcomes.items())
    parts = [
        _HEAD.format(description=f"{JOBS} jobs wait for a dependency that fails for {OUTAGE:.0f} seconds. {told}.")
    ]
    parts += _frame()
    for place, (case, one) in enumerate(outcomes.items()):
        y = _TOP + _HEIGHT + 60 + 24 * place
        parts.append(f'  <path stroke="{case.colour}" d="{_path(one)}"/>\n')
        parts.append(f'  <path stroke="{case.colour}" d="M{_LEFT} {y - 5}h30"/>\n')
        parts.append(f'  <text x="{_LEFT + 42}" y="{y}">{case.name}: {_words(one)}</text>\n')
    return "".join([*parts, "</svg>\n"])


def _words(one: Outcome) -> str:
    return f"{one.failed:,} failed calls, {one.done:,} jobs done, {one.dead:,} dead letters"


def _frame() -> Iterator[str]:
    yield f'  <rect class="panel" x="{_LEFT}" y="{_TOP}" width="{_across(OUTAGE) - _LEFT:.0f}" height="{_HEIGHT}"/>\n'
    yield f'  <text class="note middle" x="{(_LEFT + _across(OUTAGE)) / 2:.0f}" y="{_TOP + 20}">outage</text>\n'
    yield f'  <text class="note" x="{_LEFT}" y="{_TOP - 18}">calls a second</text>\n'
    for power in range(_LOWEST, _HIGHEST + 1):
        y = _down(10.0**power)
        yield f'  <path class="line" d="M{_LEFT} {y:.0f}h{_WIDTH}"/>\n'
        yield f'  <text class="note end" x="{_LEFT - 10}" y="{y + 5:.0f}">{10.0**power:g}</text>\n'
    for second in range(0, _SECONDS + 1, 60):
        yield f'  <text class="note middle" x="{_across(second):.0f}" y="{_TOP + _HEIGHT + 22}">{second} s</text>\n'


def _path(one: Outcome) -> str:
    """Draw the load in stretches of five seconds; none at all lies on the ground."""
    points = []
    for begin in range(0, _SECONDS, _EACH):
        y = _down(one.per_second(begin, begin + _EACH))
        points += [f"{_across(begin):.1f} {y:.1f}", f"{_across(begin + _EACH):.1f} {y:.1f}"]
    return "M" + "L".join(points)


def _across(second: float) -> float:
    return _LEFT + second / _SECONDS * _WIDTH


def _down(calls: float) -> float:
    height = (log10(max(calls, 10.0**_LOWEST)) - _LOWEST) / (_HIGHEST - _LOWEST)
    return _TOP + _HEIGHT * (1 - height)


if __name__ == "__main__":
    PICTURE.write_text(drawn(play()), "utf-8")
