"""Measure what it costs to be seen: events, metrics, trails, the status screen, dead letters by the million."""

from __future__ import annotations

import itertools
import json
import logging
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from redis import Redis

from benchmarks.cases import OWN, close_app, make_app
from benchmarks.report import Figure
from celery_reliable import trails
from celery_reliable.app_letters import letters_of
from celery_reliable.dead_letters import DeadLetter, DeadLetters, Filter
from celery_reliable.dead_letters.runs import Plan, Runner, Runs
from celery_reliable.events import Events, logger
from celery_reliable.fleet import look, sight_of
from celery_reliable.heartbeats import SHELF, LifeSign, Process
from celery_reliable.payloads import Envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Store
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import Write
from celery_reliable.testing.servers import RedisServer
from celery_reliable.trails import Trails

_CALLS = 200  # in each round
_WORKERS = 200
_JOB = {
    "task": "noop",
    "task_id": "0b3f9c9e-6f57-4f0a-9f57-3d1c1a8e8f11",
    "key": "0b3f9c9e-6f57-4f0a-9f57-3d1c1a8e8f11",
}
_CLAIMED = {**_JOB, "fence": 1_764_494_000_000_000, "attempt": 1, "delivery": 1}


def events(redis: RedisServer) -> Iterator[Figure]:
    """Measure one event that nobody hears, and all events of one task with Prometheus, and with OpenTelemetry, on."""
    logger.setLevel(logging.WARNING)
    alone = Events()
    took = _each(lambda: alone.emit("done", **_JOB, attempt=1))
    yield Figure("event without a subscriber", took * 1e6, "µs", at_most=2)
    app = make_app(OWN, broker=redis.url, store=redis.url)
    metrics, meter = _metrics(app), _meter(app)

    def task(heard: Events) -> None:
        heard.emit("submitted", **_JOB)
        heard.emit("claimed", **_CLAIMED)
        heard.emit("done", **_JOB, attempt=1)

    app.tasks["noop"].push_request(reliable={"s": 1_764_493_999_000_000}, delivery_info={"routing_key": "celery"})
    try:
        for name, hook in {"Prometheus": metrics, "OpenTelemetry": meter}.items():
            heard = Events([hook])
            took = _each(lambda heard=heard: task(heard))  # type: ignore[misc]  # binds the loop's variable
            yield Figure(
                f"all events of a task, with {name}", took * 1e6, "µs", at_most=30 if hook is metrics else None
            )
    finally:
        app.tasks["noop"].pop_request()
        metrics.close()
        close_app(app)


def _metrics(app: Any) -> Any:
    from celery_reliable.contrib.prometheus import EventMetrics  # noqa: PLC0415  # an extra

    metrics = EventMetrics(app)
    metrics.share()
    return metrics


def _meter(app: Any) -> Any:
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415

    from celery_reliable.contrib.opentelemetry import EventMeter  # noqa: PLC0415

    class Meter(EventMeter):
        def provider(self) -> Any:
            return MeterProvider([InMemoryMetricReader()])

    return Meter(app)


def _each(call: Callable[[], object]) -> float:
    """Return the seconds of one call: of many short rounds the best, in which nobody else had the processor."""
    rounds = []
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        rounds.append((time.perf_counter() - began) / _CALLS)
    return min(rounds)


def trail() -> Iterator[Figure]:
    """Measure what is noted of a job that fails by every default, and of one that never ends failing."""
    store = MemoryStore()
    note = Trails(store.notes, now=store.now, host="worker-7d9f8c6b5-x2x4k", size=1024, share=1.0)
    for attempt in range(1, 200):
        note("retried", {**_JOB, "attempt": attempt, "delay": 1.234, "rule": "network", "error": "ConnectionError"})
        note("claimed_again", {**_CLAIMED, "attempt": attempt + 1, "submitted": 1_764_494_000.0})
        if attempt == 5:  # noqa: PLR2004  # the default of max_retries
            yield Figure("trail of a job with five retries", _size(store), "bytes", at_most=1024)
    yield Figure("trail of a job with 199 retries", _size(store), "bytes", at_most=1024)
    gates = {
        "breaker_waits": "breaker",
        "limit_waits": "limit_key",
        "rate_waits": "limit_key",
        "budget_waits": "budget",
    }
    for _ in range(200):
        for event, named in gates.items():
            note(event, {**_JOB, named: "payments.example.com", "wait": 1.234})
    yield Figure("trail of a job that also waits 200 times at each gate", _size(store), "bytes", at_most=1024)


def _size(store: Store) -> int:
    return sum(len(note.value) for note in store.notes.page(trails.SHELF).notes)


def status(redis: RedisServer) -> Iterator[Figure]:
    """Measure one look at 200 workers."""
    redis.flush()
    app = make_app(OWN, broker=redis.url, store=redis.url)
    signs = [_sign(number) for number in range(_WORKERS)]
    writes = [Write(name=sign.owner, value=sign.to_json().encode(), ttl=600.0) for sign in signs]
    runtime_of(app).store.notes.write(SHELF, writes)
    sight = sight_of(app)
    began = time.perf_counter()
    found = look(app, sight=sight)
    took = time.perf_counter() - began
    sight.close()
    close_app(app)
    yield Figure(f"look at {len(found.workers)} workers", took * 1000, "ms", at_most=1000)


