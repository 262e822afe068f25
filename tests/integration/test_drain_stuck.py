"""Bodies that do not let themselves be interrupted: the worker is gone in time, and its work goes on elsewhere."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import process_table, send_to_group
from celery_reliable.worker.drain.guarding import LAST_SIGNAL
from tests.integration.drains import AFTER_TIMEOUT, SOON, TIMEOUT, Scene, figure, on, wait_ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.workers import Worker

pytestmark = pytest.mark.integration

# `plain` is no task of ours and knows nothing of `Draining`. A C call lets other threads run, but in a green worker no
# other greenlet; one that keeps the interpreter's lock harms nobody in another process.
STUCK = {
    "redis-prefork": ("stubborn", "stuck_in_c", "holding_the_gil", "plain"),
    "rabbitmq-prefork": ("stubborn",),
    "rabbitmq-threads": ("stubborn", "sleeping", "stuck_in_c", "plain"),
    "redis-solo": ("stuck_in_c",),
    "redis-gevent": ("stuck_in_c",),
    "redis-eventlet": ("stubborn",),
}


@on(*STUCK)
def test_bodies_that_cannot_be_interrupted_do_not_hold_the_exit(hasty: Scene, pool: str, broker: str) -> None:
    """Code 0 in time; the messages are back; the next run begins when this one is gone, and nothing was spent."""
    bodies = STUCK[f"{'redis' if broker.startswith('redis') else 'rabbitmq'}-{pool}"]
    worker = hasty.start(pool, concurrency=len(bodies))
    labels = {hasty.running(body): body for body in bodies}
    starts = {label: hasty.step(label, "start") for label in labels}

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what=f"exit with {', '.join(bodies)}")

    gone = {start["pid"] for start in starts.values()}
    wait_until(lambda: not gone & {entry.pid for entry in process_table()}, 1.0, "the bodies' processes to be gone")
    wait_until(lambda: not in_group_of(worker), AFTER_TIMEOUT, "no child to outlive the worker")
    hasty.wait_waiting(len(labels), "the messages of the bodies that were ended")
    for label in labels:
        hasty.stage.open(label)
    for label, body in labels.items():
        again = hasty.finish_elsewhere(label)
        assert hasty.stage.events("buried", again["task_id"]) == []
        if body != "plain":
            assert (again["attempt"], again["fence"] > starts[label]["fence"]) == (1, True)
            assert hasty.delivery(label) == [1, 1]


def in_group_of(worker: Worker) -> list[int]:
    """Return the processes that a worker has left behind."""
    return [entry.pid for entry in process_table() if entry.group == worker.pid and not entry.state.startswith("Z")]


@on("redis-threads")
def test_a_body_that_takes_the_interpreter_away_in_a_drain_ends_in_time(hasty: Scene, pool: str) -> None:
    """No thread of Python can run: the process ends all the same, with code 1, and the lease runs out by itself."""
    worker = hasty.start(pool)
    label = hasty.running("taking_the_gil")

    began = time.monotonic()
    worker.terminate()
    assert exit_code(worker) == 1
    assert time.monotonic() - began < TIMEOUT + AFTER_TIMEOUT + 1.0
    assert "taking_the_gil" in worker.logs().partition("Timeout (")[2]  # the stack that was in the way
    assert hasty.steps(label) == ["start"]


@on("redis-threads", "redis-solo", "redis-gevent", "redis-eventlet")
def test_a_body_that_took_the_interpreter_away_before_the_signal_ends_in_time(hasty: Scene, pool: str) -> None:
    """No line of Python learns of the signal. C ends the process, says where it was, and the job runs elsewhere, once."""
    worker = hasty.start(pool)
    label = hasty.running("holding_the_gil")
    (guardian,) = worker.children

    began = time.monotonic()
    worker.terminate()
    assert exit_code(worker) == LAST_SIGNAL
    figure("exit with the interpreter taken", time.monotonic() - began)
    assert time.monotonic() - began < TIMEOUT + AFTER_TIMEOUT + 1.0
    assert "in _stick_for_ever" in worker.logs()
    wait_gone(guardian)
    hasty.finish_elsewhere(label)
    assert (hasty.steps(label), hasty.delivery(label)) == (["start", "start", "end"], [1, 2])


@on("redis-threads")
def test_a_guardian_ends_with_its_worker(patient: Scene, pool: str) -> None:
    """It ignores a signal to the whole group; a clean exit and a SIGKILL take it along."""
    clean, killed = patient.start(pool), patient.start(pool)
    guardians = [child for worker in (clean, killed) for child in worker.children]
    assert len(guardians) == 2
    label = patient.running("gated")
    send_to_group(clean.pid, signal.SIGTERM)
    send_to_group(clean.pid, signal.SIGINT)
    clean.wait_log("Warm shutdown")
    assert clean.children == guardians[:1] or not clean.running

    patient.stage.open(label)
    assert clean.wait(SOON) == 0
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    for guardian in guardians:
        wait_gone(guardian)


def wait_gone(pid: int) -> None:
    """Return once a process has ended."""
    wait_until(lambda: pid not in {entry.pid for entry in process_table()}, SOON, f"process {pid} to be gone")


def exit_code(worker: Worker) -> int:
    """Wait for the end."""
    return worker.wait(TIMEOUT + AFTER_TIMEOUT + 5.0)
