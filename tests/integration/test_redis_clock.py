"""Leases end by the server's clock, which a client measures and must not trust for long."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_reliable.runtime import forget_runtime, runtime_of
from celery_reliable.stores.base import Busy, Job, Run
from celery_reliable.stores.redis import RedisStore
from celery_reliable.worker.lease_keeper import LeaseKeeper

if TYPE_CHECKING:
    from celery_reliable.testing.servers import RedisServer

pytestmark = pytest.mark.integration


def times_asked(server: RedisServer) -> int:
    """Return how often the server was asked for its time by a plain TIME."""
    stats = str(server.command("INFO", "commandstats"))
    return int(stats.split("cmdstat_time:calls=")[1].split(",", maxsplit=1)[0]) if "cmdstat_time" in stats else 0


def test_clock_is_asked_once_a_minute(private_redis: RedisServer) -> None:
    """A submission costs no question for the time."""
    store = RedisStore(private_redis.url)
    moments = [store.now() for _ in range(100)]
    assert moments == sorted(moments)
    assert times_asked(private_redis) == 1
    store.close()


def test_clock_is_asked_again_after_a_lost_connection(private_redis: RedisServer) -> None:
    """Behind the same address may be another server now, with another clock: a lease of the old one could end at once."""
    store = RedisStore(private_redis.url)
    store.now()
    private_redis.restart()
    store.letter_counts()  # meets the lost connection
    private_redis.command("CONFIG", "RESETSTAT")
    for _ in range(3):
        store.now()
    assert times_asked(private_redis) == 1
    store.close()


def test_clock_is_known_without_asking_until_the_connection_is_lost(private_redis: RedisServer) -> None:
    """Who may not wait, such as the consumer's thread, asks for no more than that."""
    store = RedisStore(private_redis.url)
    assert store.known_now() is None
    store.now()
    private_redis.stop()
    assert store.known_now() is not None
    private_redis.start()
    store.letter_counts()  # meets the lost connection
    assert store.known_now() is None
    store.close()


def test_worker_knows_the_clock_from_its_first_beat_on(redis_url: str) -> None:
    """Its main process claims nothing on prefork; its consumer needs the clock for what waits, and must not ask."""
    with Celery("jobs", broker="memory://", set_as_current=False) as app:
        app.config_from_object("celery_reliable.presets")
        app.conf.reliable_store_url = redis_url
        LeaseKeeper(SimpleNamespace(app=app)).beat()
        assert runtime_of(app).store.known_now() is not None
        forget_runtime(app)


def test_first_claim_over_a_lost_connection_goes_by_the_server_s_clock(private_redis: RedisServer) -> None:
    """Not by the offset measured before; and it is one claim."""
    store = RedisStore(private_redis.url)
    job = Job(str(uuid.uuid4()), "own", store.now())
    private_redis.restart()
    facts: dict[str, Any] = {
        "task_id": job.key,
        "life": 1,
        "ttl": 60.0,
        "max_deliveries": 5,
        "record_ttl": 60.0,
        "first": True,
    }
    assert isinstance(store.claim(job, token="one", **facts), Run)
    assert isinstance(store.claim(job, token="two", **facts), Busy)
    store.close()
