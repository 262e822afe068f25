"""Bodies that do not let themselves be interrupted: the worker is gone in time, and its work goes on elsewhere."""

from __future__ import annotations

import time

import pytest

from celery_reliable.testing.processes import process_table
from tests.integration.drains import AFTER_TIMEOUT, TIMEOUT, Scene, wait_ended
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SWALLOWS = [(pool, "stubborn") for pool in ("prefork", "threads", "solo", "gevent", "eventlet")]
# In a green worker a C call stops every greenlet, in all pools it lets threads run.
IN_C = [(pool, "stuck_in_c") for pool in ("prefork", "threads", "solo", "gevent", "eventlet")]


@pytest.mark.parametrize(("pool", "task"), [*SWALLOWS, *IN_C, ("prefork", "holding_the_gil"), ("threads", "sleeping")])
def test_a_body_that_cannot_be_interrupted_does_not_hold_the_exit(hasty: Scene, pool: str, task: str) -> None:
    """Code 0 in time; the message is back; the next run begins when this one is gone, and nothing was spent."""
    worker = hasty.start(pool)
    label = hasty.running(task)
    (start,) = hasty.stage.entries(label)

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what=f"exit with {task}")

    wait_until(
        lambda: start["pid"] not in {entry.pid for entry in process_table()}, 1.0, "the body's process to be gone"
    )
    hasty.wait_waiting(1, "the message of the body that was ended")
    again = hasty.finish_elsewhere(label)
    assert (again["attempt"], again["fence"] > start["fence"]) == (1, True)
    assert hasty.delivery(label) == [1, 1]
    assert hasty.stage.events("buried", again["task_id"]) == []


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_plain_task_at_the_timeout_goes_back(hasty: Scene, pool: str) -> None:
    """It knows nothing of `Draining`: it is ended with its child or process, recorded as nothing, and runs again."""
    worker = hasty.start(pool)
    label = hasty.running("plain")

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what="exit with a plain task")

    hasty.wait_waiting(1, "the plain task's message")
    start = hasty.finish_elsewhere(label)
    assert hasty.steps(label) == ["start", "start", "end"]
    assert hasty.app.AsyncResult(start["task_id"]).get(timeout=10) is None


def test_a_drain_without_patience_interrupts_at_once(hasty: Scene) -> None:
    """``reliable_drain_timeout=0``."""
    hasty.stage.conf["reliable_drain_timeout"] = 0  # type: ignore[index]  # a dict here
    worker = hasty.start("prefork")
    label = hasty.running("saving")

    began = time.monotonic()
    worker.terminate()
    wait_ended(worker, since=began, what="exit without patience", timeout=0.0)

    assert hasty.steps(label) == ["start", "interrupted"]
    hasty.wait_waiting(1, "the interrupted message")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_a_body_that_takes_the_interpreter_away_in_a_drain_ends_in_time(hasty: Scene, pool: str) -> None:
    """No thread of Python can run: the process ends all the same, with code 1, and the lease runs out by itself."""
    worker = hasty.start(pool)
    label = hasty.running("taking_the_gil")

    began = time.monotonic()
    worker.terminate()
    assert worker.wait(TIMEOUT + AFTER_TIMEOUT + 5.0) == 1
    assert time.monotonic() - began < TIMEOUT + AFTER_TIMEOUT + 0.2
    assert "taking_the_gil" in worker.logs().partition("Timeout (")[2]  # the stack that was in the way
    assert hasty.steps(label) == ["start"]
