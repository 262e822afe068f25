"""Measure what it costs to be seen: events, metrics, trails, the status screen, dead letters by the million."""

from __future__ import annotations

import itertools
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases import OWN, close_app, make_app
from benchmarks.report import Figure
from celery_reliable import trails
from celery_reliable.dead_letters import DeadLetter, DeadLetters, Filter
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
    """Measure one event that nobody hears, and all events of one task with Prometheus on."""
    logger.setLevel(logging.WARNING)
    alone = Events()
    took = _each(lambda: alone.emit("done", **_JOB, attempt=1))
    yield Figure("event without a subscriber", took * 1e6, "µs", at_most=2)
    app = make_app(OWN, broker=redis.url, store=redis.url)
    metrics = _metrics(app)
    heard = Events([metrics])

    def task() -> None:
        heard.emit("submitted", **_JOB)
        heard.emit("claimed", **_CLAIMED)
        heard.emit("done", **_JOB, attempt=1)

    app.tasks["noop"].push_request(reliable={"s": 1_764_493_999_000_000}, delivery_info={"routing_key": "celery"})
    try:
        yield Figure("all events of a task, with Prometheus", _each(task) * 1e6, "µs", at_most=30)
    finally:
        app.tasks["noop"].pop_request()
        metrics.close()
        close_app(app)


def _metrics(app: Any) -> Any:
    from celery_reliable.contrib.prometheus import EventMetrics  # noqa: PLC0415  # an extra

    metrics = EventMetrics(app)
    metrics.share()
    return metrics


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
    """Measure a page of very many letters, and how many are replayed in a second."""
    redis.flush()
    app = make_app(OWN, broker=redis.url, store=redis.url)
    store = runtime_of(app).store
    fill(store, kept)
    desk = DeadLetters(store, events=Events(), publish=lambda _: None)
    for name, wanted in _FILTERS.items():
        began = time.perf_counter()
        page = list(itertools.islice(desk.search(wanted), 50))
        took = time.perf_counter() - began
        assert len(page) == 50, (name, len(page))  # noqa: PLR2004  # a page
        yield Figure(f"50 of {kept:,} letters, by {name}", took * 1000, "ms", at_most=50)
    began = time.perf_counter()
    desk.replay_many(Filter(task="shop.common"), who="bench", limit=replayed)
    yield Figure("letters replayed", replayed / (time.perf_counter() - began), "a second", at_least=1000)
    close_app(app)


_FILTERS = {"no filter": Filter(), "age": Filter(since=1.0)}


def fill(store: Store, kept: int) -> None:
    """Keep letters as a store of a year has them."""
    for number in range(kept):
        call = Envelope("shop.common", str(uuid.uuid4()), json.dumps([[number], {}, {}]))
        letter = DeadLetter.of(None, reason="exhausted", envelope=call, now=time.time(), message="x" * 200)
        store.keep_letter(letter.id, letter=letter.to_bytes(), letter_ttl=1e6, letter_max=2 * kept)
