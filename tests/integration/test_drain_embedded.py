"""A worker in a thread of another program: it drains when it is told to, and the program goes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integration.drains import SOON, Scene
from tests.integration.workers import ROOT

pytestmark = pytest.mark.integration

# The watchdog's C thread would end the program 1.9 s after a drain without patience.
HOST = """
import sys, time
from celery.contrib.testing.worker import start_worker
from tests.integration.apps.draining import app

def embedded():
    return start_worker(app, perform_ping_check=False, pool="threads", loglevel="INFO")

with embedded():
    pass
with embedded() as worker:
    app.tasks["saving"].apply_async((sys.argv[1],))
    while not app.stage.entries(sys.argv[1]):
        time.sleep(0.02)
    app.control.shutdown()
    while worker.blueprint.state != 3:
        time.sleep(0.02)
time.sleep(2.2)
print("alive")
"""


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_neither_end_nor_drain_of_an_embedded_worker_ends_the_program(hasty: Scene) -> None:
    """One that is stopped as tests do it, then one that drains: its task saves, and its message goes back."""
    hasty.stage.conf["reliable_drain_timeout"] = 0  # type: ignore[index]  # a dict here
    environment = {**os.environ, **hasty.stage.environment(), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", HOST, "label"]
    run = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert (run.stdout, run.returncode) == ("alive\n", 0), run.stderr
    assert hasty.steps("label") == ["start", "interrupted"]
    hasty.wait_waiting(1, f"the interrupted message within {SOON} s")
