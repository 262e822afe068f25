"""Signals, and whatever else may happen to a worker while it drains."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import children, process_table
from tests.integration.drains import SOON, Scene
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers import Worker

pytestmark = pytest.mark.integration

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
HANDED_BACK = "messages handed back"
on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)
on_rabbitmq = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)


def signal_group(worker: Worker, number: signal.Signals) -> None:
    """Signal main process and children, as a terminal or a careless supervisor does."""
    os.killpg(worker.pid, number)


def wait_gone(worker: Worker, child: int) -> None:
    """Return once a pool child has ended."""
    wait_until(lambda: child not in worker.children, SOON, f"child {child} to end")


def end(scene: Scene, worker: Worker, label: str) -> None:
    """Let a task end, and with it the worker."""
    scene.stage.open(label)
    assert worker.wait(SOON) == 0
    assert scene.steps(label) == ["start", "end"]
    assert scene.delivery(label) in ([1], [])


@on_redis
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pool", POOLS)
def test_signals_to_the_whole_group_end_no_task(patient: Scene, pool: str, number: signal.Signals) -> None:
    """Neither the first, nor a second, nor a third: the child that ran the task ends it."""
    worker = patient.start(pool)
    label = patient.running("gated")

    signal_group(worker, number)
    worker.wait_log(HANDED_BACK)
    signal_group(worker, number)
    signal_group(worker, signal.SIGTERM)

    end(patient, worker, label)
    assert patient.step(label, "start")["pid"] == patient.step(label, "end")["pid"]


@on_redis
@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_ends_at_once(patient: Scene, pool: str) -> None:
    """Nothing to wait for: far from the timeout of a minute."""
    worker = patient.start(pool)
    assert worker.stop(timeout=SOON) == 0


@on_redis
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_looks_may_stop_by_itself(patient: Scene, pool: str) -> None:
    """``self.draining`` and ``self.stop_if_draining()``, long before the timeout; the checkpoint is kept."""
    worker = patient.start(pool)
    label = patient.running("watching")

    assert worker.stop(timeout=SOON) == 0

    assert patient.steps(label) == ["start", "seen"]
    patient.wait_waiting(1, "the message of the task that stopped")
    start = patient.finish_elsewhere(label)
    assert (start["saved"], start["attempt"], patient.delivery(label)) == ("seen", 1, [1, 1])


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
def test_a_task_may_be_revoked_without_a_drain(patient: Scene) -> None:
    """The SIGTERM that ends the child is not heard by its parent."""
    worker = patient.start("prefork")
    for _ in range(2):  # the second child was forked when the parent listened already
        victim = patient.step(patient.running("gated"), "start")
        patient.app.control.revoke(victim["task_id"], terminate=True)
        wait_gone(worker, victim["pid"])

    label = patient.running("gated")  # the worker goes on consuming
    patient.stage.open(label)
    wait_until(lambda: "end" in patient.steps(label), SOON, "the next task to end")
    assert patient.step(label, "end")["draining"] is False


@on_redis
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_signal_to_a_child_alone_changes_nothing(patient: Scene, start_method: str) -> None:
    """It ends neither its task nor, heard by the parent, the worker's work."""
    patient.stage.conf["worker_pool_start_method"] = start_method  # type: ignore[index]  # a dict here
    worker = patient.start("prefork")
    label = patient.running("gated")
    child = patient.step(label, "start")["pid"]
    assert child in worker.children

    os.kill(child, signal.SIGTERM)
    second = patient.send("gated")
    patient.stage.open(label)
    patient.stage.wait_entries(second, 1)
    assert patient.steps(label) == ["start", "end"]
    assert patient.step(second, "start")["pid"] == child

    signal_group(worker, signal.SIGTERM)
    worker.wait_log(HANDED_BACK)
    end(patient, worker, second)


@on_redis
def test_children_say_goodbye(patient: Scene) -> None:
    """``worker_process_shutdown`` fires in each child of a worker that drained."""
    worker = patient.start("prefork", concurrency=2)
    label = patient.running("gated")
    pids = set(worker.children)
    worker.terminate()
    end(patient, worker, label)
    assert {entry["child"] for entry in patient.stage.entries("child_end")} >= pids


