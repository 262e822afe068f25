"""Measure one start of one scheduler: ``python -m benchmarks.beat_case CASE`` prints its figures as JSON.

A process of its own for each, so that no case pays for the garbage of another.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery
from celery.schedules import crontab

DUE = 100
_DUE_IN = 3600.0
_IDLE_ROUNDS = 5
_NAMES = {
    "Scheduler": "celery.beat:Scheduler",
    "PersistentScheduler": "celery.beat:PersistentScheduler",
    "DatabaseScheduler": "django_celery_beat.schedulers:DatabaseScheduler",
    "redbeat": "redbeat:RedBeatScheduler",
}
SCHEDULERS = tuple(_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scheduler, as it is or under leadership, with a schedule of so many entries.

    ``prepare``: make the tables and rows of a database instead of measuring.
    """

    scheduler: str
    reliable: bool
    entries: int
    url: str
    directory: str
    prepare: bool = False

    def to_json(self) -> str:
        """Encode for the command line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured. CPU in seconds, of the loop's own thread; ``start`` is also given by the wall clock."""

    start: float
    start_wall: float
    tick: float
    calls: int
    """Round trips to our store during the start."""


def main(case: Case) -> None:
    """Prepare, or measure and print."""
    app = _app(case)
    if case.scheduler == "DatabaseScheduler":
        _set_django_up(case)
    if case.prepare:
        _fill_database(case)
        return
    sys.stdout.write(json.dumps(asdict(_measure(case, app))))


def _app(case: Case) -> Celery:
    """Return an app with a schedule: a hundred entries due each hour, the rest at four in the morning."""
    kinds = {"task_cls": "celery_reliable:ReliableTask"} if case.reliable else {}
    app = Celery("bench", broker=f"{case.url}/0", set_as_current=False, **kinds)
    if case.reliable:
        app.config_from_object("celery_reliable.presets")
        app.conf.update(reliable_store_url=f"{case.url}/1")
    schedule = {} if case.scheduler == "DatabaseScheduler" else _schedule(case)
    app.conf.update(beat_schedule=schedule, timezone="UTC", result_expires=None, redbeat_redis_url=f"{case.url}/2")
    app.task(name="job", shared=False)(_nothing)
    app.finalize()
    return app


def _nothing(number: int) -> None: ...


def _schedule(case: Case) -> dict[str, Any]:
    times = [_DUE_IN if number < DUE else crontab(hour=4, minute=number % 60) for number in range(case.entries)]
    return {
        f"entry-{number}": {"task": "job", "schedule": when, "args": (number,)} for number, when in enumerate(times)
    }


# --- django


def _set_django_up(case: Case) -> None:
    import django  # noqa: PLC0415  # of this case alone
    from django.conf import settings  # noqa: PLC0415

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(case.directory) / "rows.sqlite3")}
    settings.configure(
        INSTALLED_APPS=["django_celery_beat"], DATABASES={"default": database}, USE_TZ=True, TIME_ZONE="UTC"
    )
    django.setup()


def _fill_database(case: Case) -> None:
    from django.core.management import call_command  # noqa: PLC0415
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    # Four o'clock: the hour that the plain scheduler always reads.
    daily = [CrontabSchedule.objects.create(hour="4", minute=str(minute)) for minute in range(60)]
    hourly = IntervalSchedule.objects.create(every=int(_DUE_IN), period="seconds")
    rows = [
        PeriodicTask(
            name=f"entry-{number}",
            task="job",
            args=f"[{number}]",
            interval=hourly if number < DUE else None,
            crontab=None if number < DUE else daily[number % 60],
        )
        for number in range(case.entries)
    ]
    PeriodicTask.objects.bulk_create(rows, batch_size=5000)
    PeriodicTasks.update_changed()


# --- measure


def _measure(case: Case, app: Celery) -> Costs:
    cls = _class_of(case)
    with redis.Redis.from_url(case.url) as server:
        server.config_resetstat()
        began, worked = time.perf_counter(), time.thread_time()
        scheduler = cls(app=app, schedule_filename=str(Path(case.directory) / f"schedule-{case.reliable}"))
        if case.scheduler == "redbeat" and not case.reliable:
            _take_lock_of_redbeat(scheduler)
        scheduler.tick()
        start, wall = time.thread_time() - worked, time.perf_counter() - began
        calls = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    tick = statistics.median(_timed(scheduler.tick) for _ in _rests())
    scheduler.close()
    return Costs(start, wall, tick, calls)


def _take_lock_of_redbeat(scheduler: Any) -> None:
    """Take the lock that it extends at each tick, as a beat does when it starts."""
    from redbeat.schedulers import acquire_distributed_beat_lock  # noqa: PLC0415  # of this case alone

    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))


def _class_of(case: Case) -> Any:
    if case.reliable:
        from celery_reliable.beat.wrapping import class_over  # noqa: PLC0415  # not in a plain process

        return class_over(_NAMES[case.scheduler])
    from celery.utils.imports import symbol_by_name  # noqa: PLC0415

    return symbol_by_name(_NAMES[case.scheduler])


def _rests() -> Iterator[None]:
    """Rest for a second before each round, as the leader does."""
    for _ in range(_IDLE_ROUNDS):
        time.sleep(1.02)
        yield


def _timed(call: Callable[[], Any]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


if __name__ == "__main__":
    main(Case(**json.loads(sys.argv[1])))
