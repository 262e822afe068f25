"""Queues with limits on real brokers: their true depth and age, and what goes on when they are full."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain

from celery_reliable import QueueFull
from celery_reliable.contrib.prometheus import FleetCollector
from celery_reliable.flow.ages import SHELF as AGES
from celery_reliable.runtime import runtime_of
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.workers import ROOT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0
DEPTH = 20
AGE = 5
CONF: dict[str, Any] = {
    "reliable_queue_limits": {
        "reports": {"depth": DEPTH},
        "patient": {"depth": 1, "mode": "block", "wait": 25},
        "fresh": {"age": 1},
        "busy": {"depth": 3},
    },
    "worker_prefetch_multiplier": 1,
}

PRODUCERS = """
import multiprocessing, sys
from celery_reliable import QueueFull
from celery_reliable.flow.ages import SHELF as AGES
from celery_reliable.runtime import runtime_of
from tests.integration.apps.worker import app

def produce(number):
    sent = 0
    try:
        for number in range(100):
            app.tasks["add"].apply_async((number, sys.argv[1]), queue="reports", priority=number % 10)
            sent += 1
    except QueueFull as full:
        return f"{sent} {full.queue} {full.depth} {full.retry_after is not None}"

runtime_of(app).admission.ask("reports")  # its connection must not be shared after the fork
with multiprocessing.get_context("fork").Pool(4) as pool:
    print(*pool.map(produce, range(4), chunksize=1), sep="\\n")
"""


@pytest.fixture(scope="module")
def stage(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Queues with limits."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=CONF)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


def submitted(app: Celery, queue: str, label: str, *, most: int = 100) -> int:
    """Submit until the queue is full; return how many went in."""
    for number in range(most):
        try:
            app.tasks["add"].apply_async((number, label), queue=queue)
        except QueueFull:
            return number
    return most


def test_producers_share_a_limit_over_all_priorities(app: Celery, stage: Stage, label: str) -> None:
    """Four processes at once overshoot by what each sends before it looks again, no more; then nobody gets in."""
    command = [sys.executable, "-c", PRODUCERS, label]
    environment = {**os.environ, **stage.environment(), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    answers = [line.split() for line in run.stdout.splitlines()]
    sent = [int(answer[0]) for answer in answers]
    assert DEPTH <= sum(sent) <= 4 * DEPTH
    assert [answer[1] for answer in answers] == ["reports"] * 4
    assert all(int(answer[2]) >= DEPTH for answer in answers)
    with pytest.raises(QueueFull) as caught:
        app.tasks["add"].apply_async((1, label), queue="reports")
    assert caught.value.depth == sum(sent)
    assert caught.value.age is not None
    assert caught.value.age > 0
    assert len(stage.events("queue_full")) == 5


def test_a_queue_is_too_old_by_its_oldest_message_and_not_by_one_that_waits_on_purpose(app: Celery, label: str) -> None:
    """A call with a countdown says nothing about how fast a queue is served."""
    add = app.tasks["add"]
    add.apply_async((0, label), queue="fresh", countdown=300)
    add.apply_async((1, label), queue="fresh")
    admission, began = runtime_of(app).admission, time.monotonic()
    assert admission is not None

    def age_when_refused() -> float | None:
        try:
            admission.ask("fresh")
        except QueueFull as full:
            return full.age
        return None

    age = wait_until(age_when_refused, DEADLINE, "the queue too old")
    assert age is not None
    assert 1.0 <= age <= time.monotonic() - began + 1
    assert time.monotonic() - began >= 0.9


def test_a_blocked_submission_goes_in_when_there_is_room(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """It waits for a worker to take what waits."""
    app.tasks["add"].apply_async((0, label), queue="patient")
    done = threading.Event()

    def submit() -> None:
        app.tasks["add"].apply_async((1, label), queue="patient")
        done.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert not done.wait(1.5)
    workers.start(APP, pool="threads", env=stage.environment(), arguments=(*QUICK, "-Q", "patient"), ready=False)
    thread.join(DEADLINE)
    assert done.is_set()
    stage.wait_entries(label, 2, timeout=DEADLINE)


def test_what_was_accepted_goes_on_when_its_queue_is_full(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """A retry and the next step of a chain are sent at once."""
    tasks = app.tasks
    failing = tasks["held_then_failing"].apply_async((f"{label}:1", label), {"fails": 1}, queue="busy")
    first = tasks["held"].si(f"{label}:2", label).set(queue="busy")
    steps = chain(first, tasks["add"].si(1, f"{label}:next").set(queue="busy")).apply_async()
    arguments = (*QUICK, "-Q", "busy")
    workers.start(APP, concurrency=2, env=stage.environment(), arguments=arguments, ready=False)
    for number in (1, 2):
        stage.wait_entries(f"{label}:{number}", 1, timeout=DEADLINE)
    wait_until(lambda: submitted(app, "busy", f"{label}:fill") == 0, DEADLINE, "a full queue")
    stage.open(label)
    assert (failing.get(timeout=DEADLINE), steps.get(timeout=DEADLINE)) == (2, 2)
    assert stage.events("publish_failed") == []


def test_depth_on_rabbitmq(rabbitmq_server: Any, module_redis: RedisServer, tmp_path: Path, label: str) -> None:
    """By a passive declaration, which leaves the messages alone; the queue need not be there yet."""
    redis_url = module_redis.url.removesuffix("/0")
    conf = {"reliable_queue_limits": {label: {"depth": 5}}}
    stage = Stage(tmp_path, broker=rabbitmq_server.url, backend=f"{redis_url}/4", store=f"{redis_url}/5", conf=conf)
    with client(stage) as app:
        assert submitted(app, label, label) == 5
    with client(stage) as app:
        wait_until(lambda: submitted(app, label, label, most=1) == 0, DEADLINE, "a full queue")
        with app.connection_for_write() as connection:
            found = connection.default_channel.queue_declare(label, passive=True)
            assert found.message_count == 5
            connection.default_channel.queue_delete(label)


def exported_ages(app: Celery) -> dict[str, float]:
    """Return what the fleet's exporter tells of the age of queues."""
    samples = (sample for family in FleetCollector(app).collect() for sample in family.samples)
    return {one.labels["queue"]: one.value for one in samples if one.name == "celery_reliable_queue_oldest_seconds"}