@on_redis
def test_children_that_replace_others_ignore_foreign_signals_too(patient: Scene) -> None:
    """``--max-tasks-per-child 1``: the second child runs the second task, through the group's signal."""
    worker = patient.start("prefork", arguments=("--max-tasks-per-child", "1"))
    first = patient.running("gated")
    patient.stage.open(first)
    wait_until(lambda: "end" in patient.steps(first), SOON, "the first task to end")
    second = patient.running("gated")
    assert patient.step(first, "start")["pid"] != patient.step(second, "start")["pid"]

    signal_group(worker, signal.SIGTERM)
    worker.wait_log(HANDED_BACK)
    end(patient, worker, second)


@on_redis
def test_a_pool_still_shrinks(patient: Scene) -> None:
    """``--autoscale 3,1``: idle children obey their own worker, and the drain ends what is left."""
    worker = patient.start("prefork", arguments=("--autoscale", "3,1"), env={"AUTOSCALE_KEEPALIVE": "1"})
    labels = [patient.send("gated") for _ in range(3)]
    wait_until(lambda: all(map(patient.steps, labels)), SOON, "three tasks to run")
    for label in labels[:2]:
        patient.stage.open(label)
    keeper = patient.step(labels[2], "start")["pid"]
    wait_until(lambda: worker.children == [keeper], SOON, "the idle children to go")

    signal_group(worker, signal.SIGTERM)
    end(patient, worker, labels[2])


@on_redis
def test_an_embedded_beat_ends_with_its_worker(patient: Scene, tmp_path: Path) -> None:
    """``-B``."""
    worker = patient.start("prefork", arguments=("-B", "--schedule", str(tmp_path / "schedule")))
    label = patient.running("gated")
    family = children(worker.pid)
    assert len(family) > 1

    signal_group(worker, signal.SIGTERM)
    end(patient, worker, label)
    wait_until(lambda: not set(family) & {entry.pid for entry in process_table()}, SOON, "beat and children to be gone")


@on_rabbitmq
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_amqp_heartbeats_go_on(patient: Scene, pool: str) -> None:
    """A drain of several heartbeat intervals loses no connection: RabbitMQ keeps the message with this worker."""
    patient.stage.conf["broker_heartbeat"] = 2  # type: ignore[index]  # a dict here
    worker = patient.start(pool)
    label = patient.running("gated")
    worker.terminate()

    # RabbitMQ closes a connection that was silent for two intervals, and the message would wait again.
    until = time.monotonic() + 7.0
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
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_message_that_arrives_while_consuming_stops_goes_back_to_its_place(patient: Scene, pool: str) -> None:
    """The server answers a read that was sent before the signal: not behind the backlog, and not lost."""
    worker = patient.start(pool, concurrency=2)
    running = patient.running("gated")
    worker.terminate()
    worker.wait_log(HANDED_BACK)
    labels = [patient.send("gated", f"late-{number}-{running}") for number in range(3)]

    end(patient, worker, running)
    assert patient.queued() == labels


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_rate_limited_messages_go_back(patient: Scene, pool: str) -> None:
    """They are in no set of Celery's; the worker has nothing else to do and ends."""
    worker = patient.start(pool, arguments=("--prefetch-multiplier", "4"))
    first = patient.running("limited")
    labels = [patient.send("limited") for _ in range(2)]
    patient.held(worker)

    assert worker.stop(timeout=SOON) == 0

    patient.wait_waiting(2, "the rate-limited")
    assert [patient.steps(label) for label in (first, *labels)] == [["end"], [], []]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
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


@on_redis
@pytest.mark.parametrize("pool", POOLS)
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


@on_redis
@pytest.mark.parametrize("pool", POOLS)
def test_a_message_that_waits_for_the_store_goes_back(patient: Scene, pool: str) -> None:
    """The store is away at the claim; the drain does not wait for it."""
    label = patient.send("gated")
    patient.stage.conf["reliable_store_url"] = "redis://127.0.0.1:1/0"  # type: ignore[index]  # nobody listens there
    worker = patient.start(pool)
    wait_until(lambda: patient.stage.events("store_unavailable"), SOON, "the claim to fail")

    assert worker.stop(timeout=SOON) == 0
    patient.wait_waiting(1, "the message")
    assert patient.steps(label) == []


# --- the line at start


@on_redis
def test_the_worker_says_how_long_a_supervisor_must_wait(patient: Scene) -> None:
    """One line, with the names that Kubernetes, Compose and systemd give it."""
    worker = patient.start("solo")
    (line,) = [line for line in worker.logs().splitlines() if "shutdown budget" in line]
    assert "drain timeout 60 s" in line
    assert "terminationGracePeriodSeconds / stop_grace_period / TimeoutStopSec of at least 62 s" in line
