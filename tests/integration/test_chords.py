"""A chord that is told while backend or broker refuse something: it ends, as its members did, and no sooner."""

from __future__ import annotations

import dataclasses
import itertools
import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import chord
from celery.exceptions import ImproperlyConfigured, Reject

from celery_reliable import internals, large_results
from celery_reliable.chords import keep_chord
from celery_reliable.errors import QueueFull
from celery_reliable.execution import telling
from celery_reliable.execution.delivery import Delivery
from celery_reliable.payloads import RawMessage
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.worker.inspection import Refusal
from celery_reliable.worker.refusals import Case, Later, Refusals
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable import ReliableTask
    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children, for the bodies."""
    return module_workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)


@pytest.fixture
def member(app: Celery, label: str) -> Iterator[ReliableTask]:
    """The last of two members of a chord, in this process, that has ended and stores nothing; the other is done and counted."""
    task = app.tasks["add"]
    body = app.tasks["gather"].s(label).set(task_id=label)
    task.backend.set_chord_size(label, 2)
    told = {"group": label, "chord": body, "ignore_result": True}
    for number in (0, 1):
        task.push_request(id=f"{label}:{number}", group_index=number, args=(), kwargs={}, **told)
        if not number:
            internals.store_success(task, 1, stored=1, chord=task.backend)
    yield task
    task.pop_request()
    task.pop_request()


def succeed(task: ReliableTask) -> None:
    """Tell the end of a member, as a delivery does."""
    internals.store_success(task, 2, stored=2, chord=patient(task))


def fail(task: ReliableTask) -> None:
    """Tell that a member has failed."""
    internals.fail_what_follows(task, LookupError("a member's"), chord=patient(task))


def skip(task: ReliableTask) -> None:
    """Tell that a member was skipped."""
    internals.mark_skipped(task, "no need", chord=patient(task))


def fail_before(task: ReliableTask) -> None:
    """Tell that the task before a member has failed, in the chain of both."""
    given = task.request
    later = task.s().set(task_id=given.id, group_id=given.group, group_index=given.group_index, chord=given.chord)
    before = {"chain": [later], "chord": None, "group": None, "ignore_result": False}
    task.push_request(id=f"{given.id}:before", **before)  # what is not named is taken over from the other
    try:
        fail(task)
    finally:
        task.pop_request()


def patient(task: ReliableTask) -> Any:
    """Return the backend that tells the chord."""
    return keep_chord(task.backend)


def is_open(task: ReliableTask) -> bool:
    """Tell whether somebody has still to end the chord."""
    return internals.is_chord_open(task.backend, task.request)


def begin_claim(task: ReliableTask) -> None:
    """Do what a worker does that dies as it sends the body."""
    task.backend.client.set(task.backend.get_key_for_group(task.request.group, ".c"), "dead")


def end_claim(task: ReliableTask) -> None:
    """Do what time does to the claim of a worker that is dead."""
    task.backend.client.delete(task.backend.get_key_for_group(task.request.group, ".c"))


@pytest.mark.parametrize("refused", [1, 2, 3, 4, 5])
def test_a_chord_outlives_a_backend_that_refuses_any_of_its_commands(
    member: ReliableTask, stage: Stage, label: str, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Celery fails it, and takes its size away, although all members have succeeded. The next delivery sends the body.

    The commands: count, look for a saved header, read the results, prolong the claim, remove what is over (the body is sent
    then, and joined).
    """
    refuse_one(monkeypatch, refused)
    with pytest.raises(internals.ChordNotRead):
        succeed(member)
    monkeypatch.undo()
    assert not member.app.AsyncResult(label).failed()
    end_claim(member)
    assert is_open(member) == (refused > 1)
    succeed(member)

    assert member.app.AsyncResult(label).get(timeout=DEADLINE) == 3
    assert not is_open(member)
    stage.wait_no_message()
    assert len(stage.entries(label)) == 1


@pytest.mark.parametrize("tell", [fail, skip])
@pytest.mark.parametrize("refused", [1, 2, 3, 4, 5, 6])
def test_a_chord_fails_although_the_backend_refuses_any_of_its_commands(
    member: ReliableTask,
    label: str,
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
    tell: Callable[[ReliableTask], None],
) -> None:
    """Celery takes its size away, too, and then nobody would fail its body.

    The commands: count, look for a saved header, read the results, look at the body's result, store it, remove the size.
    """
    refuse_one(monkeypatch, refused, "SETEX")
    with pytest.raises(internals.ChordNotRead):
        tell(member)
    monkeypatch.undo()
    assert member.app.AsyncResult(label).failed() == (refused == 6)
    end_claim(member)
    assert is_open(member) == (refused > 1)
    tell(member)

    assert member.app.AsyncResult(label).failed()
    assert not is_open(member)


