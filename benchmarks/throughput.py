"""Compare how many jobs a second a worker runs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cases import PLAIN, Case, close_app, make_app
from benchmarks.fleet import worker
from benchmarks.machine import usage
from celery_reliable.testing.servers import RedisServer

_WARM_UP = 0.1  # share of the jobs that ran before the children had opened connections and loaded scripts


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs a second; CPU seconds a job of the main process and of the children; what others used of the machine."""

    jobs: float
    parent: float
    children: float
    foreign: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rates of one kind of task, by the name of the case, one for each round."""

    task: str
    rates: dict[str, list[Rate]]

    def ratios(self, case: Case) -> list[float]:
        """Return this case's rate to plain Celery's, round by round."""
        pairs = zip(self.rates[case.name], self.rates[PLAIN.name], strict=True)
        return [ours.jobs / plain.jobs for ours, plain in pairs]

    def ratio(self, case: Case) -> float:
        """Return the median of the ratios."""
        return statistics.median(self.ratios(case))

    def cpu_ratio(self, case: Case) -> float:
        """Return the median ratio of the worker's CPU time a job, main process and children, to plain Celery's."""
        pairs = zip(self.rates[case.name], self.rates[PLAIN.name], strict=True)
        return statistics.median(
            (ours.parent + ours.children) / (plain.parent + plain.children) for ours, plain in pairs
        )

    @property
    def foreign(self) -> float:
        """Return the largest share of the machine that other programs used in a run."""
        return max(rate.foreign for rates in self.rates.values() for rate in rates)


def measure(task: str, *, cases: Sequence[Case], redis: RedisServer, jobs: int, rounds: int) -> Throughput:
    """Run every case in each round, in the opposite order every other round."""
    everybody = (PLAIN, *cases)
    rates: dict[str, list[Rate]] = {case.name: [] for case in everybody}
    for number in range(rounds):
        for case in everybody if number % 2 == 0 else reversed(everybody):
            rates[case.name].append(run(case, task, redis=redis, jobs=jobs))
    return Throughput(task, rates)


def run(case: Case, task: str, *, redis: RedisServer, jobs: int) -> Rate:
    """Enqueue, then start the worker, so that the two do not compete; broker and store are one server."""
    redis.flush()
    enqueue(case, task, url=redis.url, numbers=range(jobs))
    with worker(case, broker=redis.url, store=redis.url) as running:
        running.wait_for(int(jobs * _WARM_UP))
        pids = (*running.pids, redis.pid, os.getpid())
        before, seen = usage(pids), len(running.wait_for(0))
        moments = running.wait_for(jobs)
        after = usage(pids)
    timed = moments[seen:]
    spent = [late - early for late, early in zip(after.processes, before.processes, strict=True)]
    return Rate(
        jobs=(len(timed) - 1) * 1e9 / (timed[-1] - timed[0]),
        parent=spent[0] / len(timed),
        children=sum(spent[1:-2]) / len(timed),
        foreign=after.foreign_since(before),
    )


def enqueue(case: Case, task: str, *, url: str, numbers: Iterable[int]) -> None:
    """Submit the jobs, as an application would."""
    app = make_app(case, broker=url, store=url)
    submit = app.tasks[task].apply_async
    for number in numbers:
        submit((number,))
    close_app(app)
