"""A worker that is told to stop: what waits goes back at once, what runs may end, what does not end goes back in time."""

from __future__ import annotations

import time

import pytest

from tests.integration.drains import SOON, Scene, figure, wait_ended

pytestmark = pytest.mark.integration

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


# --- hand over


@pytest.mark.parametrize("pool", POOLS)
def test_what_has_not_begun_goes_back_while_the_running_task_ends(patient: Scene, pool: str) -> None:
    """Prefetched, ETA and rate-limited messages are back at once; the worker ends with its last task."""
    worker = patient.start(pool, arguments=("--prefetch-multiplier", "4"))
    running = patient.running("gated")
    others = [patient.send("gated") for _ in range(2)]
    others += [patient.send("gated", countdown=600) for _ in range(2)]

    if pool == "prefork":
        patient.held(worker)
    worker.terminate()
    figure("messages back", patient.wait_waiting(len(others), "all that did not run"))
    assert patient.steps(running) == ["start"]

    patient.stage.open(running)
    assert worker.wait(SOON) == 0
    end = patient.step(running, "end")
    figure("exit after the last task", time.monotonic() - end["at"])
    assert end["draining"] is True
    assert patient.waiting() == len(others)
    assert [patient.steps(label) for label in others] == [[]] * len(others)
    assert patient.unacked() in {0, None}


# --- the timeout


@pytest.mark.parametrize("pool", POOLS)
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
