"""``celery reliable status``: the fleet on one screen, seen in store and broker, with nobody asked."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from celery_reliable.beat.leadership import LEADER, LEADER_SHELF, MEMBER_SHELF, Member
from celery_reliable.cli import reliable
from celery_reliable.fleet import look, sight_of
from celery_reliable.heartbeats import SHELF, LifeSign, Process
from celery_reliable.runtime import runtime_of
from celery_reliable.slots import desk
from celery_reliable.slots.records import SlotRecord
from celery_reliable.stores.notes import Write
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.fleet import Fleet, QueueState
    from celery_reliable.testing.servers import ExternalServer, Server
    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]

CONF: dict[str, Any] = {"reliable_heartbeat_interval": 1, "broker_transport_options": {"priority_steps": [0, 3, 6, 9]}}


@pytest.fixture(scope="module")
def stage(module_redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A fleet whose workers give a sign each second."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=CONF)


def run(app: Celery, *words: str, code: int = 0) -> str:
    """Run a command of ``celery reliable`` in this process; return what it prints."""
    environment = {"COLUMNS": "120"}
    found = CliRunner(env=environment).invoke(reliable, words, obj=SimpleNamespace(app=app, no_color=True))
    assert found.exit_code == code, found.output
    return found.output


def seen(app: Celery) -> Fleet:
    """Look once."""
    sight = sight_of(app)
    try:
        return look(app, sight=sight)
    finally:
        sight.close()


def queue(app: Celery, name: str) -> QueueState:
    """Return the state of one queue."""
    sight = sight_of(app)
    try:
        [found] = sight.look([name], now=runtime_of(app).store.now() / 1e6)
        return found
    finally:
        sight.close()


def sign_of(number: int, **changes: Any) -> LifeSign:
    """A worker's sign, as it would be written."""
    process = Process(f"host-{number:03}", "", "", 100 + number, "")
    sign = LifeSign(
        role="worker", node=f"w{number:03}@host-{number:03}", state="busy", owner=f"owner-{number}", process=process,
        at=time.time(), clock=0.0, interval=5.0, queues=("celery",), pool="prefork", concurrency=4, running=1,
        busy={"celery": 1},
    )  # fmt: skip
    return replace(sign, **changes)


def announce(app: Celery, *signs: LifeSign) -> None:
    """Write signs to the store."""
    writes = [Write(name=sign.owner, value=sign.to_json().encode(), ttl=60.0) for sign in signs]
    runtime_of(app).store.notes.write(SHELF, writes)


@pytest.fixture
def empty(app: Celery, stage: Stage) -> Iterator[Celery]:
    """The app on an empty store."""
    with redis.Redis.from_url(str(stage.store)) as store:
        store.flushdb()
        yield app
        store.flushdb()


class TestRealFleet:
    """Workers, queues and letters of a fleet that works."""

    def test_worker_queues_and_letters_are_shown(self, app: Celery, stage: Stage, workers: Workers, label: str) -> None:
        """What runs, by queue; what waits; what died, by reason; and a worker that was told to stop."""
        worker = workers.start("tests.integration.apps.worker", pool="threads", concurrency=2, env=stage.environment())
        for number in range(3):
            app.tasks["held"].delay(f"{label}:{number}", label)
        app.tasks["add"].apply_async((1, label), queue="nobody")
        wait_until(lambda: seen(app).running == 2, 20, "two tasks run")
        fleet = seen(app)
        [one] = fleet.workers
        assert (one.state, one.sign.pool, one.sign.concurrency, one.sign.busy) == ("busy", "threads", 2, {"celery": 2})
        assert fleet.held in {2, 3}  # one may be prefetched
        assert (queue(app, "nobody").waiting, fleet.consumers_of("nobody")) == (1, 0)
        worker.terminate()
        wait_until(lambda: {one.state for one in seen(app).workers} == {"draining"}, 10, "the drain is seen")
        stage.open(label)
        assert worker.wait() == 0
        assert seen(app).workers == ()

    def test_letters_are_counted_by_reason(self, app: Celery, stage: Stage, workers: Workers, label: str) -> None:
        """Of those that are open."""
        worker = workers.start("tests.integration.apps.worker", pool="solo", env=stage.environment())
        for name in ("hopeless", "broken"):
            stage.wait_event("buried", app.tasks[name].delay(label).id)
        assert seen(app).deaths.reasons["permanent"] >= 2
        wait_until(lambda: seen(app).ended_in("celery")[1] >= 2, 10, "the worker's sign of two failures")
        screen = run(app, "status")
        for words in ("1 worker:", "WORKER", "worker1", "QUEUE", "permanent", "kept"):
            assert words in screen
        record = json.loads(run(app, "status", "--json"))
        assert record["queues"][0]["workers"] == 1
        assert worker.stop() == 0


