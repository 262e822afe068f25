"""Tell what becomes of a request, as Celery's tracer would."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, states
from celery.app.task import Context, get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import NotRegistered, TaskRevokedError

if TYPE_CHECKING:
    from celery.exceptions import Retry

    from celery_reliable.task import ReliableTask

_WATCHED = "celery_reliable_watches"


def keeps_result(task: Task) -> bool:
    """Tell whether the tracer will store this request's result.

    ``ignore_result`` of the request wins over the task's only when it was given (``get_actual_ignore_result``, 5.7).
    """
    return not get_actual_ignore_result(task, task.request) and not isinstance(task.backend, DisabledBackend)


def store_success(task: Task, result: Any, *, stored: Any, chord: Any) -> None:
    """Store the success of the present request and count it in its chord, as the tracer does after a body (5.7).

    ``stored`` stands for the result where it is asked for; the chord of the Redis backend is given the result. ``chord``: the
    backend that tells the chord.
    """
    if keeps_result(task):
        task.backend.store_result(task.request.id, stored, states.SUCCESS, request=task.request)
    if task.request.chord:
        chord.on_chord_part_return(task.request, states.SUCCESS, result)


def store_failure(task: Task, exc: Exception) -> None:
    """Store the failure of the present request as the tracer will do again: the rule of ``handle_error_state`` (5.7)."""
    if not get_actual_ignore_result(task, task.request) or task.store_errors_even_if_ignored:
        told = "".join(traceback.format_exception(exc))
        task.backend.store_result(task.request.id, exc, states.FAILURE, traceback=told, request=task.request)


def store_retry(task: Task, exc: Exception | None) -> None:
    """Store that the present request will be tried again, as the tracer does (``handle_retry``, 5.7)."""
    if keeps_result(task):
        told = "".join(traceback.format_exception(exc)) if exc is not None else None
        task.backend.mark_as_retry(task.request.id, exc, told, request=task.request)


def mark_skipped(task: Task, reason: str, *, chord: Any) -> None:
    """Store that the present request was revoked, and tell its chord, its chain and its errbacks.

    ``chord``: the backend that tells the chord.
    ``Backend.mark_as_revoked`` (5.7) tells the chord alone; ``mark_as_failure`` takes the state to store for all of them.
    """
    request = task.request
    stored = not get_actual_ignore_result(task, request)
    chord.mark_as_failure(
        request.id, TaskRevokedError(reason), request=request, store_result=stored, state=states.REVOKED
    )


def fail(context: Context, exc: Exception, *, chord: Any) -> None:
    """Store a failure and tell chord, chain and errbacks of a request, as a worker does for an unregistered task.

    ``Backend.mark_as_failure`` (5.7). ``chord``: the backend that tells the chord. Raises what backend and broker raise.
    """
    keep = not context.ignore_result
    chord.mark_as_failure(context.id, exc, request=context, store_result=keep)


def fail_what_follows(task: Task, exc: Exception, *, chord: Any) -> None:
    """Fail the chord and the rest of the chain of the present request, its errbacks left out (``mark_as_failure``, 5.7).

    The failure itself is not stored. ``chord``: the backend that tells the chord.
    """
    request = task.request
    told = "".join(traceback.format_exception(exc))
    if request.chord:
        chord.on_chord_part_return(request, states.FAILURE, exc)
    chord._fail_chain(request.chain, exc, told, store_result=keeps_result(task))  # noqa: SLF001


def watch_backends(prepare: Callable[[Celery, Any], None]) -> None:
    """Have ``prepare`` called with every app and each result backend that it makes. The first call counts.

    On the class (``Celery._get_backend``, 5.7, makes one backend for each thread): nothing tells which app asks for results before.
    """
    make = Celery._get_backend  # noqa: SLF001
    if hasattr(make, _WATCHED):
        return

    def prepared(app: Celery) -> Any:
        backend = make(app)
        prepare(app, backend)
        return backend

    setattr(prepared, _WATCHED, True)
    Celery._get_backend = prepared  # noqa: SLF001


def change_results(backend: Any, change: Callable[[Any], Any]) -> None:
    """Have a result backend pass on what it knows of a task by ``change``.

    ``meta_from_decoded`` (5.7) is where every backend ends that reads the state and result of a task.
    """
    read = backend.meta_from_decoded
    backend.meta_from_decoded = lambda found: change(read(found))


def is_called_in_place(backend: Any, errback: Any) -> bool:
    """Tell whether the tracer calls an errback instead of sending it: the rule of ``_call_task_errbacks`` (5.7)."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False
    takes_more = header is not None and not isinstance(header, partial)
    return takes_more and bool(backend._errback_arity_greater(errback, 1))  # noqa: SLF001


def prepared_retry(task: ReliableTask, **options: Any) -> Retry:
    """Let Celery's own `Task.retry` build the retry (merged arguments, options) without publishing it.

    For an eager request `Task.retry` (5.7) returns the signature instead of sending it; nothing else depends on the flag.
    It also leaves its ``max_retries`` on the task, where ``autoretry_for`` takes it for the limit of the next run.
    """
    request = task.request
    eager, request.is_eager = request.is_eager, True
    try:
        prepared: Retry = Task.retry(task, throw=False, **options)
        return prepared
    finally:
        request.is_eager = eager
        task.__dict__.pop("override_max_retries", None)
