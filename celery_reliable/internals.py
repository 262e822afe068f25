"""Touch what Celery and kombu do not document, in one place, each with the version and the reason.

`tests/unit/test_internals.py` and the integration tests fail when one of them changes. Written against Celery 5.7.0 and
kombu 5.7.0.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.common import terminate_handler_fired
from celery import Task, states
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import NotRegistered
from kombu.transport.virtual import QoS as VirtualQoS
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

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


def give_back_all(messages: Sequence[Message]) -> None:
    """Do as `give_back` with each message, in this order. Two round trips for hundreds of a Redis queue."""
    unacked = [message for message in messages if not message.acknowledged]
    channel: Any = unacked[0].channel if unacked else None
    if not hasattr(channel, "unacked_key"):
        for message in unacked:
            message.requeue()
        return
    restore_all(channel, [message.delivery_tag for message in unacked])
    for message in unacked:
        VirtualQoS.ack(channel.qos, message.delivery_tag)
        message._state = "REQUEUED"  # noqa: SLF001


def restore_all(channel: Any, tags: Sequence[str]) -> None:
    """Put held messages of a Redis broker back to the near end of their queues, in this order; each atomically.

    As ``QoS.restore_by_tag`` of kombu's channel (5.7), which takes 1.2 ms for each. By EVAL, which kombu's client does
    not prefix, unlike EVALSHA.
    """
    held = [f"{channel.global_keyprefix}{name}" for name in (channel.unacked_key, channel.unacked_index_key)]
    with channel.conn_or_acquire() as client:
        for start in range(0, len(tags), _AT_ONCE):
            some = tags[start : start + _AT_ONCE]
            raws = client.eval(_READ_HELD, 1, held[0], *some)
            for places, restored in _by_list(channel, zip(some, raws, strict=True)).items():
                client.eval(_RESTORE_HELD, 2 + len(places), *held, *places, *restored)


_AT_ONCE = 200  # messages: the script keeps Redis for about a millisecond
_READ_HELD = "return redis.call('HMGET', KEYS[1], unpack(ARGV))"

# Atomic for each message: whoever takes it out of the held ones puts it back, so that it is back once.
_RESTORE_HELD = """
for i = 1, #ARGV, 2 do
    redis.call('ZREM', KEYS[2], ARGV[i])
    if redis.call('HDEL', KEYS[1], ARGV[i]) == 1 then
        for k = 3, #KEYS do redis.call('RPUSH', KEYS[k], ARGV[i + 1]) end
    end
end
"""


def _by_list(channel: Any, held: Iterable[tuple[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Group tags and messages by the lists they go back to. One that is no longer held is left out."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for tag, raw in held:
        if raw is None:
            continue
        payload, exchange, routing_key = loads(bytes_to_str(raw))
        with suppress(KeyError):  # another producer's message may have neither
            payload["headers"]["redelivered"] = True
            payload["properties"]["delivery_info"]["redelivered"] = True
        priority = channel._get_message_priority(payload, reverse=False)  # noqa: SLF001  # as ``_do_restore_message`` (5.7)
        queues = channel._lookup(exchange, routing_key)  # noqa: SLF001
        places = tuple(f"{channel.global_keyprefix}{channel._q_for_pri(queue, priority)}" for queue in queues)  # noqa: SLF001
        grouped.setdefault(places, []).extend((tag, dumps(payload)))
    return grouped


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


def is_called_in_place(backend: Any, errback: Any) -> bool:
    """Tell whether the tracer calls an errback instead of sending it: the rule of ``_call_task_errbacks`` (5.7)."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False
    takes_more = header is not None and not isinstance(header, partial)
    return takes_more and bool(backend._errback_arity_greater(errback, 1))  # noqa: SLF001


def is_terminated() -> bool:
    """Tell whether a signal told this pool child to end (time limit, revoke, a SIGTERM to the process group).

    billiard's handler (4.3) raises SystemExit in the body and sets this flag first; whatever comes out of the body then
    is no outcome of the task.
    """
    fired: bool = terminate_handler_fired()
    return fired