class TestQueues:
    """True depth and age."""

    def test_every_list_of_a_priority_queue_is_counted(self, app: Celery) -> None:
        """A bare LLEN would see one of four."""
        name = uuid.uuid4().hex
        for priority in (0, 3, 6, 9):
            app.tasks["add"].apply_async((1, "x"), queue=name, priority=priority)
        assert queue(app, name).waiting == 4

    def test_age_counts_from_when_a_message_was_due(self, app: Celery, stage: Stage) -> None:
        """A message of an hour ago is an hour old; a retry counts from its ETA, one that came back not at all."""
        name = uuid.uuid4().hex
        app.tasks["add"].apply_async((1, "x"), queue=name)
        assert 0 <= (queue(app, name).oldest or -1) < 5
        with redis.Redis.from_url(stage.broker) as broker:
            [raw] = broker.lrange(name, 0, -1)
            message = json.loads(raw)
            now = runtime_of(app).store.now()

            def put(**headers: Any) -> None:
                broker.delete(name)
                broker.lpush(name, json.dumps({**message, "headers": {**message["headers"], **headers}}))

            old = {**message["headers"]["reliable"], "s": now - 3_600_000_000}
            put(reliable=old)
            assert queue(app, name).oldest == pytest.approx(3600, abs=5)
            put(reliable=old, eta=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now / 1e6 - 60)))
            assert queue(app, name).oldest == pytest.approx(60, abs=5)
            put(reliable=old, eta=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now / 1e6 + 60)))
            assert queue(app, name).oldest is None
            put(reliable=old, redelivered=True)
            assert queue(app, name).oldest is None

    def test_rabbitmq_tells_length_and_consumers(
        self, rabbitmq_server: Server | ExternalServer, tmp_path: Path
    ) -> None:
        """By a passive declaration, which makes no queue."""
        name = uuid.uuid4().hex
        stage = Stage(tmp_path, broker=rabbitmq_server.url, backend="cache+memory://", store="memory://")
        with client(stage) as app:
            assert (queue(app, name).waiting, queue(app, name).consumers) == (0, 0)
            app.tasks["add"].apply_async((1, "x"), queue=name)
            assert (queue(app, name).waiting, queue(app, name).consumers) == (1, 0)
            assert seen(app).held is None


class TestLargeFleet:
    """Two hundred workers, a leader, a schedule."""

    def test_two_hundred_workers_are_shown_within_a_second(self, empty: Celery) -> None:
        """From notes alone; what is wrong comes first, what fits no screen is counted."""
        announce(empty, *(sign_of(number) for number in range(199)), sign_of(999, state="stuck"))
        began = time.monotonic()
        screen = run(empty, "status")
        took = time.monotonic() - began
        assert "200 workers: 199 busy, 1 stuck. 200 of 800 slots" in screen
        assert screen.index("w999@") < screen.index("w000@")
        assert "and 188 more" in screen
        assert screen.count("@host") == 12
        assert run(empty, "status", "--all").count("@host") == 200
        assert took < 5, "a second on a machine that does nothing else; see benchmarks"

    def test_worker_without_a_sign_is_silent(self, empty: Celery) -> None:
        """Before its note is gone; what it said that it ran does not count."""
        announce(empty, sign_of(1, interval=0.01))
        wait_until(lambda: seen(empty).workers[0].state == "silent", 10, "silent after three signs and a second")
        assert seen(empty).running == 0

    def test_beat_and_its_next_slots_are_shown(self, empty: Celery) -> None:
        """Who leads, since when; no leader at all is shown as what it is."""
        notes, now = runtime_of(empty).store.notes, runtime_of(empty).store.now()
        record = SlotRecord("1", now, "fired", task="shop.collect", following=now + 90_000_000)
        notes.write(desk.SHELF, [Write(name="collect", value=record.to_bytes(), ttl=60.0)])
        assert "No beat leads" in run(empty, "status")
        member = Member("tok", "host-b", 77, time.time(), 10.0, epoch=now)
        notes.write(MEMBER_SHELF, [Write(name="tok", value=member.to_bytes(), ttl=60.0)])
        notes.write(LEADER_SHELF, [Write(name=LEADER, value=member.to_bytes(), ttl=60.0)])
        screen = run(empty, "status")
        assert "host-b pid 77 leads" in screen
        assert "collect" in screen

    def test_breakers_that_keep_tasks_waiting_are_shown(self, empty: Celery) -> None:
        """Only those: a closed one is none of the operator's worries."""
        breakers = runtime_of(empty).breakers
        breakers.open("payments")
        breakers.open("mail")
        breakers.close("mail")
        assert "1 breaker not closed, tasks wait: payments (held open)" in run(empty, "status")
        assert seen(empty).breakers["payments"] == "held_open"

    def test_broker_that_is_away_is_one_line(self, tmp_path: Path) -> None:
        """Exit code 1."""
        stage = Stage(tmp_path, broker="redis://127.0.0.1:1/0", backend="cache+memory://", store="memory://")
        with client(stage) as app:
            assert "away" in run(app, "status", code=1)
