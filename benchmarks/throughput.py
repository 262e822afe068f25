"""Compare how many jobs a second a worker runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cases import PLAIN, Case, make_app
from benchmarks.fleet import worker
from celery_reliable.testing.servers import RedisServer

_WARM_UP = 0.1  # share of the jobs that ran before the children had opened connections and loaded scripts
_TICKS = 100  # of /proc/PID/stat, a second


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs a second, and CPU seconds a job of the main process and of the children."""

    jobs: float
    parent: float
    children: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rates of one kind of task, by the name of the case, one for each round."""

    task: str
    rates: dict[str, list[Rate]]

    def ratio(self, case: Case) -> float:
        """Return the median over the rounds of this case's rate to plain Celery's in the same round."""
        pairs = zip(self.rates[case.name], self.rates[PLAIN.name], strict=True)
        return statistics.median(ours.jobs / plain.jobs for ours, plain in pairs)

    def cpu(self, case: Case, side: str) -> float:
        """Return the median CPU microseconds a job that a case needs more than plain Celery; side parent or children."""
        pairs = zip(self.rates[case.name], self.rates[PLAIN.name], strict=True)
        return 1e6 * statistics.median(getattr(ours, side) - getattr(plain, side) for ours, plain in pairs)


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
        running.wait_for(jobs // 10)
        pids = running.pids
        before, seen = [_cpu(pid) for pid in pids], len(running.wait_for(jobs // 10))
        moments = running.wait_for(jobs)
        after = [_cpu(pid) for pid in pids]
    timed = moments[int(jobs * _WARM_UP) :]
    spent = [(late - early) / (jobs - seen) for late, early in zip(after, before, strict=True)]
    return Rate((len(timed) - 1) * 1e9 / (timed[-1] - timed[0]), spent[0], sum(spent[1:]))


def enqueue(case: Case, task: str, *, url: str, numbers: Iterable[int]) -> None:
    """Submit the jobs, as an application would."""
    app = make_app(case, broker=url, store=url)
    submit = app.tasks[task].apply_async
    for number in numbers:
        submit((number,))
    app.close()


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
