"""A fleet that signs its messages, on Redis and RabbitMQ: all that Celery sends runs, and nothing that is forged."""

from __future__ import annotations

import dataclasses
import json
import pickle
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import chain, chord, group
from click.testing import CliRunner

from celery_reliable import internals
from celery_reliable.app_letters import known_letters_of
from celery_reliable.cli import reliable
from celery_reliable.errors import ReplayRefused
from celery_reliable.parking import Parking
from celery_reliable.payloads import SIGNATURE_HEADER, VERSION_HEADER, Envelope
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import runtime_of
from celery_reliable.signing import Signer
from celery_reliable.stores.base import Job
from celery_reliable.worker.broker import RedisBroker
from celery_reliable.worker.recovery import LedgerSweep
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.dead_letters import DeadLetter
    from celery_reliable.testing.servers import RedisServer
    from tests.integration.beats import Beats
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.rolling"
DEADLINE = 30.0
NEW, OLD = "n" * 40, "o" * 40
AS_ROOT = {"C_FORCE_ROOT": "1"}  # pickle as root: Celery asks for it
CONTENT = {"content_type": "application/json", "content_encoding": "utf-8"}


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stage(request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A fleet in which the keys are being exchanged, and that accepts pickle."""
    module_redis.flush()
    name = uuid.uuid4().hex
    conf = {
        "task_default_queue": f"signing-{name}",
        "reliable_key_prefix": f"{name[:8]}:",
        "reliable_signing_keys": [NEW, OLD],
        "accept_content": ["json", "pickle"],
    }
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp(request.param), conf=conf)
    if request.param == "rabbitmq":
        return dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    return stage


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """A worker of an old release: it does not know the task ``pair``."""
    env = {**stage.environment(), **AS_ROOT, "CR_WITHOUT": "pair"}
    name = stage.directory.name
    return module_workers.start(APP, name=name, concurrency=2, env=env, arguments=QUICK)


@pytest.fixture
def app(stage: Stage, worker: Worker) -> Iterator[Celery]:
    """A producer that has the old key alone."""
    with client(stage, reliable_signing_keys=[OLD]) as app:
        yield app
        found = known_letters_of(app)
        for one in list(found.search()):
            found.discard(one.id, who="test")


# --- what is true runs


def test_whatever_celery_sends_is_signed_on_its_way(app: Celery, stage: Stage, label: str) -> None:
    """Retries, chains, chords, callbacks, children of a body, a job that hands on its id, and one that waits for its time."""
    add, gather, tasks = app.tasks["add"], app.tasks["gather"], app.tasks
    results = {
        chain(tasks["flaky"].s(label, fails=2), add.s(f"{label}:next", 10)).apply_async(): 13,
        chord([add.s(number, label) for number in range(3)], gather.s(f"{label}:body")).apply_async(): 6,
        chain(add.s(1, label), group(add.s(label, 10), add.s(label, 20)), gather.s(label)).apply_async(): 34,
        add.apply_async((1, label), link=add.s(f"{label}:link", 5), countdown=1): 2,
    }
    swapped = tasks["swap"].delay(f"{label}:swap")
    tasks["parent"].delay(f"{label}:parent", 2, fails=1)

    assert [result.get(timeout=DEADLINE) for result in results] == list(results.values())
    assert len(stage.wait_entries(f"{label}:link", 1)) == 1
    swapped.get(timeout=DEADLINE)
    stage.wait_entries(f"{label}:parent", 2)
    stage.wait_entries(f"{label}:parent:child", 2)
    assert letters(app) == []


def test_a_letter_of_a_signed_call_is_replayed_without_a_word(app: Celery, stage: Stage, label: str) -> None:
    """The worker that buried it has sealed it, with the new key; whoever replays it signs with a key that holds, too."""
    app.conf.reliable_signing_keys = [NEW]
    app.tasks["hopeless"].apply_async((label,), task_id=label)
    first = letter(app, stage, label)
    with client(stage) as operators:
        again = known_letters_of(operators).replay(first.id, who="ann")
    stage.wait_event("buried", again)

    assert len(stage.entries(label)) == 2


def test_what_an_old_worker_parked_is_believed_when_it_comes_back(
    app: Celery, stage: Stage, worker: Worker, workers: Workers, label: str
) -> None:
    """It carries the signature of its sender the whole way."""
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    queue, old = app.conf.task_default_queue, [f"{worker.name}@{socket.gethostname()}"]
    result = app.tasks["pair"].delay(1, 2, label)
    stage.wait_event("parked", result.id)
    assert app.control.cancel_consumer(queue, destination=old, reply=True, timeout=DEADLINE, limit=1)
    workers.start(APP, pool="solo", env={**stage.environment(), **AS_ROOT}, arguments=QUICK)

    assert result.get(timeout=DEADLINE) == 3
    assert app.control.add_consumer(queue, destination=old, reply=True, timeout=DEADLINE, limit=1)
    assert letters(app) == []


def test_beat_signs_what_it_fires(app: Celery, stage: Stage, beats: Beats, label: str) -> None:
    """The slot is one of our headers."""
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    schedule = {label: {"task": "slotted", "schedule": 1.0, "args": [label]}}
    beats.start(dataclasses.replace(stage, conf={**stage.conf, "beat_schedule": schedule}))

    assert stage.wait_entries(label, 1)[0]["slot"]
    assert letters(app) == []


# --- what is forged does not


class Touching:
    """What touches a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        """Take the file."""
        self.path = path

    def __reduce__(self) -> Any:
        """Name what a decoder calls."""
        return Path.touch, (Path(self.path),)


Message = tuple[bytes, dict[str, Any], dict[str, str]]


def forged(label: str, victim: str, touched: Path) -> Iterator[Message]:
    """Messages of somebody who can write to the broker, knows ids and keys, has seen true messages, and has no key."""
    body = json.dumps([[77, f"{label}:forged"], {}, {}]).encode()
    usual = {"task": "order", "id": f"{label}:1"}
    identity = {"i": victim, "k": "declared", "key": f"order:{label}", "s": 1, "l": 1}
    told: dict[str, Any] = {
        "task": "told",
        "args": [f"{label}:errback"],
        "kwargs": {},
        "options": {},
        "subtask_type": None,
    }
    true = {**usual, SIGNATURE_HEADER: Signer([NEW.encode()]).sign(usual, body, tuple(CONTENT.values()))}
    yield body, usual, CONTENT
    yield body, {**usual, SIGNATURE_HEADER: Signer([b"x" * 40]).sign(usual, body, tuple(CONTENT.values()))}, CONTENT
    yield body.replace(b"77", b"78"), true, CONTENT
    yield body, {**true, "reliable": identity | {"i": usual["id"]}}, CONTENT
    yield body, {**true, "reliable_replays": 1}, CONTENT
    yield body, {**true, VERSION_HEADER: 9}, CONTENT
    yield body, {**usual, "id": victim, "reliable": identity}, CONTENT
    yield json.dumps([[1], {}, {"errbacks": [told]}]).encode(), {**usual, "id": victim, "reliable": identity}, CONTENT
    yield b"{", {**usual, "id": victim, "reliable": identity}, CONTENT
    yield body, {**usual, "id": victim, "reliable": identity, "compression": "application/x-nothing"}, CONTENT
    yield body, {**usual, "task": "elsewhere.task"}, CONTENT
    yield body, {}, CONTENT
    pickled = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
    yield pickle.dumps(Touching(str(touched))), {**usual, "id": f"{label}:2"}, pickled


def test_nothing_that_is_forged_is_believed(app: Celery, stage: Stage, tmp_path: Path, label: str) -> None:
    """Each is one letter, once; no key is done, no job dead, nothing parked or told, no body decoded. Then true jobs run."""
    victim, touched = f"{label}:victim", tmp_path / "touched"
    messages = list(forged(label, victim, touched))
    send(app, *messages)
    result = app.tasks["order"].apply_async((label, label), task_id=victim)

    assert result.get(timeout=DEADLINE) == f"{label}:1"
    wait_until(lambda: len(letters(app)) == len(messages), DEADLINE, "a letter of each")
    assert {(one.reason, one.error_type.rpartition(".")[2]) for one in letters(app)} == {
        ("rejected", "SignatureRefused")
    }
    wait_until(lambda: waiting(app) == 0, DEADLINE, "an empty queue")
    assert app.tasks["add"].delay(1, label).get(timeout=DEADLINE) == 2
    ours = {one.id for one in letters(app)}
    assert sorted(one["letter_id"] for one in stage.events("buried") if one["letter_id"] in ours) == sorted(ours)
    assert stage.entries(f"{label}:forged") == stage.entries(f"told:{label}:errback") == []
    assert not touched.exists()
    assert not list(Parking(runtime_of(app).store, ttl=1.0, spare=1.0).everything())


def test_whoever_knows_where_a_refused_message_comes_from_can_send_it(app: Celery, stage: Stage, label: str) -> None:
    """A producer without keys: the command says what is missing, and with that runs it."""
    body = json.dumps([[1, label], {}, {}]).encode()
    send(app, (body, {"task": "add", "id": label}, CONTENT))
    (refused,) = wait_until(lambda: letters(app), DEADLINE, "its letter")
    call = {"obj": internals.command_context(app), "catch_exceptions": False}
    without = CliRunner().invoke(reliable, ["dlq", "replay", refused.id, "--force", "--json"], **call)
    signed = CliRunner().invoke(reliable, ["dlq", "replay", refused.id, "--sign", "--json"], **call)

    assert (without.exit_code, signed.exit_code) == (1, 0), without.output + signed.output
    assert "--sign" in without.output
    assert len(stage.wait_entries(label, 1)) == 1


def test_what_the_ledger_has_and_nobody_sealed_is_not_published(app: Celery, stage: Stage, label: str) -> None:
    """It becomes a letter in its place, and its entry ends."""
    if not stage.broker.startswith("redis"):
        return  # no ledger
    runtime, job = runtime_of(app), Job(label, "own", runtime_of(app).store.now())
    header = {"i": label, "k": "own", "key": label, "s": job.stamp, "l": 1}
    options = {"queue": app.conf.task_default_queue, "headers": {"reliable": header}}
    kept = Envelope("add", label, json.dumps([[1, label], {}]), options=options).to_bytes()
    runtime.store.submit(
        job, task_id=label, fingerprint="", envelope=kept, canvas=False, replace=False, ttl=LIVE_RECORD_TTL
    )
    sweep = LedgerSweep(app, quiet=0.0)
    with app.connection_for_write() as connection:
        view = RedisBroker(connection.default_channel)
        for _ in range(3):
            sweep.look(view, queues={app.conf.task_default_queue})
        view.close()

    assert [(one.task_id, one.reason) for one in letters(app)] == [(label, "rejected")]
    assert list(runtime.store.ledger()) == []
    assert stage.entries(label) == []


# --- while it is introduced


def test_in_the_mode_warn_unsigned_messages_run_and_are_told(stage: Stage, workers: Workers, label: str) -> None:
    """What comes of one is not taken for a signed call once signatures are enforced."""
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    queue = f"{stage.conf['task_default_queue']}-warn"
    warned = dataclasses.replace(
        stage, conf={**stage.conf, "task_default_queue": queue, "reliable_signing": "warn", "reliable_max_retries": 0}
    )
    workers.start(APP, pool="solo", env={**warned.environment(), **AS_ROOT}, arguments=QUICK)
    with client(warned) as before, client(stage) as after:
        send(before, (json.dumps([[label], {}, {}]).encode(), {"task": "hopeless", "id": label}, CONTENT))
        buried = letter(before, stage, label)

        assert [one["reason"] for one in stage.events("unsigned", label)] == ["it has no signature"]
        assert len(stage.entries(label)) == 1
        with pytest.raises(ReplayRefused, match="--sign"):
            known_letters_of(after).replay(buried.id, who="ann")
        known_letters_of(after).discard(buried.id, who="test")


# --- helpers


def send(app: Celery, *messages: Message) -> None:
    """Put messages into the workers' queue as they are."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        for body, headers, content in messages:
            message = channel.prepare_message(body, headers=headers, **content)
            channel.basic_publish(message, exchange="", routing_key=app.conf.task_default_queue)


def waiting(app: Celery) -> int:
    """Return how many messages wait, or are held unacknowledged by a worker on Redis."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        if not hasattr(channel, "_size"):
            return int(channel.queue_declare(queue=app.conf.task_default_queue, passive=True).message_count)
        with redis.Redis.from_url(app.conf.broker_url) as broker:
            return int(channel._size(app.conf.task_default_queue)) + int(broker.hlen("unacked"))


def letters(app: Celery) -> list[DeadLetter]:
    """Return all dead letters of the stage."""
    return [one for one in known_letters_of(app).search() if one.status == "dead"]
