"""Name the applications that are compared."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery, Task
from redis.utils import HIREDIS_AVAILABLE

from celery_reliable import presets

NO_OP, MILLISECOND = "noop", "millisecond"
RECORD = struct.Struct("<QQ")  # number of the job, monotonic clock in nanoseconds when it ran


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run the same tasks. ``key`` None: every submission is a job of its own."""

    name: str
    reliable: bool = True
    ledger: bool = True
    key: str | None = None
    lease_ttl: float = 15.0

    def to_text(self) -> str:
        """Return what `from_text` reads, for the environment of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Case:
        """Return the case that a worker was started for."""
        return cls(**json.loads(text))


PLAIN = Case("plain Celery, crash-safe", reliable=False)
OWN = Case("own keys")
OWN_WITHOUT_LEDGER = Case("own keys, no ledger", ledger=False)
DECLARED = Case("declared keys", key="job:{number}")
RELIABLE = (OWN, OWN_WITHOUT_LEDGER, DECLARED)


def make_app(case: Case, *, broker: str, store: str, journal: str | None = None) -> Celery:
    """Build the application of a case. Each run of a task appends one record to ``journal``.

    Raises RuntimeError without hiredis: ours cannot do without it, and plain Celery, which can, must not lose by that.
    """
    if not HIREDIS_AVAILABLE:
        msg = "expected redis-py to parse with hiredis on both sides, found that it does not; pip install 'redis[hiredis]'"
        raise RuntimeError(msg)
    app = Celery(f"benchmarks.{'reliable' if case.reliable else 'plain'}", broker=broker, set_as_current=False)
    app.conf.update(_settings(case, store=store))
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND) if journal else None
    options = _task_options(case)

    def noop(number: int) -> None:
        _note(descriptor, number)

    def millisecond(number: int) -> None:
        time.sleep(0.001)
        _note(descriptor, number)

    bodies: tuple[Callable[[int], None], ...] = (noop, millisecond)
    for body in bodies:
        app.task(body, name=body.__name__, shared=False, lazy=False, **options)
    return app


def database(url: str, number: int) -> str:
    """Return the URL of another database of a Redis: kombu lends the connections of one URL to every application."""
    return f"{url.rpartition('/')[0]}/{number}"


def enqueue(case: Case, task: str, *, url: str, numbers: Iterable[int]) -> None:
    """Submit jobs, as an application would."""
    app = make_app(case, broker=url, store=url)
    submit = app.tasks[task].apply_async
    for number in numbers:
        submit((number,))
    close_app(app)


def close_app(app: Celery) -> None:
    """Close the connections of an application, those to the store too."""
    from celery_reliable.runtime import forget_runtime  # noqa: PLC0415  # as below

    forget_runtime(app)
    app.close()


def _task_options(case: Case) -> dict[str, Any]:
    if not case.reliable:
        return {"base": Task}
    from celery_reliable import ReliableTask  # noqa: PLC0415  # plain workers must not carry it: memory is compared

    return {"base": ReliableTask, "idempotency_key": case.key}


def _settings(case: Case, *, store: str) -> dict[str, Any]:
    """Return the preset for both sides, ours only for ours: the crash-safe settings are the same."""
    ours = ("reliable_", "imports", "include", "__")
    preset = {name: value for name, value in vars(presets).items() if case.reliable or not name.startswith(ours)}
    settings = {name: value for name, value in preset.items() if not name.startswith("__")}
    settings |= {"task_ignore_result": True}
    own = {"reliable_store_url": store, "reliable_ledger": case.ledger, "reliable_lease_ttl": case.lease_ttl}
    own |= {"reliable_heartbeat_interval": case.lease_ttl / 3}  # where no renewal comes between, no sign does
    return settings | (own if case.reliable else {})


def _note(descriptor: int | None, number: int) -> None:
    """Count without a server: a counter in Redis would add a round trip to every contender and flatter the ratio."""
    if descriptor is not None:
        os.write(descriptor, RECORD.pack(number, time.monotonic_ns()))