def _sign(number: int) -> LifeSign:
    return LifeSign(
        role="worker", node=f"w{number}@host", state="busy", owner=f"owner-{number}", at=time.time(), clock=0.0,
        process=Process("host", "", "", number, ""), interval=5.0, queues=("celery",), pool="prefork", concurrency=4,
        running=2, busy={"celery": 2},
    )  # fmt: skip


def letters(redis: RedisServer, *, kept: int, replayed: int) -> Iterator[Figure]:
    """Measure a page of very many letters by each filter, what a letter costs, and how many are replayed in a second."""
    redis.flush()
    app = make_app(OWN, broker=redis.url, store=redis.url)
    store = runtime_of(app).store
    before = _used(redis)
    fill(store, kept)
    grown = _used(redis) - before
    yield Figure("a kept letter", grown / kept, "bytes")
    desk = letters_of(app)
    for name, wanted in _FILTERS.items():
        began = time.perf_counter()
        page = list(itertools.islice(desk.search(wanted), 50))
        took = time.perf_counter() - began
        assert len(page) == 50, (name, len(page))  # noqa: PLR2004  # a page
        yield Figure(f"50 of {kept:,} letters, by {name}", took * 1000, "ms", at_most=50)
    yield from _replays(app, desk, replayed=replayed)
    close_app(app)


def _used(redis: RedisServer) -> int:
    with Redis.from_url(redis.url) as client:
        return int(client.info("memory")["used_memory"])


def _replays(app: Any, desk: DeadLetters, *, replayed: int) -> Iterator[Figure]:
    """Replay to the broker, in turn with a plain loop of kombu's that publishes messages of the same size."""
    runner = Runner(runtime_of(app).store, desk, who="bench")
    ours, plain = [], []
    for _ in range(_TURNS):
        plan = Plan(wanted=Filter(task="noop"), limit=replayed // _TURNS)
        run = Runs(runtime_of(app).store).begin(plan, who="bench", total=replayed)
        ours.append(_rate(replayed // _TURNS, lambda run=run: runner.work(run)))
        plain.append(_rate(replayed // _TURNS, lambda: _publish_plainly(app, replayed // _TURNS)))
    yield Figure("letters replayed to the broker", statistics.median(ours), "a second", at_least=1000)
    yield Figure("kombu's producer.publish in a loop", statistics.median(plain), "a second")


def _rate(count: int, call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return count / (time.perf_counter() - began)


def _publish_plainly(app: Any, count: int) -> None:
    headers = {"id": str(uuid.uuid4()), "task": "noop", "lang": "py", "argsrepr": "(1,)", "kwargsrepr": "{}"}
    with app.producer_or_acquire() as producer:
        for number in range(count):
            producer.publish([[number], {}, {}], routing_key="plain", exchange="", headers=headers, serializer="json")


_TURNS = 5
_TASKS = ("noop", *(f"shop.task{number}" for number in range(20)))
_QUEUES = ("celery", "mails", "reports")
_ERRORS = ("requests.exceptions.ConnectTimeout", "builtins.KeyError", "psycopg.errors.DeadlockDetected")
_OLDEST = 60  # letters that nothing after them is like
_FILTERS = {
    "no filter": Filter(),
    "age": Filter(since=1.0),
    "task": Filter(task="shop.task7"),
    "a task's glob": Filter(task="shop.task1*"),
    "reason": Filter(reason="poison"),
    "error type": Filter(error="DeadlockDetected"),
    "queue": Filter(queue="reports"),
    "group": Filter(group="g19"),
    "tenant": Filter(tenant="t3"),
    "the oldest, by task": Filter(task="shop.first"),
}


def fill(store: Store, kept: int) -> None:
    """Keep letters as a store of a year has them: of 21 tasks, 180 groups or so."""
    link, keys = store._link, store._keys.letter_keys(0)  # noqa: SLF001  # a million one by one would take half an hour
    for start in range(0, kept, 1000):
        made = [_letter(number) for number in range(start, min(start + 1000, kept))]
        values = [(one.id, one.to_bytes(), one.label, int(1e12), 2 * kept) for one in made]
        link.scripts("keep_letter", [(keys, one) for one in values])


def _letter(number: int) -> DeadLetter:
    task = "shop.first" if number < _OLDEST else _TASKS[number % len(_TASKS)]
    task_id = str(uuid.UUID(int=number))
    call = Envelope(task, task_id, json.dumps([[number], {}, {}]), options={"queue": _QUEUES[number % 3]})
    error, queue = number % 7, _QUEUES[number % 3]
    last = 1.0 if number < _OLDEST else time.time()
    return DeadLetter(
        id=f"{number:016x}", task=task, task_id=task_id, reason="exhausted" if error else "poison",
        queue=queue, envelope=call, key=task_id, kind="given", stamp=number + 1, life=1,
        error_type=_ERRORS[error % 3], error_message="x" * 200, traceback="y" * 500,
        error_fingerprint=f"g{number % len(_TASKS)}{error}", first_failure=1.0, last_failure=last,
        tenant=None if error else f"t{number % 4}", attempts=5,
    )  # fmt: skip
