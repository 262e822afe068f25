"""Signals, and whatever else may happen to a worker while it drains."""

from __future__ import annotations

import signal
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import children, process_table, send, send_to_group
from tests.integration.drains import SOON, Scene, on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers import Worker

pytestmark = pytest.mark.integration

HANDED_BACK = "messages handed back"
on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)
on_rabbitmq = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)


def wait_gone(worker: Worker, child: int) -> None:
    """Return once a pool child has ended."""
    wait_until(lambda: child not in worker.children, SOON, f"child {child} to end")


def end(scene: Scene, worker: Worker, label: str) -> None:
    """Let a task end, and with it the worker."""
    scene.stage.open(label)
    assert worker.wait(SOON) == 0
    assert scene.steps(label) == ["start", "end"]
    assert scene.delivery(label) in ([1], [])


@on_rabbitmq
def test_a_task_may_be_revoked_while_its_worker_drains(patient: Scene) -> None:
    """``terminate=True`` ends the child although it ignores foreign signals; the other task goes on."""
    worker = patient.start("prefork", concurrency=2)
    doomed, other = patient.running("gated"), patient.running("gated")
    worker.terminate()
    worker.wait_log(HANDED_BACK)

    victim = patient.step(doomed, "start")
    patient.app.control.revoke(victim["task_id"], terminate=True)
    wait_gone(worker, victim["pid"])

    end(patient, worker, other)
    assert patient.steps(doomed) == ["start"]
    assert patient.app.AsyncResult(victim["task_id"]).state == "REVOKED"
    assert patient.waiting() == 0


@on_redis
def test_only_its_own_worker_ends_a_child(patient: Scene) -> None:
    """A revoke does, before a drain, and is not heard by the parent; a foreign SIGTERM ends neither task nor worker."""
    worker = patient.start("prefork")
    for _ in range(2):  # the second child was forked when the parent listened already
        victim = patient.step(patient.running("gated"), "start")
        patient.app.control.revoke(victim["task_id"], terminate=True)
        wait_gone(worker, victim["pid"])

    label = patient.running("gated")
    child = patient.step(label, "start")["pid"]
    send(child, signal.SIGTERM)
    last = patient.send("gated")
    patient.stage.open(label)
    patient.stage.wait_entries(last, 1)
    assert (patient.steps(label), patient.step(last, "start")["pid"]) == (["start", "end"], child)
    assert patient.step(label, "end")["draining"] is False

    send_to_group(worker.pid, signal.SIGTERM)
    worker.wait_log(HANDED_BACK)
    end(patient, worker, last)
    assert child in {entry["child"] for entry in patient.stage.entries("child_end")}, "worker_process_shutdown"


@on_redis
def test_spawned_and_recycled_children_ignore_foreign_signals_too(patient: Scene) -> None:
    """``--max-tasks-per-child 1``: the second child runs the second task, through a signal to it and to the group."""
    # A spawned child imports everything anew, on a busy machine for longer than the four seconds that Celery waits.
    spawning = {"worker_pool_start_method": "spawn", "worker_proc_alive_timeout": 30}
    patient.stage.conf.update(spawning)  # type: ignore[attr-defined]  # a dict here
    worker = patient.start("prefork", arguments=("--max-tasks-per-child", "1"))
    first = patient.running("gated")
    patient.stage.open(first)
    second = patient.running("gated")
    child = patient.step(second, "start")["pid"]
    assert patient.step(first, "end")["pid"] != child

    send(child, signal.SIGTERM)
    send_to_group(worker.pid, signal.SIGTERM)
    worker.wait_log(HANDED_BACK)
    end(patient, worker, second)


@on_redis
def test_a_pool_still_shrinks_and_an_embedded_beat_ends_with_its_worker(patient: Scene, tmp_path: Path) -> None:
    """``--autoscale 3,1 -B``: idle children obey their own worker, and the drain ends what is left."""
    arguments = ("--autoscale", "3,1", "-B", "--schedule", str(tmp_path / "schedule"))
    worker = patient.start("prefork", arguments=arguments, env={"AUTOSCALE_KEEPALIVE": "1"})
    labels = [patient.send("gated") for _ in range(3)]
    wait_until(lambda: all(map(patient.steps, labels)), SOON, "three tasks to run")
    runners = {patient.step(label, "start")["pid"] for label in labels}
    family = children(worker.pid)
    assert len(family) > len(runners), "beat is a child, too"
    for label in labels[:2]:
        patient.stage.open(label)
    keeper = patient.step(labels[2], "start")["pid"]
    wait_until(lambda: runners & set(worker.children) == {keeper}, SOON, "the idle children to go")

    send_to_group(worker.pid, signal.SIGTERM)
    end(patient, worker, labels[2])
    wait_until(lambda: not {*family} & {entry.pid for entry in process_table()}, SOON, "beat and children to be gone")


