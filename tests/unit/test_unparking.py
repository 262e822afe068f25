"""Who brings parked messages back, and when: on memory transport and memory store, with a consumer that only consumes."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

from celery import Celery

from celery_reliable import ReliableTask
from celery_reliable.parking import Kind, Parked
from celery_reliable.payloads import PARKED_HEADER, RawMessage
from celery_reliable.testing import in_memory
from celery_reliable.worker.refusals import Refusals
from celery_reliable.worker.unparking import Unparking

KIND = Kind("shop.charge", 1, "unparking")


def consumer_of(app: Celery, *queues: str) -> Any:
    """What a worker's consumer shows of itself."""
    consuming = SimpleNamespace(queues=[SimpleNamespace(name=name) for name in queues])
    return SimpleNamespace(app=app, strategies=dict(app.tasks), task_consumer=consuming)


def test_a_worker_that_comes_up_brings_back_what_waits_for_it() -> None:
    """At once, however often others have parked it, and whoever else looks after its kind; later it waits as long as for all."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://")

    def charge() -> None: ...

    app.task(base=ReliableTask, name="shop.charge", shared=False)(charge)
    with in_memory(app) as bench:
        parking = Refusals(app).parking
        raw = RawMessage(queue="unparking", body=base64.b64encode(b"[[], {}, {}]").decode(), headers={"id": "one"})

        def park() -> None:
            now = parking.now()
            parking.park(
                Parked(kind=KIND, task_id="one", reason="unregistered", why="", message=raw, since=now, at=now, times=7)
            )

        def kept() -> int:
            return len(list(parking.everything()))

        older = Unparking(consumer_of(app, "unparking"), Refusals(app))
        older.look()
        park()
        bench.elapse(3.0)
        older.look()
        assert kept() == 1

        newer = Unparking(consumer_of(app), Refusals(app))  # its queues come with its connection
        newer.look()
        assert kept() == 1
        ready = Unparking(consumer_of(app, "unparking"), Refusals(app))
        ready.look()
        assert kept() == 0
        with app.connection_for_read() as connection:
            (back,) = filter(None, [connection.default_channel.basic_get("unparking")])
        assert back.headers[PARKED_HEADER]["times"] == 6  # an older worker that takes it up now adds no wait

        park()
        bench.elapse(3.0)
        ready.look()
        older.look()
        assert kept() == 1
        bench.elapse(60.0)
        older.look()
        ready.look()
        assert kept() == 0
