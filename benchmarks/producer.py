"""Compare how long one ``apply_async`` takes."""

from __future__ import annotations

import gc
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
    """Microseconds a call, by the name of the case: wall time and CPU time of the calling process.

    Those of the quickest batch: whatever else runs on the machine only ever adds to a batch.
    """

    wall: dict[str, float]
    cpu: dict[str, float]

    def overhead(self, case: Case) -> float:
        """Return the milliseconds a call beyond plain Celery's."""
        return (self.wall[case.name] - self.wall[PLAIN.name]) / 1000


def measure(*, cases: Sequence[Case], redis: RedisServer, batches: int) -> Producer:
    """Let all cases take turns, batch by batch, in one process, on one server for broker and store."""
    redis.flush()
    everybody = (PLAIN, *cases)
    urls = {case.name: database(redis.url, number) for number, case in enumerate(everybody)}
    apps = {case.name: make_app(case, broker=urls[case.name], store=urls[case.name]) for case in everybody}
    tasks = {name: app.tasks[NO_OP] for name, app in apps.items()}
    times: dict[str, list[tuple[float, float]]] = {case.name: [] for case in everybody}
    for number in range(batches):
        for case in everybody if number % 2 == 0 else reversed(everybody):
            times[case.name].append(_batch(tasks[case.name], number))
    for app in apps.values():
        close_app(app)
    wall, cpu = ({name: min(pair[side] for pair in pairs[1:]) for name, pairs in times.items()} for side in (0, 1))
    return Producer(wall, cpu)


def _batch(task: Task, number: int) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    for position in range(_BATCH):
        task.apply_async((number * _BATCH + position,))
    return (time.perf_counter() - wall) / _BATCH * 1e6, (time.process_time() - cpu) / _BATCH * 1e6