@on_rabbitmq
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_amqp_heartbeats_go_on(patient: Scene, pool: str) -> None:
    """A drain of several heartbeat intervals loses no connection: RabbitMQ keeps the message with this worker."""
    patient.stage.conf["broker_heartbeat"] = 1  # type: ignore[index]  # a dict here
    worker = patient.start(pool)
    label = patient.running("gated")
    worker.terminate()

    # RabbitMQ closes a connection that was silent for two intervals, and the message would wait again.
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        assert patient.waiting() == 0
        time.sleep(0.25)

    end(patient, worker, label)
    assert "onnection to broker lost" not in worker.logs()


# --- what waits in the worker


@on_redis
def test_messages_go_back_in_their_order(patient: Scene) -> None:
    """The oldest is the next to be received, ahead of the backlog."""
    worker = patient.start("prefork", arguments=("--prefetch-multiplier", "4"))
    running = patient.running("gated")
    labels = [patient.send("gated") for _ in range(3)]
    patient.held(worker)
    worker.terminate()
    patient.wait_waiting(3, "the prefetched")
    patient.send("gated", backlog := "behind")

    assert patient.queued() == [*labels, backlog]
    end(patient, worker, running)


@on_redis
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_message_that_arrives_while_consuming_stops_goes_back_to_its_place(patient: Scene, pool: str) -> None:
    """The server answers a read that was sent before the signal: not behind the backlog, and not lost."""
    worker = patient.start(pool, concurrency=2)
    running = patient.running("gated")
    worker.terminate()
    worker.wait_log(HANDED_BACK)
    labels = [patient.send("gated", f"late-{number}-{running}") for number in range(3)]

    end(patient, worker, running)
    assert patient.queued() == labels


@on_redis
@pytest.mark.parametrize("pool", ["prefork"])
def test_rate_limited_messages_go_back(patient: Scene, pool: str) -> None:
    """They are in no set of Celery's; the worker has nothing else to do and ends."""
    worker = patient.start(pool, arguments=("--prefetch-multiplier", "4"))
    first = patient.running("limited")
    labels = [patient.send("limited") for _ in range(2)]
    patient.held(worker)

    assert worker.stop(timeout=SOON) == 0

    patient.wait_waiting(2, "the rate-limited")
    assert [patient.steps(label) for label in (first, *labels)] == [["end"], [], []]


@on("redis-prefork", "rabbitmq-gevent")
def test_a_message_that_waits_for_its_key_goes_back(patient: Scene, pool: str) -> None:
    """It was answered Busy: it waits in the worker, in no slot, while another run has its key."""
    worker = patient.start(pool, concurrency=2)
    label = patient.running("keyed")
    patient.send("keyed", label, link=patient.app.tasks["gated"].si("follow-up"))
    patient.stage.wait_event("busy", f"keyed:{label}")

    worker.terminate()
    patient.wait_waiting(1, "the message that waited")
    patient.stage.open(label)
    assert worker.wait(SOON) == 0
    assert patient.steps(label) == ["start", "end"]


@on("redis-threads", "rabbitmq-prefork")
def test_a_message_that_would_wait_in_a_drain_goes_back(patient: Scene, pool: str) -> None:
    """A task that asks, while its worker drains, to run again in a moment: it will, elsewhere."""
    worker = patient.start(pool)
    label = patient.running("rejecting")
    worker.terminate()
    worker.wait_log(HANDED_BACK)
    patient.stage.open(label)

    assert worker.wait(SOON) == 0
    patient.wait_waiting(1, "the message of the task that asked")
    assert patient.steps(label) == ["start", "rejected"]


@on("redis-prefork", "redis-gevent")
def test_a_message_that_waits_for_the_store_goes_back(patient: Scene, pool: str) -> None:
    """The store is away at the claim; the drain does not wait for it."""
    label = uuid.uuid4().hex
    patient.send("gated", label, task_id=label)
    patient.stage.conf["reliable_store_url"] = "redis://127.0.0.1:1/0"  # type: ignore[index]  # nobody listens there
    worker = patient.start(pool)
    wait_until(lambda: patient.stage.events("store_unavailable", label), SOON, "the claim to fail")

    assert worker.stop(timeout=SOON) == 0
    patient.wait_waiting(1, "the message")
    assert patient.steps(label) == []
