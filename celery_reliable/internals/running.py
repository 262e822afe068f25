"""Tell what runs in this process, and whether it is being ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from billiard.common import terminate_handler_fired
from celery._state import _task_stack
from celery.worker import state

if TYPE_CHECKING:
    from celery import Task
    from kombu.message import Message


def pool_name(pool: Any) -> str:
    """Return the name under which ``--pool`` knows a pool: that of its module (5.7)."""
    name = type(pool).__module__.rpartition(".")[2]
    return {"thread": "threads"}.get(name, name)


def active_requests() -> list[Any]:
    """Return the requests that run: a copy of ``state.active_requests`` (5.7), a WeakSet that changes meanwhile."""
    while True:
        try:
            return list(state.active_requests)
        except RuntimeError:
            continue


def running_tags() -> set[str]:
    """Return the delivery tags of all messages that run and are not acknowledged, whichever connection brought them."""
    return {str(one.message.delivery_tag) for one in active_requests() if not one.acknowledged}


def is_taken(message: Message) -> bool:
    """Tell whether Celery has made a request of a message already: then an error is not the message's."""
    requests = (*state.reserved_requests, *state.scheduled_requests, *state.active_requests)
    return any(request.message is message for request in requests)


def is_terminated() -> bool:
    """Tell whether a signal told this pool child to end (time limit, revoke, a SIGTERM to the process group).

    billiard's handler (4.3) raises SystemExit in the body and sets this flag first; whatever comes out of the body then
    is no outcome of the task.
    """
    fired: bool = terminate_handler_fired()
    return fired


@contextmanager
def current(task: Task) -> Iterator[None]:
    """Make a task ``celery.current_task`` for a block of code, as the tracer (5.7) does with ``_state._task_stack``."""
    _task_stack.push(task)
    try:
        yield
    finally:
        _task_stack.pop()
