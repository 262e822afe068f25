"""What leadership and slots cost a scheduler: ``python -m benchmarks.beat [ENTRIES ...]``.

Start (all entries read, ordered and, for the reliable one, known in the store), an idle round of the loop, and firing a
hundred entries that are due together; beside the scheduler that is wrapped. The figures are CPU time of this process,
which a busy machine does not change; Redis is private and on this machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab

from celery_reliable.beat import ReliableMemoryScheduler, ReliablePersistentScheduler
from celery_reliable.runtime import forget_runtime
from celery_reliable.testing import servers

DUE = 100
ROUNDS = 5


def make_app(url: str, entries: int, *, due_in: float) -> Celery:
    """Return an app with a schedule: a hundred entries that will be due soon, the rest once a day."""
    app = Celery("bench", broker=f"{url}/0", set_as_current=False, task_cls="celery_reliable:ReliableTask")
    app.config_from_object("celery_reliable.presets")
    daily = [{"task": "job", "schedule": crontab(hour=4, minute=one % 60), "args": (one,)} for one in range(entries)]
    soon = [{"task": "job", "schedule": due_in, "args": (one,)} for one in range(min(DUE, entries))]
    schedule = {f"entry-{number}": entry for number, entry in enumerate([*soon, *daily[len(soon) :]])}
    app.conf.update(reliable_store_url=f"{url}/1", beat_schedule=schedule, timezone="UTC")
    app.task(name="job", shared=False)(_nothing)
    app.finalize()
    return app


def measure(cls: type[Any], app: Celery, *, directory: str, due_in: float) -> dict[str, float]:
    """Return seconds of CPU: of the start, of an idle round, and of firing what is due."""
    began, worked = time.perf_counter(), time.process_time()
    scheduler = cls(app=app, schedule_filename=str(Path(directory) / cls.__name__))
    scheduler.tick()
    start, begun_in = time.process_time() - worked, time.perf_counter() - began
    idle = min(_idle(scheduler) for _ in range(ROUNDS))
    while time.perf_counter() - began < due_in + begun_in:
        time.sleep(0.1)
    fire = _timed(lambda: _fire(scheduler))
    scheduler.close()
    return {"start": start, "idle round": idle, f"fire {DUE}": fire}


def _idle(scheduler: Any) -> float:
    """Time a round after a second of rest, as the leader takes."""
    time.sleep(1.0)
    return _timed(scheduler.tick)


def _fire(scheduler: Any) -> None:
    with scheduler.app.connection_for_write() as connection:
        for _ in range(2 * DUE):
            scheduler.tick()
            if connection.default_channel.client.llen("celery") >= DUE:
                return


def _timed(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _nothing(number: int) -> None: ...


def main(sizes: list[int]) -> None:
    """Print a line for each scheduler and size."""
    pairs = [(Scheduler, ReliableMemoryScheduler), (PersistentScheduler, ReliablePersistentScheduler)]
    for size in sizes:
        for cls in (cls for pair in pairs for cls in pair):
            with servers.start_redis() as server, tempfile.TemporaryDirectory() as directory:
                url = server.url.removesuffix("/0")
                due_in = 10.0 + size / 2500
                for again in ("first start", "second start"):
                    app = make_app(url, size, due_in=due_in)
                    found = measure(cls, app, directory=directory, due_in=due_in)
                    forget_runtime(app)
                    server.command("DEL", "celery")
                    figures = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in found.items())
                    print(f"{size:>7} entries, {cls.__name__:<28} {again}: {figures}", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000, 100_000])
