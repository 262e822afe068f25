"""Messages that cannot run where they arrive: parked, or kept as dead letters, on Redis and RabbitMQ."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import pickle
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import chord
from celery.exceptions import ChordError, NotRegistered

from celery_reliable import Permanent
from celery_reliable.app_letters import letters_of
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.errors import ReplayRefused
from celery_reliable.parking import Kind, Parked, Parking
from celery_reliable.payloads import VERSION_HEADER, RawMessage
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.broker import RedisBroker
from celery_reliable.worker.recovery import LedgerSweep
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.rolling"
DEADLINE = 30.0
GOOD = b"[[], {}, {}]"
WITHOUT = {"CR_WITHOUT": "pair"}  # an old release, which has no such task


# --- servers and workers


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    """The broker of a module's tests."""
    return str(request.param)


@pytest.fixture(scope="module")
def stage(
    broker: str, request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    """A stage with a queue of its own."""
    module_redis.flush()
    queue = f"intake-{uuid.uuid4().hex}"
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp(broker), conf={"task_default_queue": queue})
    if broker == "rabbitmq":
        return dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    return stage


def start(
    workers: Workers, stage: Stage, *, ready: bool = True, env: Mapping[str, str] | None = None, pool: str = "solo"
) -> Worker:
    """Start a worker; mostly solo is enough: what is tested happens in the consumer."""
    return workers.start(APP, pool=pool, env={**stage.environment(), **(env or {})}, arguments=QUICK, ready=ready)


def on(stage: Stage, tmp_path: Path, **conf: Any) -> Stage:
    """Return the stage with a queue, a store and a directory of its own."""
    prefix = f"{uuid.uuid4().hex[:8]}:"
    extra = {"task_default_queue": uuid.uuid4().hex, "reliable_key_prefix": prefix, **conf}
    return dataclasses.replace(stage, directory=tmp_path, conf={**stage.conf, **extra})


# --- messages


def queue_of(stage: Stage) -> str:
    """The queue of a stage's workers."""
    return str(stage.conf["task_default_queue"])


Message = tuple[bytes, dict[str, Any], dict[str, str]]

PICKLE = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}


def send(app: Celery, *messages: Message) -> None:
    """Put messages into the workers' queue as they are, past everything that Celery does to one."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        for body, headers, content in messages:
            usual = {"content_type": "application/json", "content_encoding": "utf-8"}
            message = channel.prepare_message(body, headers=headers, **{**usual, **content})
            channel.basic_publish(message, exchange="", routing_key=app.conf.task_default_queue)


def call(body: bytes, task: Any = "add", **headers: Any) -> Message:
    """Return a message with the headers that a Celery message must have."""
    return body, {"task": task, "id": uuid.uuid4().hex, **headers}, {}


def other(body: bytes, content_type: str, **headers: Any) -> Message:
    """Return a message of other content."""
    return body, headers, {"content_type": content_type}


def bad() -> Iterator[tuple[str, Message]]:
    """Return one message of each kind that cannot run, with the reason that is expected."""
    task_id = uuid.uuid4().hex
    yield "undecodable", call(b"{")
    yield "undecodable", call(b"\xff\xfe")
    yield "undecodable", (pickle.dumps([[], {}, {}]), call(b"")[1], PICKLE)
    yield "undecodable", other(GOOD, "application/x-nothing", task="add", id=task_id)
    yield "undecodable", call(GOOD, compression="application/x-nothing")
    yield "undecodable", other(b"hello", "text/plain")
    yield "invalid", (b'{"hello": 1}', {"x": "y"}, {})
    yield "invalid", (GOOD, {"task": "add"}, {})
    yield "invalid", call(GOOD, task=7)
    for body in (b"", b"[1]", b"123", b"null", b'{"x": 1}', b'["ab", {}, {}]', b"[[], [], {}]", b"[[], {}, 5]"):
        yield "invalid", call(body)
    yield "invalid", call(b'[[], {}, {"chord": "x"}]')
    wrong: dict[str, Any] = {"id": 7, "eta": "soon", "expires": 5, "timelimit": [1], "retries": "many"}
    for name, value in wrong.items():
        yield "invalid", call(GOOD, **{name: value})
    yield "invalid", call(GOOD, eta="9999-12-31T23:59:59+00:00")
    yield "invalid", call(GOOD, id=task_id, reliable={"i": task_id, "s": "x"})
    yield "unregistered", call(GOOD, task="elsewhere.task")
    yield "unregistered", (json.dumps({"task": "elsewhere.old", "id": task_id, "args": [1]}).encode(), {}, {})
    yield "incompatible", call(GOOD, **{VERSION_HEADER: 9})


ITEMS = (
    b"junk",
    b"\xff\xfe",
    b"[1]",
    b"{}",
    b'{"body": "e30=", "properties": {}}',
    b'{"properties": {"delivery_tag": []}}',
)
COPIES = 8


def letters(app: Celery) -> list[DeadLetter]:
    """Return all dead letters of a stage's store."""
    return list(letters_of(app).search())


