"""What runs in this process."""

from __future__ import annotations

import inspect
from typing import Any

from celery import Celery, current_task
from celery.app import trace

from celery_reliable import internals


def test_current_task_is_the_top_of_a_stack() -> None:
    """``current`` pushes on it, as the tracer does."""
    task: Any = Celery("shop", set_as_current=False).tasks["celery.backend_cleanup"]
    with internals.current(task):
        assert current_task.name == task.name
    assert not current_task
    assert "push_task = _task_stack.push" in inspect.getsource(trace)
