"""Read what a received message says of itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.utils.time import maybe_iso8601
from kombu.utils import json as kombu_json

if TYPE_CHECKING:
    from kombu.message import Message

_OF_THE_JOURNEY = (
    "application_headers",
    "content_type",
    "content_encoding",
    "delivery_tag",
    "delivery_info",
    "body_encoding",
    "user_id",
)


def is_moment(value: object) -> bool:
    """Tell an ``eta`` or ``expires`` that a worker can count towards: what ``Request`` and the strategy (5.7) do with it.

    A time that the strategy cannot convert is rejected there, which deletes the message on Redis.
    """
    try:
        moment = maybe_iso8601(value) if isinstance(value, str | datetime) else None
    except (ValueError, TypeError, OverflowError):
        return False
    return moment is not None and 1 < moment.year < 9999  # noqa: PLR2004  # in any zone it is still a year


def is_redelivered(message: Message) -> bool:
    """Tell whether a message was out before: AMQP says so in the delivery, kombu's Redis transport (5.7) in the headers."""
    return bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered"))


def place_of(message: Message) -> Any:
    """Return what a message says of where it came from: the same for all messages of a queue on one connection."""
    info = message.delivery_info
    return info.get("consumer_tag") or (info.get("exchange"), info.get("routing_key"))


def queues_by_tag(task_consumer: Any) -> dict[str, str]:
    """Return the queues that are consumed by the tag of their consumer: kombu's ``Consumer._active_tags`` (5.7)."""
    return {tag: name for name, tag in getattr(task_consumer, "_active_tags", {}).items()}


def queue_of(message: Message, task_consumer: Any, *, cancelled: Mapping[str, str] | None = None) -> str:
    """Return the queue that a message was received from; ``cancelled`` has queues by tag that are not consumed any more.

    AMQP tells the consumer's tag; virtual transports tell exchange and routing key, which lead to the queue as in kombu's
    own ``_restore``.
    """
    info = message.delivery_info
    names = {**(cancelled or {}), **queues_by_tag(task_consumer)}
    if info.get("consumer_tag") in names:
        return str(names[info["consumer_tag"]])
    lookup = getattr(message.channel, "_lookup", None)
    found = lookup(info.get("exchange"), info.get("routing_key")) if lookup else ()
    return str(next(iter(found), None) or info.get("routing_key") or "")


def raw_parts(message: Message) -> dict[str, Any]:
    """Return body, content and headers of a message as `RawMessage` keeps them: the message, not its journey.

    kombu's ``Message`` (5.7) has decompressed the body already unless that failed; AMQP's own fields of the same
    message are left out, and ``user_id``, which the broker checks against whoever publishes.
    """
    headers = dict(message.headers) if isinstance(message.headers, Mapping) else {}
    if not message.errors:
        headers.pop("compression", None)
    properties = {name: value for name, value in dict(message.properties).items() if name not in _OF_THE_JOURNEY}
    body = message.body
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else _bytes(body)
    return {
        "body": base64.b64encode(content).decode(),
        "content_type": str(message.content_type or ""),
        "content_encoding": str(message.content_encoding or ""),
        "headers": json.loads(kombu_json.dumps(headers)),
        "properties": json.loads(kombu_json.dumps(properties)),
    }


def _bytes(body: Any) -> bytes:
    """Return what a broker gave for a body as bytes; a Redis item may hold any JSON there."""
    if body is None:
        return b""
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else json.dumps(body).encode()


def whole_headers(request: Context) -> dict[str, Any]:
    """Return all custom headers of a request.

    Where a tracer puts its own into a header named ``headers`` (celery/celery#4875: Datadog, Sentry of old), Celery (5.7) takes these
    for all there are, and a retry, which is sent with them, loses the rest.
    """
    custom = request._get_custom_headers(vars(request)) or {}  # noqa: SLF001  # see the docstring
    return {**custom, **(request.headers or {})}


def context_of(fields: Mapping[str, Any], embed: Mapping[str, Any] | None) -> Context:
    """Return the request of a message that makes none here: headers and the third part of the body, as ``Request`` does."""
    return Context({"delivery_info": {}, **fields, **(embed or {})})
