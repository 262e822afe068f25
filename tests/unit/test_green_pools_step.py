"""The step that keeps workers on green pools from standing still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_reliable.wiring import WORKER_STEPS
from celery_reliable.worker.green_pools import GreenPools


def worker_on(pool: Any) -> Any:
    """What a bootstep sees of a worker."""
    app = Celery("results", backend="redis://localhost:1/0", set_as_current=False)
    return SimpleNamespace(app=app, pool=pool)


@pytest.mark.parametrize(("green", "taken"), [(True, True), (False, False)])
def test_the_step_takes_part_on_green_pools_only(*, green: bool, taken: bool) -> None:
    """Elsewhere Celery itself does not subscribe."""
    worker = worker_on(SimpleNamespace(is_green=green))
    assert GreenPools(worker).include_if(worker) is taken


def test_nothing_is_asked_of_redis_when_a_green_worker_sends_a_task() -> None:
    """Nor when the result that it got is collected; Redis is not even there."""
    assert "celery_reliable.worker.green_pools:GreenPools" in WORKER_STEPS
    worker = worker_on(SimpleNamespace(is_green=True))
    GreenPools(worker).start(worker)
    worker.app.backend.on_task_call(None, "a")
    worker.app.AsyncResult("a").__del__()
