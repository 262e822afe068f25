"""Play a tenant that floods a queue, and draw how long the others wait: ``python docs/simulate_fairness.py``.

Lanes and turns are those of the package; only the clock is played. With its seed it is the same each time.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from celery_reliable.flow.lanes import Lanes, lane_of
from celery_reliable.flow.turns import Turns
from celery_reliable.settings.policies import FairQueue

PICTURE: Final = Path(__file__).resolve().parent / "_static" / "fairness-light.svg"
SEED: Final = 7
QUEUE: Final = "reports"
FLOOD: Final = "flood"
FLOODED: Final = 500  # jobs of one tenant, at once
WORKERS: Final = 4
TENANTS: Final = tuple(f"tenant {number}" for number in range(40))

_END = 150.0  # seconds in which the others submit
_RUNS = 1.0
_PER_SECOND = 1.0  # jobs of the others, all together


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet: whether the queue has lanes, and who chooses among them."""

    name: str
    colour: str
    lanes: bool = True
    chosen_by_chance: bool = False


CASES: Final = (
    Case("no lanes", "#b45309", lanes=False),
    Case("16 lanes, RabbitMQ", "#2563eb", chosen_by_chance=True),
    Case("16 lanes, Redis", "#059669"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """Whose it is, when it was submitted, and where it lies."""

    tenant: str
    submitted: float
    queue: str


@dataclass(slots=True)
class Outcome:
    """How long each job of the others waited, and how many were begun before it; ``shared``: of those in the flooded lane."""

    waited: list[tuple[float, float]] = field(default_factory=list)
    overtaken: list[int] = field(default_factory=list)
    shared: list[float] = field(default_factory=list)

    @property
    def longest(self) -> float:
        """Return the longest wait."""
        return max(wait for _, wait in self.waited)


class Fleet:
    """Four workers with one slot each; the flood is there when the first of the others submits."""

    def __init__(self, case: Case) -> None:
        """Make the queues of a case."""
        self._case, self._random, self.outcome = case, random.Random(SEED), Outcome()
        self._now = 0.0
        self._lanes = Lanes({QUEUE: FairQueue()}, clock=lambda: self._now)
        queues = self._lanes.expanded([QUEUE])
        self._waiting: dict[str, deque[tuple[Job, int]]] = {name: deque() for name in queues}
        self._turns = [Turns(queue_of=self._lanes.queue_of) for _ in range(WORKERS)]
        for turns in self._turns:
            turns.update(queues)
        self._begun = 0

    def play(self) -> Outcome:
        """Let time pass until every job has begun."""
        for number in range(FLOODED):
            self._submit(FLOOD, 0.0, number)
        arrivals = deque(self._arrivals())
        free = [(number / WORKERS, number) for number in range(WORKERS)]
        while arrivals or any(self._waiting.values()):
            now, worker = heapq.heappop(free)
            while arrivals and arrivals[0][0] <= now:
                when, tenant = arrivals.popleft()
                self._submit(tenant, when, len(arrivals))
            self._take(worker, now)
            heapq.heappush(free, (now + _RUNS, worker))
        return self.outcome

    def _arrivals(self) -> Iterator[tuple[float, str]]:
        now = 0.0
        while (now := now + self._random.expovariate(_PER_SECOND)) < _END:
            yield now, self._random.choice(TENANTS)

    def _submit(self, tenant: str, now: float, number: int) -> None:
        self._now = now
        queue = self._lanes.chosen(QUEUE, key=tenant, task_id=str(number)) if self._case.lanes else QUEUE
        self._waiting[queue].append((Job(tenant, now, queue), self._begun))

    def _take(self, worker: int, now: float) -> None:
        turns = self._turns[worker]
        filled = [name for name in turns.consume() if self._waiting[name]]
        if not filled:
            return
        queue = self._random.choice(filled) if self._case.chosen_by_chance else filled[0]
        turns.rotate(queue)
        job, begun_before = self._waiting[queue].popleft()
        self._note(job, now, self._begun - begun_before)
        self._begun += 1

    def _note(self, job: Job, now: float, overtaken: int) -> None:
        if job.tenant == FLOOD:
            return
        self.outcome.waited.append((job.submitted, now - job.submitted))
        self.outcome.overtaken.append(overtaken)
        if self._case.lanes and job.queue == lane_of(QUEUE, FairQueue(), key=FLOOD, task_id=""):
            self.outcome.shared.append(now - job.submitted)


def play() -> dict[Case, Outcome]:
    """Play every case."""
    return {case: Fleet(case).play() for case in CASES}


# --- the picture

_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 300, 80, 60
_LONGEST = 150.0  # seconds

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 480" role="img" aria-labelledby="title description">
  <title id="title">How long other tenants wait while one floods their queue</title>
  <desc id="description">{description}</desc>
  <style>
    text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 15px; fill: #1e293b }}
    .note {{ font-size: 14px; fill: #64748b }}
    .end {{ text-anchor: end }} .middle {{ text-anchor: middle }}
    .line {{ stroke: #e2e8f0; stroke-width: 1; fill: none }}
  </style>
"""


def drawn(outcomes: Mapping[Case, Outcome]) -> str:
    """Return the picture."""
    told = "; ".join(f"{case.name}: {_words(one)}" for case, one in outcomes.items())
    parts = [_HEAD.format(description=f"One tenant submits {FLOODED} jobs at once to {WORKERS} workers. {told}.")]
    parts += _frame()
    for place, (case, one) in enumerate(outcomes.items()):
        y = _TOP + _HEIGHT + 60 + 24 * place
        parts += _dots(one.waited, colour=case.colour)
        parts.append(f'  <circle fill="{case.colour}" cx="{_LEFT + 20}" cy="{y - 5}" r="5"/>\n')
        parts.append(f'  <text x="{_LEFT + 42}" y="{y}">{case.name}: {_words(one)}</text>\n')
    return "".join([*parts, "</svg>\n"])


def _words(one: Outcome) -> str:
    shared = f"; {len(one.shared)} of {len(one.waited)} jobs share its lane" if one.shared else ""
    return f"the others wait {_middle(one):.1f} s, at most {one.longest:.0f} s{shared}"


def _middle(one: Outcome) -> float:
    waits = sorted(wait for _, wait in one.waited)
    return waits[len(waits) // 2]


def _frame() -> Iterator[str]:
    yield f'  <text class="note" x="{_LEFT}" y="{_TOP - 18}">seconds waited, by when the job was submitted</text>\n'
    for seconds in range(0, int(_LONGEST) + 1, 30):
        y = _down(seconds)
        yield f'  <path class="line" d="M{_LEFT} {y:.0f}h{_WIDTH}"/>\n'
        yield f'  <text class="note end" x="{_LEFT - 10}" y="{y + 5:.0f}">{seconds}</text>\n'
    for second in range(0, int(_END) + 1, 30):
        yield f'  <text class="note middle" x="{_across(second):.0f}" y="{_TOP + _HEIGHT + 22}">{second} s</text>\n'


def _dots(waited: Sequence[tuple[float, float]], *, colour: str) -> Iterator[str]:
    for submitted, wait in waited:
        yield f'  <circle fill="{colour}" cx="{_across(submitted):.1f}" cy="{_down(wait):.1f}" r="3"/>\n'


def _across(second: float) -> float:
    return _LEFT + second / _END * _WIDTH


def _down(seconds: float) -> float:
    return _TOP + _HEIGHT * (1 - min(seconds / _LONGEST, 1.0))


if __name__ == "__main__":
    PICTURE.write_text(drawn(play()), "utf-8")
