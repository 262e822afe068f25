"""Green workers on Redis with a prefetch multiplier of 1: as quick as other pools."""

from __future__ import annotations

import select
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from celery import Celery
from celery.result import GroupResult

from celery_reliable.worker.waker import Alarm
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.workers import Workers

# Without the waker 100 no-op tasks take at least 38 s on gevent and eventlet: the consumer sleeps between any two
# rounds. With it they take less than one.
TASKS = 100
DEADLINE = 20.0

PROJECT = """
import os
from celery import Celery

app = Celery("green", broker=os.environ["URL"], backend=os.environ["URL"])
app.config_from_object("celery_reliable.presets")

@app.task(shared=False, name="green.nothing")
def nothing():
    pass
"""


@pytest.fixture
def producer(redis_url: str) -> Celery:
    """An app that sends by name, and waits on Redis in this process."""
    return Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)


def start_green(workers: Workers, pool: str, *, url: str, directory: Path) -> None:
    """Start a worker of four greenlets."""
    (directory / "green.py").write_text(PROJECT)
    workers.start("green", pool=pool, concurrency=4, cwd=directory, env={"URL": url})


def send(producer: Celery) -> GroupResult:
    """Send all tasks and return their results."""
    return GroupResult("all", [producer.send_task("green.nothing") for _ in range(TASKS)])


def wait_done(results: GroupResult) -> None:
    """Return when every task is done, or fail at the deadline."""
    wait_until(lambda: results.completed_count() == TASKS, DEADLINE, f"{TASKS} tasks done")


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_green_worker_takes_the_next_message_when_one_is_done(
    workers: Workers, producer: Celery, pool: str, redis_url: str, tmp_path: Path
) -> None:
    """A hundred tasks are done long before the consumer's own sleeps would have ended."""
    start_green(workers, pool, url=redis_url, directory=tmp_path)

    wait_done(send(producer))


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_green_worker_is_woken_on_its_new_connection_too(
    workers: Workers, producer: Celery, pool: str, redis_url: str, tmp_path: Path
) -> None:
    """The broker cut every connection: the alarm hangs in the poller of the next one."""
    start_green(workers, pool, url=redis_url, directory=tmp_path)
    wait_done(send(producer))

    with redis.Redis.from_url(redis_url) as admin:
        for client in admin.client_list():
            if client["id"] != str(admin.client_id()):
                admin.client_kill_filter(_id=client["id"])

    wait_done(send(producer))


def readable(alarm: Alarm) -> bool:
    """Tell whether a poller would wake."""
    return bool(select.select([alarm], [], [], 0)[0])


def test_an_alarm_rings_until_it_is_silenced() -> None:
    """Any number of rings is one."""
    alarm = Alarm()
    assert not readable(alarm)

    alarm.ring()
    alarm.ring()
    assert readable(alarm)

    alarm.silence()
    assert not readable(alarm)
    alarm.silence()
    alarm.close()


def test_an_alarm_that_nobody_answers_never_blocks() -> None:
    """Acks go on when the consumer is stuck, even beyond what a socket can hold."""
    alarm = Alarm()
    for _ in range(20_000):
        alarm.ring()

    assert readable(alarm)
    alarm.close()


def test_a_closed_alarm_does_nothing() -> None:
    """A task may outlive the connection that its message came by."""
    alarm = Alarm()
    alarm.close()
    alarm.close()

    alarm.ring()
    alarm.silence()
    assert alarm.fileno() == -1
