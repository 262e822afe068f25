"""Compare how long one ``apply_async`` takes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cases import NO_OP, PLAIN, Case, close_app, database, make_app
from celery_reliable.testing.servers import RedisServer

if TYPE_CHECKING:
    from celery import Task

_BATCH = 25


@dataclass(frozen=True, slots=True)
class Producer:
    """Milliseconds a call, by the name of the case, batch by batch."""

    times: dict[str, list[float]]

    def overhead(self, case: Case) -> float:
        """Return the milliseconds a call beyond plain Celery's: the median of the differences of each round.

        Two batches of a round are a fraction of a second apart, so that a machine that slows down slows both.
        """
        pairs = zip(self.times[case.name], self.times[PLAIN.name], strict=True)
        return statistics.median(ours - plain for ours, plain in pairs)


def measure(*, cases: Sequence[Case], redis: RedisServer, batches: int) -> Producer:
    """Let all cases take turns, batch by batch, in one process, on one server for broker and store."""
    redis.flush()
    everybody = (PLAIN, *cases)
    # Kombu lends plain Celery the connections that another part of the run has used with our client, were the URL the same.
    urls = {case.name: database(redis.url, number) for number, case in enumerate(everybody, start=1)}
    apps = {case.name: make_app(case, broker=urls[case.name], store=urls[case.name]) for case in everybody}
    tasks = {name: app.tasks[NO_OP] for name, app in apps.items()}
    times: dict[str, list[float]] = {case.name: [] for case in everybody}
    for number in range(batches):
        for case in everybody if number % 2 == 0 else reversed(everybody):
            times[case.name].append(_batch(tasks[case.name], number))
    for app in apps.values():
        close_app(app)
    return Producer({name: several[1:] for name, several in times.items()})  # the first opens connections


def _batch(task: Task, number: int) -> float:
    gc.collect()
    begin = time.perf_counter()
    for position in range(_BATCH):
        task.apply_async((number * _BATCH + position,))
    return (time.perf_counter() - begin) / _BATCH * 1e3
