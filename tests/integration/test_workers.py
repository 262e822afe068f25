"""The real workers that other tests rely on, driven with plain Celery."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_reliable.testing.processes import process_table
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = """
import os
from celery import Celery
app = Celery("plain", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
@app.task(shared=False, name="whoami")
def whoami():
    return os.getpid()
"""


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Celery:
    """A client of the application that the workers run."""
    (tmp_path / "plain.py").write_text(APP)
    return Celery(broker=redis_url, backend=redis_url)


@pytest.fixture
def worker(app: Celery, redis_url: str, workers: Workers, tmp_path: Path) -> Worker:
    """A worker with one pool child that has run a task."""
    worker = workers.start("plain", env={"BROKER": redis_url}, cwd=tmp_path)
    assert app.send_task("whoami").get(timeout=20) in worker.children
    return worker


def _state(pid: int) -> str | None:
    return next((entry.state for entry in process_table() if entry.pid == pid), None)


def test_a_stopped_worker_ends_in_order(worker: Worker) -> None:
    """SIGTERM reaches the main process, which ends with code 0."""
    assert worker.stop() == 0
    assert "Warm shutdown" in worker.logs()


def test_a_killed_worker_takes_its_children_with_it(worker: Worker) -> None:
    """Nothing of a killed worker goes on."""
    pids = [worker.pid, *worker.children]
    worker.kill()
    wait_until(lambda: all(_state(pid) is None for pid in pids), 10, "the end of main process and children")


def test_a_killed_child_is_replaced(worker: Worker, app: Celery) -> None:
    """Only the child dies; the worker goes on with another one."""
    victim = worker.kill_child()
    assert app.send_task("whoami").get(timeout=20) != victim
    assert worker.running


def test_a_frozen_worker_does_nothing_until_it_is_thawed(worker: Worker, app: Celery) -> None:
    """Freezing reaches main process and children, and thawing lets the waiting task run."""
    worker.freeze()
    wait_until(lambda: {_state(pid) for pid in [worker.pid, *worker.children]} == {"T"}, 10, "all stopped")
    result = app.send_task("whoami")
    worker.thaw()
    assert result.get(timeout=20) in worker.children


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_worker_runs_on_other_pools(app: Celery, redis_url: str, workers: Workers, tmp_path: Path, pool: str) -> None:
    """Pools without children run the task in the main process."""
    worker = workers.start("plain", env={"BROKER": redis_url}, cwd=tmp_path, pool=pool)
    assert app.send_task("whoami").get(timeout=20) == worker.pid


def test_a_worker_that_cannot_start_fails_with_its_log(workers: Workers, tmp_path: Path) -> None:
    """The failure shows what the worker said."""
    with pytest.raises(AssertionError, match="nowhere"):
        workers.start("nowhere", cwd=tmp_path)


@pytest.mark.usefixtures("app")
def test_the_fixture_leaves_no_worker(redis_url: str, workers: Workers, tmp_path: Path) -> None:
    """A frozen worker is killed too."""
    worker = workers.start("plain", env={"BROKER": redis_url}, cwd=tmp_path)
    worker.freeze()
    workers.close()
    assert not worker.running