def parked(app: Celery) -> dict[str, str]:
    """Return the reasons of what is parked, by task id."""
    runtime = runtime_of(app)
    return {one.task_id: one.reason for one in Parking(runtime.store, ttl=1.0, spare=1.0).everything()}


def remaining(app: Celery) -> int:
    """Return how many messages wait in the workers' queue; those that a worker held are back once it has ended."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        if hasattr(channel, "_size"):  # Redis, where an empty queue is none
            return int(channel._size(app.conf.task_default_queue))
        return int(channel.queue_declare(queue=app.conf.task_default_queue, passive=True).message_count)


@pytest.mark.parametrize("pool", ["solo", "prefork"])  # one loop without a hub, one with
def test_every_bad_message_is_accounted_for(
    stage: Stage, workers: Workers, tmp_path: Path, label: str, pool: str
) -> None:
    """Hundreds of every kind: the worker lives, runs the good message behind them, and each has its letter or is parked."""
    stage = on(stage, tmp_path)
    worker = start(workers, stage, pool=pool)
    with client(stage) as app:
        messages = [one for _ in range(COPIES) for one in bad()]
        send(app, *(message for _, message in messages))
        items = COPIES if stage.broker.startswith("redis") else 0
        with redis.Redis.from_url(stage.broker) if items else contextlib.nullcontext() as connection:
            for item in ITEMS * items:
                connection.lpush(queue_of(stage), item)  # type: ignore[union-attr]  # Redis if there are any
        misfit = app.send_task("add", (1,), {"y": 2}, task_id=f"{label}-misfit")
        assert app.tasks["add"].delay(1, label).get(timeout=DEADLINE) == 2
        with pytest.raises(TypeError, match="label"):
            misfit.get(timeout=DEADLINE)
        assert len(stage.entries(label)) == 1

        expected = collections.Counter(reason for reason, _ in messages)
        held = {reason: expected.pop(reason) for reason in ("unregistered", "incompatible")}
        expected["undecodable"] += len(ITEMS) * items
        expected["invalid"] += 1  # the call that does not fit
        wait_until(lambda: len(letters(app)) >= expected.total(), DEADLINE, "a letter of each")
        assert collections.Counter(one.reason for one in letters(app)) == expected
        assert collections.Counter(parked(app).values()) == held
        assert {one.queue for one in letters(app)} == {queue_of(stage)}
        assert worker.stop() == 0
        assert remaining(app) == 0


def test_unknown_calls_run_when_a_worker_comes_that_knows_them(
    stage: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """A rolling deploy: what the old release cannot run is parked, and runs once on the new one."""
    stage = on(stage, tmp_path)
    old = start(workers, stage, env=WITHOUT)
    with client(stage) as app, client(stage) as newer:
        type(newer.tasks["add"]).payload_version = 2
        unknown = [app.tasks["pair"].delay(number, 1, f"{label}:pair") for number in range(3)]
        newest = [newer.tasks["add"].delay(number, f"{label}:add") for number in range(3)]
        for result in (*unknown, *newest):
            stage.wait_event("parked", result.id)
        assert parked(app) == {one.id: "unregistered" for one in unknown} | {one.id: "incompatible" for one in newest}

        start(workers, stage, env={"CR_VERSIONS": "add=2"})
        old.stop()
        assert [result.get(timeout=DEADLINE) for result in (*unknown, *newest)] == [1, 2, 3, 1, 2, 3]
        assert len(stage.entries(f"{label}:pair")) == len(stage.entries(f"{label}:add")) == 3
        wait_until(lambda: not parked(app), DEADLINE, "nothing parked")


def test_parked_message_is_not_taken_for_a_lost_one(stage: Stage, tmp_path: Path, label: str) -> None:
    """The sweep of the ledger finds a submission in no queue and no worker; it asks for what is parked, too."""
    if not stage.broker.startswith("redis"):
        return  # no ledger
    stage = on(stage, tmp_path)
    with client(stage) as app, app.connection_for_write() as connection:
        result = app.tasks["pair"].delay(1, 2, label)
        parking = Parking(runtime_of(app).store, ttl=60.0, spare=1.0)
        message = RawMessage(queue=queue_of(stage), body="")
        kind = Kind("pair", 1, queue_of(stage))
        kept = {"task_id": result.id, "reason": "unregistered", "why": "", "message": message, "since": 0.0, "at": 0.0}
        parking.park(Parked(kind=kind, **kept))
        sweep, view = LedgerSweep(app, quiet=0.0), RedisBroker(connection.default_channel)
        redis.Redis.from_url(stage.broker).delete(queue_of(stage))
        for _ in range(3):
            sweep.look(view, queues={queue_of(stage)})
        assert stage.events("published_again") == []
        parking.forget(parking.take([kind], limit=9))
        for _ in range(3):
            sweep.look(view, queues={queue_of(stage)})
        assert len(stage.events("published_again", result.id)) == 1
        view.close()


def test_letters_of_refused_messages_can_be_replayed(
    stage: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """An unknown call after ``reliable_park_ttl``: result and chord fail, the errback is told. Replayed, it runs.

    A message that could not be read goes back by force alone: as it was, under a new id, once its content is accepted.
    """
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    stage = on(stage, tmp_path, reliable_park_ttl=2)
    old = start(workers, stage, env=WITHOUT)
    unread_id = f"{label}-unread"
    with client(stage) as app:
        tasks, dead = app.tasks, letters_of(app)
        send(app, (pickle.dumps([[1, unread_id], {}, {}]), {"task": "add", "id": unread_id}, PICKLE))
        result = tasks["pair"].apply_async((1, 2, label), task_id=label, link_error=tasks["told"].s())
        members = [tasks["add"].s(1, f"{label}:member"), tasks["pair"].s(2, 3, f"{label}:other")]
        body = chord(members)(tasks["gather"].s(f"{label}:body"))

        with pytest.raises(Permanent, match="Refusing to deserialize"):
            app.AsyncResult(unread_id).get(timeout=DEADLINE)
        with pytest.raises(NotRegistered):
            result.get(timeout=DEADLINE)
        with pytest.raises(ChordError, match="pair"):
            app.AsyncResult(body.id).get(timeout=DEADLINE)
        assert len(stage.wait_entries(f"told:{label}", 1)) == 1
        wait_until(lambda: not parked(app), DEADLINE, "nothing parked")
        unknown, unread = letter(app, stage, label), letter(app, stage, unread_id)
        assert [unknown.reason, unknown.task, unknown.arguments()] == ["unregistered", "pair", ([1, 2, label], {})]
        assert (unread.reason, unread.envelope, unread.raw is not None) == ("undecodable", None, True)
        with pytest.raises(ReplayRefused, match="--force puts it back"):
            dead.replay(unread.id, who="test")
        old.stop()

        accepting = dataclasses.replace(stage, conf={**stage.conf, "accept_content": ["json", "pickle"]})
        start(workers, accepting, env={"C_FORCE_ROOT": "1"})  # pickle as root: Celery asks for it
        again = dead.replay(unread.id, who="test", force=True)
        assert app.AsyncResult(again).get(timeout=DEADLINE) == 2
        again = dead.replay(unknown.id, who="test")
        assert app.AsyncResult(again).get(timeout=DEADLINE) == 3
        assert [len(stage.entries(name)) for name in (label, unread_id)] == [1, 1]
        wait_until(lambda: list(runtime_of(app).store.ledger()) == [], DEADLINE, "an empty ledger")


def test_worker_killed_between_two_steps_loses_and_doubles_nothing(
    stage: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """After a note and before the ack, after a letter and before the ack, after the publish and before the note goes."""
    # A worker killed while it restores keeps everybody from it for as long as its mutex lives.
    quick = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_mutex_expire": 2}
    stage = on(stage, tmp_path, broker_transport_options=quick)
    bad_id = f"{label}-bad"
    for moment, name in (("parked", label), ("buried", bad_id), ("unparked", label)):
        stage.plan(moment, name, "kill")
    with client(stage) as app:
        result = app.tasks["pair"].apply_async((1, 2, label), task_id=label)
        start(workers, stage, ready=False, env=WITHOUT).wait()
        assert parked(app) == {label: "unregistered"}

        second = start(workers, stage, env=WITHOUT)
        stage.wait_event("parked", label, count=2)
        assert parked(app) == {label: "unregistered"}
        send(app, call(b"[1]", id=bad_id))
        second.wait()
        assert [one.reason for one in letters(app)] == ["invalid"]

        start(workers, stage, ready=False).wait()
        start(workers, stage)
        assert result.get(timeout=DEADLINE) == 3
        assert len(stage.wait_event("buried", bad_id, count=2)) == 2
        assert [one.reason for one in letters(app)] == ["invalid"]
        wait_until(lambda: not parked(app), DEADLINE, "nothing parked")
        assert len(stage.entries(label)) == 1


def test_messages_wait_for_a_store_that_is_away(
    stage: Stage, workers: Workers, private_redis: RedisServer, tmp_path: Path, label: str
) -> None:
    """Nothing is acked while it cannot be kept: the queue has what a killed worker held; then all are kept."""
    stage = dataclasses.replace(on(stage, tmp_path), store=private_redis.url)
    worker = start(workers, stage, env=WITHOUT)
    with client(stage) as app:
        private_redis.kill()
        on_redis = stage.broker.startswith("redis")
        if on_redis:
            with redis.Redis.from_url(stage.broker) as connection:
                connection.lpush(queue_of(stage), b"junk")
        send(app, call(b"[1]", id=f"{label}-bad"), call(GOOD, task="pair", id=f"{label}-unknown"))
        stage.wait_event("store_unavailable", f"{label}-bad")
        assert worker.stop() == 0
        assert remaining(app) == 2

        private_redis.restart()
        start(workers, stage, env=WITHOUT)
        stage.wait_event("parked", f"{label}-unknown")
        expected = ["invalid", "undecodable"] if on_redis else ["invalid"]
        wait_until(lambda: sorted(one.reason for one in letters(app)) == expected, DEADLINE, "both kept")
