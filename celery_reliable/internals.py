"""Touch what Celery and kombu do not document, in one place, each with the version and the reason.

`tests/unit/test_internals.py` and the integration tests fail when one of them changes. Written against Celery 5.7.0 and
kombu 5.7.0.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from billiard.common import terminate_handler_fired
from celery import Task
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
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
    """
    request = task.request
    eager, request.is_eager = request.is_eager, True
    try:
        prepared: Retry = Task.retry(task, throw=False, **options)
        return prepared
    finally:
        request.is_eager = eager


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


def process_is_ending() -> bool:
    """Tell whether this pool child was ended by its worker: the SystemExit that passes is no error of a body.

    ``terminate_handler_fired`` (billiard 4.3) is what the child's own loop asks.
    """
    return bool(terminate_handler_fired())
