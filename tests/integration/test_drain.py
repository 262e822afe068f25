"""A worker that is told to stop: what waits goes back at once, what runs may end, what does not end goes back in time."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import send_to_group
from tests.integration.drains import SOON, Scene, figure, on, wait_ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.workers import Worker

pytestmark = pytest.mark.integration

EVERY_POOL = ("redis-prefork", "redis-threads", "redis-solo", "redis-gevent", "redis-eventlet")
HANDED_BACK = "messages handed back"
SIGINT_TO = {"threads", "gevent"}  # the other pools get a SIGTERM


def stop_whole_group(worker: Worker, pool: str) -> None:
    """Tell main process and children to stop, as a terminal or a careless supervisor does, and again."""
    number = signal.SIGINT if pool in SIGINT_TO else signal.SIGTERM
    send_to_group(worker.pid, number)
    worker.wait_log(HANDED_BACK)
    send_to_group(worker.pid, number)
    send_to_group(worker.pid, signal.SIGTERM)


# --- hand over


ON_RABBITMQ = tuple(name.replace("redis", "rabbitmq") for name in EVERY_POOL)
GREEN = {"gevent", "eventlet"}


@on(*EVERY_POOL, *ON_RABBITMQ)
def test_what_has_not_begun_goes_back_while_the_running_task_ends(patient: Scene, pool: str) -> None:
    """Prefetched and ETA messages are back at once; the task ends in its child, and with it the worker, with code 0."""
    worker = patient.start(pool, arguments=("--prefetch-multiplier", "4"))
    running = patient.running("gated")
    others = [patient.send("gated") for _ in range(2)]
    others += [patient.send("gated", countdown=600) for _ in range(2)]
    if pool == "prefork":
        patient.held(worker)

    began = time.monotonic()
    stop_whole_group(worker, pool)
    if (
        pool not in GREEN or patient.unacked() is not None
    ):  # there a full pool reads no more: see the page about the drain
        patient.wait_waiting(len(others), "all that did not run")
        figure("messages back", time.monotonic() - began)
    patient.stage.open(running)
    assert worker.wait(SOON) == 0
    patient.wait_waiting(len(others), "all that did not run")

    start, end = patient.stage.entries(running)
    figure("exit after the last task", time.monotonic() - end["at"])
    assert (start["pid"], end["draining"], patient.delivery(running)) == (end["pid"], True, [1])
    assert (patient.unacked() or 0) == 0
    assert [patient.steps(label) for label in others] == [[]] * len(others)


@on("redis-solo")
def test_an_idle_worker_says_how_long_to_wait_and_ends_at_once(patient: Scene, pool: str) -> None:
    """One line at its start, with the names that Kubernetes, Compose and systemd give it."""
    worker = patient.start(pool)
    (line,) = [line for line in worker.logs().splitlines() if "shutdown budget" in line]
    assert "drain timeout 60 s" in line
    assert "terminationGracePeriodSeconds / stop_grace_period / TimeoutStopSec of at least 62 s" in line
    assert worker.stop(timeout=SOON) == 0


@on("redis-prefork", "rabbitmq-gevent", "redis-solo", "redis-eventlet")
def test_a_shutdown_by_remote_control_drains_too(patient: Scene, pool: str) -> None:
    """``app.control.shutdown()``; on solo it is heard when the task has ended."""
    worker = patient.start(pool, concurrency=2)
    running = patient.running("gated")
    waiting = patient.send("gated", countdown=600)
    if pool != "solo":
        patient.held(worker)
    patient.app.control.shutdown(destination=[worker_name(worker)])
    if pool != "solo":
        worker.wait_log(HANDED_BACK)
        patient.wait_waiting(1, "the ETA message")

    patient.stage.open(running)
    assert worker.wait(SOON) == 0
    assert (patient.steps(running), patient.steps(waiting)) == (["start", "end"], [])
    patient.wait_waiting(1, "the ETA message")


def worker_name(worker: Worker) -> str:
    """Return the name by which remote control knows a worker."""
    (line,) = [line for line in worker.logs().splitlines() if line.endswith(" ready.")]
    return line.split()[-2]


@on("redis-prefork", "redis-gevent", "redis-solo")
def test_a_task_that_looks_may_stop_by_itself(patient: Scene, pool: str) -> None:
    """``self.draining`` and ``self.stop_if_draining()``, long before the timeout; the checkpoint is kept."""
    worker = patient.start(pool)
    label = patient.running("watching")

    assert worker.stop(timeout=SOON) == 0

    assert patient.steps(label) == ["start", "seen"]
    patient.wait_waiting(1, "the message of the task that stopped")
    start = patient.finish_elsewhere(label)
    assert (start["saved"], start["attempt"], patient.delivery(label)) == ("seen", 1, [1, 1])


# --- the timeout


@on(*EVERY_POOL, "rabbitmq-prefork", "rabbitmq-threads", "rabbitmq-gevent", "rabbitmq-eventlet")
def test_a_body_that_still_runs_at_the_timeout_saves_and_goes_on_elsewhere(hasty: Scene, pool: str) -> None:
    """`Draining` is raised in it; the message is back; the next run has the checkpoint, and nothing was spent."""
    worker = hasty.start(pool)
    label = hasty.running("saving")

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what="exit at the timeout")

    assert hasty.steps(label) == ["start", "interrupted"]
    hasty.wait_waiting(1, "the interrupted message")
    start = hasty.finish_elsewhere(label)
    assert (start["saved"], start["attempt"], hasty.delivery(label)) == ("interrupted", 1, [1, 1])


@on("redis-prefork")
def test_a_drain_without_patience_interrupts_at_once(hasty: Scene, pool: str) -> None:
    """``reliable_drain_timeout=0``."""
    hasty.stage.conf["reliable_drain_timeout"] = 0  # type: ignore[index]  # a dict here
    worker = hasty.start(pool)
    label = hasty.running("saving")

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what="exit without patience", timeout=0.0)

    assert hasty.steps(label) == ["start", "interrupted"]
    hasty.wait_waiting(1, "the interrupted message")


@on("redis-prefork")
def test_a_thousand_messages_that_wait_for_their_time_go_back(patient: Scene, pool: str) -> None:
    """All of them, long before a drain timeout of the usual half minute is over."""
    many = 1_000
    patient.multiply(patient.send("gated", countdown=3600), many)
    worker = patient.start(pool)
    wait_until(lambda: patient.waiting() == 0, 60.0, "the worker to hold all")

    began = time.monotonic()
    assert worker.stop(timeout=SOON) == 0
    figure("a thousand back, and exit", time.monotonic() - began)
    assert (patient.waiting(), patient.unacked()) == (many, 0)
