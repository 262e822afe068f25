"""A job that is done when its process dies: the next delivery reports the same outcome and does the rest, once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from celery import chain, chord, group

from celery_reliable import Permanent
from celery_reliable.runtime import runtime_of
from celery_reliable.testing.faultproxy import FaultProxy
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.stage import Entry, Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 30.0
# A worker whose publishing connection is down hangs in its own heartbeat event (Celery 5.7); that is not tested here.
QUIET = (*QUICK, "--without-heartbeat")

# ``done``: the marker is written, nothing else. ``postrun``: everything is sent and stored, the message is not acked.
MOMENTS = pytest.mark.parametrize("moment", ["done", "postrun"])


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children."""
    return module_workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)


def settled(stage: Stage, task_id: str, *, killed_at: str) -> None:
    """Return once the process was killed and the second delivery has reported the outcome again."""
    stage.wait_met(killed_at, task_id)
    stage.wait_event("replayed_outcome", task_id, timeout=DEADLINE)


def ran_once(stage: Stage, label: str) -> Entry:
    """Return the only entry of a label, after every message of its job was dealt with."""
    (entry,) = stage.wait_entries(label, 1)
    return entry


def wait_second_copy(stage: Stage, task_id: str) -> None:
    """Return once a job whose message was sent twice has been claimed twice."""
    stage.wait_event("replayed_outcome", task_id)


