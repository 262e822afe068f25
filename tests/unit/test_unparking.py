"""Who brings parked messages back, and when: on memory transport and memory store, with a consumer that only consumes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_reliable import ReliableTask
from celery_reliable.parking import Kind, Parked
from celery_reliable.payloads import PARKED_HEADER, RawMessage
from celery_reliable.testing import in_memory
from celery_reliable.testing.bench import Bench
from celery_reliable.worker.refusals import Refusals
from celery_reliable.worker.unparking import Unparking

QUEUE = "unparking"
KIND = Kind("shop.charge", 1, QUEUE)


def consumer_of(app: Celery, *queues: str) -> Any:
    """What a worker's consumer shows of itself."""
    consuming = SimpleNamespace(queues=[SimpleNamespace(name=name) for name in queues])
    return SimpleNamespace(app=app, strategies=dict(app.tasks), task_consumer=consuming)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An app that knows the task."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://")

    def charge() -> None: ...

    app.task(base=ReliableTask, name="shop.charge", shared=False)(charge)
    with in_memory(app) as bench:
        yield bench


def unparking(bench: Bench, *queues: str) -> Unparking:
    """A worker that consumes these queues."""
    return Unparking(consumer_of(bench.app, *queues), Refusals(bench.app))


def park(bench: Bench) -> None:
    """Have an incapable worker park the message, for the seventh time."""
    parking = Refusals(bench.app).parking
    raw = RawMessage(queue=QUEUE, body=base64.b64encode(b"[[], {}, {}]").decode(), headers={"id": "one"})
    now = parking.now()
    parking.park(
        Parked(kind=KIND, task_id="one", reason="unregistered", why="", message=raw, since=now, at=now, times=7)
    )


def kept(bench: Bench) -> int:
    """Count what is parked."""
    return len(list(Refusals(bench.app).parking.everything()))


def test_a_worker_that_comes_up_brings_back_what_waits_for_it(bench: Bench) -> None:
    """At once, however often others have parked it, and whoever else looks after its kind."""
    older = unparking(bench, QUEUE)
    older.look()
    park(bench)
    bench.elapse(3.0)
    older.look()
    unparking(bench).look()  # its queues come with its connection
    assert kept(bench) == 1
    unparking(bench, QUEUE).look()
    assert kept(bench) == 0
    with bench.app.connection_for_read() as connection:
        (back,) = filter(None, [connection.default_channel.basic_get(QUEUE)])
    assert back.headers[PARKED_HEADER]["times"] == 6  # an older worker that takes it up now adds no wait


def test_what_is_parked_after_a_worker_came_up_waits_as_long_as_for_all(bench: Bench) -> None:
    """Or two workers would play ping-pong with it."""
    older, newer = unparking(bench, QUEUE), unparking(bench, QUEUE)
    for one in (older, newer):
        one.look()
    park(bench)
    for seconds, left in ((3.0, 1), (60.0, 0)):
        bench.elapse(seconds)
        for one in (newer, older):
            one.look()
        assert kept(bench) == left
