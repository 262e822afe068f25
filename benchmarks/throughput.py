"""Compare how many jobs a second a worker runs."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cases import PLAIN, Case, close_app, database, make_app
from benchmarks.fleet import Worker, worker
from benchmarks.machine import usage
from celery_reliable.testing.servers import RedisServer

if TYPE_CHECKING:
    from celery import Celery

_WARM_UP = 0.1  # share of a slice's jobs that ran before both children were busy


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
        """Return the ratio of the worker's CPU time a job, main process and children, to plain Celery's."""
        ours, plain = (
            sum(rate.parent + rate.children for rate in self.rates[name]) for name in (case.name, PLAIN.name)
        )
        return ours / plain

    @property
    def foreign(self) -> float:
        """Return the median share of the machine that other programs used."""
        return statistics.median(rate.foreign for rates in self.rates.values() for rate in rates)


@dataclass(frozen=True, slots=True)
class Contender:
    """A running worker, and the application that submits to it."""

    case: Case
    app: Celery
    worker: Worker
    server: int  # pid of the broker

    def run(self, task: str, *, jobs: int) -> Rate:
        """Let the jobs wait in the queue, then let the worker have them: the two do not compete."""
        before = len(self.worker.wait_for(0))
        with self._paused():
            submit = self.app.tasks[task].apply_async
            for number in range(before, before + jobs):  # a declared key must be new
                submit((number,))
        return self._watch(before, jobs)

    def _watch(self, before: int, jobs: int) -> Rate:
        seen = before + int(jobs * _WARM_UP)
        self.worker.wait_for(seen)
        pids = (*self.worker.pids, self.server, os.getpid())
        start, seen = usage(pids), len(self.worker.wait_for(0))
        moments = self.worker.wait_for(before + jobs)
        end = usage(pids)
        timed = moments[seen:]
        spent = [late - early for late, early in zip(end.processes, start.processes, strict=True)]
        return Rate(
            jobs=(len(timed) - 1) * 1e9 / (timed[-1] - timed[0]),
            parent=spent[0] / len(timed),
            children=sum(spent[1:-2]) / len(timed),
            foreign=end.foreign_since(start),
        )

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self.worker.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.worker.process.send_signal(signal.SIGCONT)


def measure(task: str, *, cases: Sequence[Case], redis: RedisServer, jobs: int, rounds: int) -> Throughput:
    """Give each worker a slice of jobs in turn, in the opposite order every other round.

    All workers stay up, one works at a time: slices of half a second meet the same weather on a shared machine,
    where runs of several seconds, each with a start of its own, differed by a third from one to the next.
    """
    rates: dict[str, list[Rate]] = {case.name: [] for case in (PLAIN, *cases)}
    redis.flush()
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(_contender(case, number, redis)) for number, case in enumerate((PLAIN, *cases))
        ]
        for contender in contenders:
            contender.run(task, jobs=jobs)  # opens connections, loads scripts
        for number in range(rounds):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                rates[contender.case.name].append(contender.run(task, jobs=jobs))
    return Throughput(task, rates)


@contextmanager
def _contender(case: Case, number: int, redis: RedisServer) -> Iterator[Contender]:
    url = database(redis.url, number)
    app = make_app(case, broker=url, store=url)
    try:
        with worker(case, broker=url, store=url) as running:
            yield Contender(case, app, running, redis.pid)
    finally:
        close_app(app)
