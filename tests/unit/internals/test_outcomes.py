"""What becomes of a request, as Celery's tracer would have it."""

from __future__ import annotations

import inspect
from typing import Any

from celery.backends.base import Backend, DisabledBackend
from celery.exceptions import Retry

from celery_reliable import internals


def test_prepared_retry_publishes_nothing(task: Any) -> None:
    """``Task.retry`` of an eager request returns its signature."""
    prepared = internals.prepared_retry(task, args=(2,), countdown=7, max_retries=99, exc=ValueError("x"))
    assert isinstance(prepared, Retry)
    assert (prepared.sig.args, prepared.sig.options["countdown"]) == ((2,), 7)
    assert task.request.is_eager is False


def test_result_is_kept_unless_ignored_or_without_a_backend(task: Any) -> None:
    """``get_actual_ignore_result`` and ``DisabledBackend``."""
    assert isinstance(task.backend, DisabledBackend)
    assert internals.keeps_result(task) is False


def test_failure_can_be_marked_with_another_state(task: Any) -> None:
    """``mark_as_failure`` takes the state, and hands it to chord and chain."""
    parameters = inspect.signature(Backend.mark_as_failure).parameters
    assert {"request", "store_result", "call_errbacks", "state"} <= set(parameters)
    source = inspect.getsource(Backend.mark_as_failure)
    assert "self.on_chord_part_return(request, state, exc)" in source
    assert "store_result=store_result, state=state" in source