def test_age_on_rabbitmq(
    rabbitmq_server: Any, module_redis: RedisServer, tmp_path: Path, workers: Workers, label: str
) -> None:
    """RabbitMQ shows no message: it is not older than what a worker received last, or the last look at an empty queue."""
    redis_url = module_redis.url.removesuffix("/0")
    conf = {"reliable_queue_limits": {label: {"age": AGE}}}
    stage = Stage(tmp_path, broker=rabbitmq_server.url, backend=f"{redis_url}/6", store=f"{redis_url}/7", conf=conf)
    with client(stage) as app:
        admission = runtime_of(app).admission
        assert admission is not None
        assert submitted(app, label, f"{label}:unknown", most=3) == 3  # no worker has told anything
        workers.start(APP, pool="threads", env=stage.environment(), arguments=(*QUICK, "-Q", label))
        stage.wait_entries(f"{label}:unknown", 3, timeout=DEADLINE)
        told = runtime_of(app).store.notes

        def seen_empty() -> bool:
            note = told.read(AGES, [label]).get(label)
            return note is not None and int(note.value) > runtime_of(app).store.now() - 2_000_000

        running = app.tasks["held"].apply_async((f"{label}:held", f"{label}:held"), queue=label)
        stage.wait_entries(f"{label}:held", 1, timeout=DEADLINE)
        wait_until(seen_empty, DEADLINE, "an empty queue")  # the only slot is busy, and nothing waits
        assert submitted(app, label, label, most=1) == 1
        began = time.monotonic()

        def refused() -> QueueFull | None:
            try:
                admission.ask(label)
            except QueueFull as full:
                return full
            return None

        full = wait_until(refused, DEADLINE, "the queue too old")
        passed = time.monotonic() - began
        assert full is not None
        assert full.age is not None
        assert AGE <= full.age <= passed + 3.5
        assert passed > AGE - 3.5
        assert exported_ages(app)[label] >= full.age  # what the alert on old queues looks at
        stage.open(f"{label}:held")
        running.get(timeout=DEADLINE)
        wait_until(lambda: not refused(), DEADLINE, "a young queue")
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(label)
