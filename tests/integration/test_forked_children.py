"""A pool child that is forked while a thread of its worker is at work does its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = """
import os, threading
from celery import Celery, signals
from celery_reliable import ReliableTask

app = Celery("forked", broker=os.environ["REDIS"], backend=os.environ["REDIS"], task_cls=ReliableTask)
app.config_from_object("celery_reliable.presets")
app.conf.reliable_store_url = os.environ["REDIS"]
held = threading.Event()

def hold():
    with vars(Celery)["GroupResult"].lock:  # a cached property of kombu's: nothing but the task below reads it here
        held.set()
        threading.Event().wait()

@signals.worker_ready.connect(weak=False)
def begin(**_):
    threading.Thread(target=hold, daemon=True).start()
    held.wait()

@app.task(bind=True, name="look")
def look(self, label):
    return self.app.GroupResult.__name__, os.getpid()
"""


def test_a_child_forked_while_a_thread_has_a_lock_does_its_tasks(
    redis_url: str, workers: Workers, tmp_path: Path
) -> None:
    """The first child is older than the thread; those of the second task and the third have a lock that nobody frees."""
    (tmp_path / "forked.py").write_text(APP)
    workers.start("forked", env={"REDIS": redis_url}, cwd=tmp_path, arguments=["--max-tasks-per-child", "1"])
    client = Celery(broker=redis_url, backend=redis_url)
    told = [client.send_task("look", [label]).get(timeout=20) for label in "abc"]
    assert {name for name, _ in told} == {"GroupResult"}
    assert len({pid for _, pid in told}) == len(told)