@MOMENTS
def test_the_result_is_the_first_run_s(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """The body does not run again, the caller gets what it returned."""
    stage.plan(moment, label, "kill")
    result = app.tasks["add"].apply_async((1, label), task_id=label)
    settled(stage, label, killed_at=moment)

    assert result.get(timeout=DEADLINE) == 2
    assert len(stage.entries(label)) == 1


@MOMENTS
def test_a_callback_is_sent_once(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """Sent twice it has the same id both times, so it runs once."""
    add = app.tasks["add"]
    stage.plan(moment, label, "kill")
    add.apply_async((1, label), task_id=label, link=add.s(f"{label}:link", 10))
    settled(stage, label, killed_at=moment)

    linked = ran_once(stage, f"{label}:link")
    assert linked["x"] == 2
    if moment == "postrun":
        wait_second_copy(stage, linked["task_id"])
    assert len(stage.entries(label)) == len(stage.entries(f"{label}:link")) == 1


def test_equal_callbacks_are_as_many_as_were_asked_for(app: Celery, stage: Stage, label: str) -> None:
    """The place in the list is part of a callback's id, in the run and in the replay."""
    add = app.tasks["add"]
    stage.plan("postrun", label, "kill")
    add.apply_async((1, label), task_id=label, link=[add.s(f"{label}:link"), add.s(f"{label}:link")])
    settled(stage, label, killed_at="postrun")

    entries = stage.wait_entries(f"{label}:link", 2)
    for entry in entries:
        wait_second_copy(stage, entry["task_id"])
    assert len(stage.entries(f"{label}:link")) == 2


def test_a_callback_is_not_the_child_that_the_body_submitted(app: Celery, stage: Stage, label: str) -> None:
    """A link equal to a call in the body, with the same arguments, is another job."""
    link = app.tasks["add"].si(1, f"{label}:child")
    app.tasks["parent"].apply_async((label, 1), task_id=label, link=link).get(timeout=DEADLINE)

    stage.wait_entries(f"{label}:child", 2)


@MOMENTS
def test_a_callback_group_is_sent_once(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """Each member keeps its id."""
    add = app.tasks["add"]
    stage.plan(moment, label, "kill")
    link = group(add.s(f"{label}:{n}", n) for n in range(2))
    add.apply_async((1, label), task_id=label, link=link)
    settled(stage, label, killed_at=moment)

    members = [ran_once(stage, f"{label}:{n}") for n in range(2)]
    if moment == "postrun":
        for member in members:
            wait_second_copy(stage, member["task_id"])
    assert [len(stage.entries(f"{label}:{n}")) for n in range(2)] == [1, 1]


@MOMENTS
def test_a_chain_goes_on_once(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """The next step gets the stored result."""
    add = app.tasks["add"]
    stage.plan(moment, label, "kill")
    result = chain(add.s(1, label).set(task_id=label), add.s(f"{label}:2", 10), add.s(f"{label}:3", 100)).apply_async()
    settled(stage, label, killed_at=moment)

    assert result.get(timeout=DEADLINE) == 112
    if moment == "postrun":
        wait_second_copy(stage, result.parent.id)
    assert [len(stage.entries(f"{label}{step}")) for step in ("", ":2", ":3")] == [1, 1, 1]


@MOMENTS
def test_a_chord_counts_a_member_once(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """The body runs once, with one result of each member, whichever of them was reported twice."""
    add, gather = app.tasks["add"], app.tasks["gather"]
    stage.plan(moment, f"{label}-0", "kill")
    members = [add.s(number, label).set(task_id=f"{label}-{number}") for number in range(3)]
    result = chord(members, gather.s(f"{label}:body")).apply_async()
    settled(stage, f"{label}-0", killed_at=moment)

    assert result.get(timeout=DEADLINE) == 6
    assert [entry["numbers"] for entry in stage.entries(f"{label}:body")] == [[1, 2, 3]]
    assert len(stage.entries(label)) == 3


def test_a_chord_counts_its_last_member_once(app: Celery, stage: Stage, label: str) -> None:
    """The last member's process dies after it has started the body."""
    add, gather, held = app.tasks["add"], app.tasks["gather"], app.tasks["held"]
    stage.plan("postrun", f"{label}-last", "kill")
    last = held.s(label, gate=label, result=10).set(task_id=f"{label}-last")
    result = chord([add.s(1, f"{label}:first"), last], gather.s(f"{label}:body")).apply_async()
    stage.wait_entries(f"{label}:first", 1)
    stage.open(label)
    settled(stage, f"{label}-last", killed_at="postrun")

    assert result.get(timeout=DEADLINE) == 12
    assert [entry["numbers"] for entry in stage.entries(f"{label}:body")] == [[2, 10]]


@MOMENTS
def test_the_ledger_keeps_a_submission_until_what_follows_it_was_sent(
    app: Celery, stage: Stage, label: str, moment: str
) -> None:
    """Between the done marker and the callback the job may still be needed; after it not."""
    add, store = app.tasks["add"], runtime_of(app).store
    stage.plan(moment, label, "block")
    add.apply_async((1, label), task_id=label, link=add.s(f"{label}:link"))
    with stage.blocked(moment, label):
        assert (label in dict(store.ledger())) == (moment == "done")

    stage.wait_entries(f"{label}:link", 1)
    wait_until(lambda: label not in dict(store.ledger()), DEADLINE, "no entry")


# --- failures


@pytest.mark.parametrize("moment", ["buried", "postrun"])
def test_a_failure_is_told_once(app: Celery, stage: Stage, label: str, moment: str) -> None:
    """The process died before or after the errback was sent; its second sending has the same id."""
    stage.plan(moment, label, "kill")
    result = app.tasks["broken"].apply_async((label,), task_id=label, link_error=app.tasks["told"].s())
    stage.wait_met(moment, label)

    with pytest.raises(LookupError, match=f"no {label}"):
        result.get(timeout=DEADLINE)
    told = ran_once(stage, f"told:{label}")
    if moment == "postrun":
        wait_second_copy(stage, told["task_id"])
    assert len(stage.entries(label)) == len(stage.entries(f"told:{label}")) == 1
    assert len([one for one in runtime_of(app).store.letters().letters if label.encode() in one[2]]) == 1


def test_a_failed_job_is_told_to_its_chord_by_the_second_delivery(app: Celery, stage: Stage, label: str) -> None:
    """The process died with the letter written and nothing told: the chord fails, it does not hang."""
    gather = app.tasks["gather"]
    stage.plan("buried", f"{label}-1", "kill")
    failing = app.tasks["hopeless"].s(label).set(task_id=f"{label}-1")
    result = chord([app.tasks["add"].s(1, label), failing], gather.s(f"{label}:body")).apply_async()
    stage.wait_met("buried", f"{label}-1")

    with pytest.raises(Exception, match="never"):
        result.get(timeout=DEADLINE)
    assert stage.entries(f"{label}:body") == []


# --- the whole worker, and the broker


@pytest.fixture
def crashing(module_redis: RedisServer, tmp_path: Path) -> Stage:
    """A stage of its own on the module's Redis, whose broker gives lost messages to others after two seconds."""
    return Stage.on(module_redis.url, directory=tmp_path, first=3, conf=RESTORING)


def test_a_worker_killed_before_the_ack_leaves_the_rest_to_another(
    crashing: Stage, workers: Workers, label: str
) -> None:
    """Machine lost between the done marker and the callback: another worker sends it and stores the result."""
    crashing.plan("done", label, "block")
    first = workers.start(APP, env=crashing.environment(), arguments=QUICK)
    with client(crashing) as app:
        add = app.tasks["add"]
        result = add.apply_async((1, label), task_id=label, link=add.s(f"{label}:link", 10))
        crashing.wait_met("done", label)
        first.kill()
        assert not result.ready()

        workers.start(APP, env=crashing.environment(), arguments=QUICK)
        assert result.get(timeout=DEADLINE) == 2
        assert crashing.wait_entries(f"{label}:link", 1)[0]["x"] == 2
        assert len(crashing.entries(label)) == 1


def test_a_callback_that_the_broker_refuses_is_sent_later(crashing: Stage, workers: Workers, label: str) -> None:
    """The task has succeeded and is not marked failed; its callback follows when the broker takes messages again."""
    port = int(crashing.broker.rsplit(":", 1)[1].split("/")[0])
    crashing.plan("done", label, "block")
    with FaultProxy(port) as proxy, client(crashing) as app:
        conf = {**crashing.conf, "broker_write_url": crashing.broker.replace(f":{port}/", f":{proxy.port}/")}
        workers.start(APP, env=dataclasses.replace(crashing, conf=conf).environment(), arguments=QUIET)
        add = app.tasks["add"]
        result = add.apply_async((1, label), task_id=label, link=add.s(f"{label}:link", 10))
        with crashing.blocked("done", label):
            proxy.down()
        crashing.wait_event("publish_failed", label)
        assert not result.failed()
        assert crashing.entries(f"{label}:link") == []
        proxy.up()

        assert result.get(timeout=DEADLINE) == 2
        crashing.wait_entries(f"{label}:link", 1)
        assert len(crashing.entries(label)) == len(crashing.entries(f"{label}:link")) == 1


def test_a_chord_whose_body_the_broker_refuses_is_sent_later(crashing: Stage, workers: Workers, label: str) -> None:
    """Celery gives the chord up after some tries, although all its members have succeeded."""
    port = int(crashing.broker.rsplit(":", 1)[1].split("/")[0])
    crashing.plan("done", label, "block")
    with FaultProxy(port) as proxy, client(crashing) as app:
        write = crashing.broker.replace(f":{port}/", f":{proxy.port}/")
        conf = {**crashing.conf, "broker_write_url": write, "task_publish_retry": False}
        environment = dataclasses.replace(crashing, conf=conf).environment()
        workers.start(APP, concurrency=2, env=environment, arguments=QUIET)
        add, body = app.tasks["add"], app.tasks["gather"].s(f"{label}:body")
        result = chord([add.s(1, label).set(task_id=label), add.s(2, f"{label}:2")])(body)
        with crashing.blocked("done", label):
            app.AsyncResult(result.parent.results[1].id).get(timeout=DEADLINE)
            proxy.down()
        crashing.wait_event("publish_failed", label)
        assert (result.failed(), crashing.entries(f"{label}:body")) == (False, [])
        proxy.up()

        assert result.get(timeout=DEADLINE) == 5
        crashing.wait_no_message()
        assert len(crashing.entries(label)) == len(crashing.entries(f"{label}:body")) == 1


def test_a_chord_that_is_asked_for_waits_for_the_broker_too(
    crashing: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """On a backend that cannot count Celery's own task sends the body, and gives the chord up as well."""
    (tmp_path / "results").mkdir()
    port = int(crashing.broker.rsplit(":", 1)[1].split("/")[0])
    stage = dataclasses.replace(crashing, backend=f"file://{tmp_path}/results")
    with FaultProxy(port) as proxy, client(stage, task_cls=True) as app:
        write = stage.broker.replace(f":{port}/", f":{proxy.port}/")
        conf = {**stage.conf, "broker_write_url": write, "task_publish_retry": False}
        environment = {**dataclasses.replace(stage, conf=conf).environment(), "CR_TASK_CLS": "1"}
        workers.start(APP, concurrency=3, env=environment, arguments=QUIET)
        members = [app.tasks["held"].s(f"{label}:{number}", gate=label, result=number) for number in (1, 2)]
        result = chord(members)(app.tasks["gather"].s(label))
        stage.wait_entries(f"{label}:2", 1)
        proxy.down()
        stage.open(label)
        wait_until(
            lambda: "chord" in [one["what"] for one in stage.events("publish_failed")], DEADLINE, "a refused body"
        )
        assert (result.failed(), stage.entries(label)) == (False, [])
        proxy.up()

        assert result.get(timeout=DEADLINE) == 3
        stage.wait_no_message()
        assert len(stage.entries(label)) == 1


def test_an_errback_that_the_broker_refuses_is_sent_later(crashing: Stage, workers: Workers, label: str) -> None:
    """The job is a letter, its failure not told yet: it is told once when the broker takes messages again."""
    port = int(crashing.broker.rsplit(":", 1)[1].split("/")[0])
    crashing.plan("buried", label, "block")
    with FaultProxy(port) as proxy, client(crashing) as app:
        conf = {**crashing.conf, "broker_write_url": crashing.broker.replace(f":{port}/", f":{proxy.port}/")}
        environment = dataclasses.replace(crashing, conf=conf).environment()
        workers.start(APP, env=environment, arguments=QUIET)
        result = app.tasks["broken"].apply_async((label,), task_id=label, link_error=app.tasks["told"].s())
        with crashing.blocked("buried", label):
            proxy.down()
        crashing.wait_event("publish_failed", label)
        assert crashing.entries(f"told:{label}") == []
        proxy.up()

        crashing.wait_entries(f"told:{label}", 1, timeout=DEADLINE)
        with pytest.raises(LookupError):
            result.get(timeout=DEADLINE)
        crashing.wait_no_message()
        assert len(crashing.entries(label)) == len(crashing.entries(f"told:{label}")) == 1


def test_an_error_is_the_one_that_was_raised(app: Celery, stage: Stage, label: str) -> None:
    """An error of ours keeps its class over the backend; the failure is signalled once."""
    result = app.tasks["hopeless"].apply_async((label,), task_id=label)

    with pytest.raises(Permanent, match="never"):
        result.get(timeout=DEADLINE)
    assert result.state == "FAILURE"
    stage.wait_entries(f"failure:{label}", 1)
    app.tasks["add"].delay(1, f"{label}:later").get(timeout=DEADLINE)
    assert [entry["error"] for entry in stage.entries(f"failure:{label}")] == ["Permanent"]
