"""Touch what Celery and kombu do not document, in one place, each with the version and the reason.

`tests/unit/test_internals.py` and the integration tests fail when one of them changes. Written against Celery 5.7.0 and
kombu 5.7.0.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.common import terminate_handler_fired
from celery import Task, states
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import NotRegistered, SoftTimeLimitExceeded
from kombu.transport.virtual import QoS as VirtualQoS

if TYPE_CHECKING:
    from celery.exceptions import Retry
    from kombu.message import Message

    from celery_reliable.task import ReliableTask


def sending_options(task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under which `Task.apply_async` sends: those of the task's class, then the call's.

    ``Task._get_exec_options`` (5.7) is what `apply_async` itself reads; a copy that left one out would be sent
    elsewhere.
    """
    return {**task._get_exec_options(), **options}  # noqa: SLF001


def dumped_arguments(task: Task, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return pydantic arguments as `apply_async` sends them: ``Task._dump_pydantic_arguments`` (5.7), None if off."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None else (args, kwargs)


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


def give_back(message: Message) -> None:
    """Return an unacknowledged message to the end of its queue from which it is received next.

    On Redis kombu's ``reject(requeue=True)`` (5.7) pushes to the far end, behind the whole backlog; ``restore_by_tag``
    takes the end as an argument. AMQP brokers put it back near its old place by themselves.
    """
    if message.acknowledged:
        return
    qos: Any = getattr(message.channel, "qos", None)
    if qos is not None and hasattr(qos, "restore_by_tag"):
        qos.restore_by_tag(message.delivery_tag, leftmost=False)
        VirtualQoS.ack(qos, message.delivery_tag)  # takes it from what this worker holds, sends nothing
        message._state = "REQUEUED"  # noqa: SLF001  # what `Message.requeue` sets
        return
    message.requeue()


def new_token() -> str:
    """Return 12 characters that no other delivery has."""
    return secrets.token_urlsafe(9)


def keeps_result(task: Task) -> bool:
    """Tell whether the tracer will store this request's result.

    ``ignore_result`` of the request wins over the task's only when it was given (``get_actual_ignore_result``, 5.7).
    """
    return not get_actual_ignore_result(task, task.request) and not isinstance(task.backend, DisabledBackend)


def store_failure(task: Task, exc: Exception) -> None:
    """Store the failure of the present request as the tracer will do again: the rule of ``handle_error_state`` (5.7)."""
    if not get_actual_ignore_result(task, task.request) or task.store_errors_even_if_ignored:
        told = "".join(traceback.format_exception(exc))
        task.backend.store_result(task.request.id, exc, states.FAILURE, traceback=told, request=task.request)


def store_success(task: Task, result: Any) -> None:
    """Store the success of the present request and count it in its chord, as the tracer does after a body (5.7)."""
    task.backend.mark_as_done(task.request.id, result, task.request, keeps_result(task))


def is_chord_claimed(task: Task) -> bool:
    """Tell whether a worker says that it is sending the body of the present request's chord just now.

    ``on_chord_part_return`` of the Redis backend (5.7) lets one worker claim that, and all others go on as if it were
    done. If that worker dies, only a member that comes again when the claim is over sends the body.
    """
    backend, group = task.backend, task.request.group
    if not group or not hasattr(backend, "_chord_part_return_script"):
        return False
    return backend.client.get(backend.get_key_for_group(group, ".c")) not in (None, b"done")


def fail_what_follows(task: Task, exc: Exception) -> None:
    """Fail the chord and the rest of the chain of the present request, its errbacks left out (``mark_as_failure``, 5.7).

    The failure itself is not stored.
    """
    request, backend = task.request, task.backend
    told = "".join(traceback.format_exception(exc))
    if request.chord:
        backend.on_chord_part_return(request, states.FAILURE, exc)
    backend._fail_chain(request.chain, exc, told, store_result=keeps_result(task))  # noqa: SLF001


def store_retry(task: Task, exc: Exception | None) -> None:
    """Store that the present request will be tried again, as the tracer does (``handle_retry``, 5.7)."""
    if keeps_result(task):
        told = "".join(traceback.format_exception(exc)) if exc is not None else None
        task.backend.mark_as_retry(task.request.id, exc, told, request=task.request)


def is_called_in_place(backend: Any, errback: Any) -> bool:
    """Tell whether the tracer calls an errback instead of sending it: the rule of ``_call_task_errbacks`` (5.7)."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False
    takes_more = header is not None and not isinstance(header, partial)
    return takes_more and bool(backend._errback_arity_greater(errback, 1))  # noqa: SLF001


def is_interruption(exc: BaseException) -> bool:
    """Tell whether an exception is what a drain raises in a pool child: billiard's soft time limit by SIGUSR1 (4.3)."""
    return isinstance(exc, SoftTimeLimitExceeded)


def is_terminated() -> bool:
    """Tell whether a signal told this pool child to end (time limit, revoke, a SIGTERM to the process group).

    billiard's handler (4.3) raises SystemExit in the body and sets this flag first; whatever comes out of the body then
    is no outcome of the task.
    """
    fired: bool = terminate_handler_fired()
    return fired
