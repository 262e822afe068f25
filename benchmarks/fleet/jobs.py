"""The application of workers that are stopped and killed: ``celery -A benchmarks.fleet.jobs worker``."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery

from celery_reliable import ReliableTask

VARIABLE = "BENCHMARK_FLEET"
QUEUE = "fleet"
PACED, RATE = "paced", 20  # runs a second, in the whole fleet


@dataclass(frozen=True, slots=True)
class Fleet:
    """What all workers of a figure, and who measures, have in common."""

    broker: str
    store: str
    journal: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self)), "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a task noted: the monotonic clock for durations, the other for times that were promised."""

    number: int
    what: str
    at: float
    wall: float
    pid: int


def make_app(fleet: Fleet) -> Celery:
    """Build the application, in the worker as in who measures."""
    app = Celery("benchmarks.fleet", broker=fleet.broker, set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({"task_ignore_result": True, "task_default_queue": QUEUE, "reliable_store_url": fleet.store})
    app.conf.update(fleet.settings)
    app.fleet = fleet
    for body in (nap, stubborn, seizing, mark):
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, lazy=False)(body)
    app.task(base=ReliableTask, bind=True, name=PACED, shared=False, lazy=False, fleet_rate_limit=f"{RATE}/s")(mark)
    return app


def nap(self: Any, number: int, seconds: float) -> None:
    """Run for so long, open to interruptions."""
    _note(self, number, "start")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
    _note(self, number, "end")


def stubborn(self: Any, number: int) -> None:
    """Run for a minute, and swallow every interruption."""
    _note(self, number, "start")
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        with suppress(BaseException):
            time.sleep(0.02)


def seizing(self: Any, number: int) -> None:
    """Keep the interpreter in C for ever."""
    _note(self, number, "start")
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # a deadlock


def mark(self: Any, number: int) -> None:
    """Note that it ran."""
    _note(self, number, "start")


def _note(task: Any, number: int, what: str) -> None:
    entry = Entry(number, what, time.monotonic(), time.time(), os.getpid())
    descriptor = os.open(task.app.fleet.journal, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, json.dumps(asdict(entry)).encode() + b"\n")
    finally:
        os.close(descriptor)


def read(journal: str) -> list[Entry]:
    """Return what was noted, in order."""
    whole, _, _ = Path(journal).read_text(encoding="utf-8").rpartition("\n")
    return [Entry(**json.loads(line)) for line in whole.splitlines()]


if VARIABLE in os.environ:
    app = make_app(Fleet(**json.loads(os.environ[VARIABLE])))
