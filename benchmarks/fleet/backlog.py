"""Sweep the ledger over a backlog of submissions that all wait: what it costs, and that none is published again."""

from __future__ import annotations

import json
import time
import uuid
import zlib
from dataclasses import dataclass

import redis

from benchmarks.fleet.crew import Crew, crew
from benchmarks.fleet.jobs import QUEUE
from celery_reliable.payloads import Envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.broker import RedisBroker
from celery_reliable.worker.recovery import LedgerSweep

_BATCH = 5000
_HOUR = 3_600_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the whole ledger: how many messages were published again; seconds, and bytes of the server for each job."""

    published: int
    seconds: float
    longest_look: float
    memory: float


def sweep(*, count: int) -> Pass:
    """Let one message of so many vanish, and look at all."""
    with crew() as made:
        store_url = runtime_of(made.app).settings.store_url
        with redis.Redis.from_url(made.app.conf.broker_url) as broker, redis.Redis.from_url(str(store_url)) as store:
            _fill(made, broker, store, count=count)
            memory = broker.info("memory")["used_memory"] / count
            broker.rpop(QUEUE)  # the oldest: it would be taken next
            with made.app.connection_for_write() as connection:
                looks = _looks(made, RedisBroker(connection.default_channel))
            published = int(broker.llen(QUEUE)) - (count - 1)
        return Pass(published, sum(looks), max(looks), memory)


def _looks(made: Crew, view: RedisBroker) -> list[float]:
    """Return how long each look of one pass took."""
    swept, looks = LedgerSweep(made.app), list[float]()
    while swept.is_due():
        began = time.perf_counter()
        swept.look(view, queues={QUEUE})
        looks.append(time.perf_counter() - began)
    view.close()
    return looks


def _fill(made: Crew, broker: redis.Redis, store: redis.Redis, *, count: int) -> None:
    """Make many of one real submission: its message and its ledger entry, each under an id of its own, a little later each."""
    made.submit("mark", 0)
    (raw,) = broker.lrange(QUEUE, 0, -1)
    ((task_id, entry),) = store.hgetall("cr:led").items()
    text = Envelope.from_bytes(entry).to_bytes()
    plain = (text if text[:1] == b"[" else zlib.decompress(text)).decode()
    message, first = raw.decode(), task_id.decode()
    stamp = json.loads(message)["headers"]["reliable"]["s"]
    broker.delete(QUEUE)
    store.delete("cr:led")
    for start in range(0, count, _BATCH):
        renamed = {
            str(uuid.UUID(int=number)): str(stamp - _HOUR + number)
            for number in range(start, min(start + _BATCH, count))
        }
        broker.lpush(QUEUE, *(message.replace(first, one).replace(str(stamp), at) for one, at in renamed.items()))
        entries = {one: plain.replace(first, one).replace(str(stamp), at) for one, at in renamed.items()}
        store.hset("cr:led", mapping=entries)