@pytest.mark.parametrize("refused", range(1, 9))
def test_a_chord_fails_that_a_chain_leads_to(
    member: ReliableTask, label: str, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """The member never runs: the task before it has failed. Celery takes a member whose failure is stored for one that is told.

    The commands: look at the member's result, store it, and what is done for a chord otherwise.
    """
    refuse_one(monkeypatch, refused, "SETEX")
    with pytest.raises((redis.OutOfMemoryError, internals.ChordNotRead)):
        fail_before(member)
    monkeypatch.undo()
    end_claim(member)
    fail_before(member)

    assert member.app.AsyncResult(label).failed()
    assert not is_open(member)


@pytest.mark.parametrize("refused", range(1, 13))
def test_a_chord_fails_that_the_body_of_another_leads_to(
    member: ReliableTask, label: str, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Celery tells it once, by the backend of the body's task."""
    body, end = member.request.chord, member.app.tasks["gather"].s(label).set(task_id=f"{label}:end")
    member.backend.set_chord_size(f"{label}:outer", 1)
    after = member.s().set(task_id=f"{label}:after", group_id=f"{label}:outer", group_index=0, chord=end)
    member.request.chord = body.set(chain=[after])
    refuse_one(monkeypatch, refused, "SETEX")
    with pytest.raises((redis.OutOfMemoryError, internals.ChordNotRead)):
        fail(member)
    monkeypatch.undo()
    for group in (label, f"{label}:outer"):
        member.backend.client.delete(member.backend.get_key_for_group(group, ".c"))
    fail(member)

    assert [member.app.AsyncResult(name).failed() for name in (label, f"{label}:end")] == [True, True]
    assert not is_open(member)


def test_the_errbacks_of_a_chord_that_is_failed_again_run_once(
    member: ReliableTask, stage: Stage, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent under the same ids."""
    member.request.chord = member.request.chord.on_error(member.app.tasks["told"].s())
    refuse_one(monkeypatch, 6, "SETEX")
    with pytest.raises(internals.ChordNotRead):
        fail(member)
    monkeypatch.undo()
    end_claim(member)
    fail(member)
    stage.wait_entries(f"told:{label}", 1)
    stage.wait_no_message()
    assert len(stage.entries(f"told:{label}")) == 1


def test_a_chord_waits_for_room_in_the_store(member: ReliableTask, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store at its memory limit refuses the body, which Celery would fail for good."""

    def full(*_: Any, **__: Any) -> None:
        raise QueueFull("the store is at its memory limit")

    monkeypatch.setattr(type(member.app.tasks["gather"]), "apply_async", full)
    with pytest.raises(internals.ChordNotSent):
        succeed(member)
    monkeypatch.undo()
    succeed(member)
    assert member.app.AsyncResult(label).get(timeout=DEADLINE) == 3


def refuse_one(monkeypatch: pytest.MonkeyPatch, number: int, *also: str) -> None:
    """Have Redis refuse one command of the chord, counted from 1, and take all others."""
    commands = itertools.count(1)
    send, execute = redis.Redis.execute_command, redis.client.Pipeline.execute

    def sent(self: Any, *args: Any, **options: Any) -> Any:
        ours = args[0] in {"EVALSHA", "DEL", "GET"}
        return refused() if ours and next(commands) == number else send(self, *args, **options)

    def executed(self: Any, *args: Any, **options: Any) -> Any:
        ours = any(one[0][0] in {"ZRANGE", *also} for one in self.command_stack)
        return refused() if ours and next(commands) == number else execute(self, *args, **options)

    def refused() -> None:
        raise redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    monkeypatch.setattr(redis.Redis, "execute_command", sent)
    monkeypatch.setattr(redis.client.Pipeline, "execute", executed)


def test_a_chord_is_open_until_its_body_is_sent(member: ReliableTask) -> None:
    """Also between the end of a dead worker's claim and the next: who asks then is not told that all is done."""
    assert not is_open(member)
    begin_claim(member)
    with pytest.raises(internals.ChordBusy):
        succeed(member)
    assert is_open(member)
    end_claim(member)
    assert is_open(member)
    succeed(member)
    assert not is_open(member)
    member.backend.set_chord_size(member.request.group, 2)
    member.backend.client.set(member.backend.get_key_for_group(member.request.group, ".c"), "done")
    assert not is_open(member), "nobody sends it any more"


def test_a_failed_member_waits_for_the_worker_that_fails_its_chord(member: ReliableTask, label: str) -> None:
    """That one is dead, or had no answer: nobody else would fail the body."""
    begin_claim(member)
    delivery = Delivery(member, (), {})
    with pytest.raises(Reject):
        telling.failed_part(delivery, LookupError("a member's"))
    assert not member.app.AsyncResult(label).ready()
    end_claim(member)
    telling.failed_part(delivery, LookupError("a member's"))
    assert member.app.AsyncResult(label).failed()


def unrunnable(member: ReliableTask) -> Case:
    """A message that would have run as the member, and cannot run."""
    request = member.request
    embed = {"chord": dict(request.chord)}
    headers = {"task": "add", "id": request.id, "group": request.group, "group_index": request.group_index}
    body = b64encode(json.dumps([[1], {}, embed]).encode()).decode()
    raw = RawMessage(
        queue="celery", body=body, content_type="application/json", content_encoding="utf-8", headers=headers
    )
    return Case(raw, Refusal("invalid", "its arguments are none", "add", request.id), request.id)


def test_a_message_that_cannot_run_waits_for_the_worker_that_fails_its_chord(member: ReliableTask, label: str) -> None:
    """It is kept as a letter at once, and its failure told when the other worker's claim is over."""
    begin_claim(member)
    case, refusals = unrunnable(member), Refusals(member.app)
    with pytest.raises(Later):
        refusals.settle(case)
    assert not member.app.AsyncResult(label).ready()
    end_claim(member)
    refusals.settle(case)
    assert member.app.AsyncResult(label).failed()


def test_a_message_that_cannot_run_is_settled_without_a_backend_that_can_be_made(
    member: ReliableTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No repetition mends that: the letter is kept, and the message does not come back for ever."""

    def unmade(app: Celery) -> None:
        raise ImproperlyConfigured("no such backend")

    case, refusals, told = unrunnable(member), Refusals(member.app), []
    monkeypatch.setattr(type(member.app), "backend", property(unmade))
    monkeypatch.setattr(refusals, "_emit", lambda event, *_, **__: told.append(event))
    refusals.settle(case)
    assert told == ["not_told"]


@pytest.mark.parametrize("joined", [True, False])
def test_a_member_whose_error_is_the_network_s_fails_its_chord(
    member: ReliableTask, label: str, *, joined: bool
) -> None:
    """It is not taken for one of the backend, which would be asked again for ever: also of a header with groups in it."""
    backend, results = member.backend, [member.app.AsyncResult(f"{label}:{number}") for number in (0, 1)]
    backend.store_result(results[0].id, 1, "SUCCESS")
    backend.store_result(results[1].id, ConnectionError("a member's"), "FAILURE")
    if joined:
        member.app.GroupResult(label, results).save()
    fail(member)
    assert member.app.AsyncResult(label).failed()


def test_a_large_result_waits_for_the_backend(member: ReliableTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its chord joins is asked before it is stored: the job is done, and no failure is told."""
    monkeypatch.setattr(large_results, "reference", lambda *_, **__: {"kept": "aside"})
    send = redis.Redis.execute_command

    def sent(self: Any, *args: Any, **options: Any) -> Any:
        if args[0] == "EXISTS":
            raise redis.ConnectionError("away")
        return send(self, *args, **options)

    monkeypatch.setattr(redis.Redis, "execute_command", sent)
    delivery = Delivery(member, (), {})
    delivery.kept = object()  # type: ignore[assignment]  # what stands for it is given above
    with pytest.raises(Reject):
        telling.success(delivery, 2)


def test_a_chord_is_told_to_a_redis_that_has_forgotten_the_scripts(member: ReliableTask, label: str) -> None:
    """As after its restart: redis-py hears of that by an error, and loads them again."""
    member.backend.client.script_flush()
    succeed(member)
    assert member.app.AsyncResult(label).get(timeout=DEADLINE) == 3


def test_the_errbacks_of_a_chord_that_the_broker_refuses_are_sent_later(
    module_redis: RedisServer, tmp_path: Path, workers: Workers, label: str
) -> None:
    """Celery calls them once, and fails the body with what the broker said."""
    stage = Stage.on(module_redis.url, directory=tmp_path, first=3, conf=RESTORING)
    port = int(stage.broker.rsplit(":", 1)[1].split("/")[0])
    with FaultProxy(port) as proxy, client(stage) as app:
        write = stage.broker.replace(f":{port}/", f":{proxy.port}/")
        conf = {**stage.conf, "broker_write_url": write, "task_publish_retry": False}
        environment = dataclasses.replace(stage, conf=conf).environment()
        # Its own heartbeat event would hang while its publishing connection is down (Celery 5.7).
        workers.start(APP, concurrency=2, env=environment, arguments=(*QUICK, "--without-heartbeat"))
        failing = app.tasks["held_then_failing"].s(label, gate=label)
        body = app.tasks["gather"].s(f"{label}:body").set(task_id=f"{label}:body").on_error(app.tasks["told"].s())
        result = chord([app.tasks["add"].s(1, f"{label}:1"), failing])(body)
        stage.wait_entries(label, 1)
        app.AsyncResult(result.parent.results[0].id).get(timeout=DEADLINE)
        proxy.down()
        stage.open(label)
        stage.wait_event("publish_failed", result.parent.results[1].id)
        assert (result.ready(), stage.entries(f"told:{label}:body")) == (False, [])
        proxy.up()

        stage.wait_entries(f"told:{label}:body", 1, timeout=DEADLINE)
        with pytest.raises(Exception, match="a mistake in the code"):
            result.get(timeout=DEADLINE)
        stage.wait_no_message()
        assert len(stage.entries(f"told:{label}:body")) == 1
