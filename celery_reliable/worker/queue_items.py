"""Save items of a Redis queue that are no messages at all: by kombu itself one ends the worker, and is lost.

kombu 5.7 pops an item, then parses it; what it cannot parse it has in no other place. Such an item is pushed to a list
of its own in the broker at once, ``<unacked key>.refused``, and becomes a dead letter from there: a store that is away, or
a worker that dies, loses nothing. Only the moment between the pop and the push is open, as it is for every message.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

from celery_reliable.payloads import RawMessage
from celery_reliable.worker.inspection import Refusal
from celery_reliable.worker.refusals import Case, Refusals

_SOME = 100  # items settled in one round
_EACH = 60  # rounds between two looks without a notice


class QueueItems:
    """Watch one consumer's channel for such items, and settle them."""

    def __init__(self, refusals: Refusals, *, on_item: Callable[[], None]) -> None:
        """Take whom to tell of an item; nothing is watched yet."""
        self._refusals = refusals
        self._on_item = on_item
        self._channel: Any = None
        self._wanted = threading.Event()
        self._rounds = 0

    def watch(self, consumer: Any) -> None:
        """Watch the channel of the present connection, on Redis."""
        channel = consumer.task_consumer.channel
        if consumer.connection.transport.driver_type != "redis" or channel is self._channel:
            return
        self._channel = channel
        self._wanted.set()
        replies: list[Any] = []
        channel.client.parse_response = _noting(channel.client.parse_response, replies=replies)
        channel.handlers["BRPOP"] = self._catching(channel.handlers["BRPOP"], channel, replies=replies)

    def _catching(self, read: Callable[..., Any], channel: Any, *, replies: list[Any]) -> Callable[..., Any]:
        def read_or_refuse(**options: Any) -> Any:
            replies.clear()
            try:
                return read(**options)
            except Exception as exc:
                problem = _problem(channel, replies[-1][1]) if replies and replies[-1] else ""
                if not problem:
                    raise
                self._set_aside(channel, *replies[-1], why=f"{problem} ({type(exc).__name__})")
                return True

        return read_or_refuse

    def _set_aside(self, channel: Any, source: Any, item: Any, *, why: str) -> None:
        queue = _text(source).rsplit(channel.sep, 1)[0]
        kept = {"id": uuid.uuid4().hex, "queue": queue, "item": base64.b64encode(_bytes(item)).decode(), "why": why}
        with channel.conn_or_acquire() as client:
            client.rpush(_list_of(channel), json.dumps(kept))
        self._wanted.set()
        self._on_item()

    def settle(self) -> None:
        """Bury what was set aside, by whomever: at the start, after each item, and once a minute."""
        self._rounds = (self._rounds + 1) % _EACH
        if self._channel is None or not (self._wanted.is_set() or self._rounds == 0):
            return
        self._wanted.clear()  # before the look: an item that comes meanwhile asks for another
        finished = False
        try:
            finished = self._settle_some()
        finally:
            if not finished:
                self._wanted.set()

    def _settle_some(self) -> bool:
        """Bury some; True when there are no more."""
        # kombu (5.7) adds the key prefix to the commands that it uses itself, and not to these.
        name = f"{self._channel.global_keyprefix or ''}{_list_of(self._channel)}"
        with self._channel.conn_or_acquire() as client:
            kept = client.lrange(name, 0, _SOME - 1)
            for raw in kept:
                self._refusals.settle(_case(raw))
                client.lrem(name, 1, raw)
        return len(kept) < _SOME


def _noting(parse: Callable[..., Any], *, replies: list[Any]) -> Callable[..., Any]:
    def parse_and_note(connection: Any, command: Any, **options: Any) -> Any:
        reply = parse(connection, command, **options)
        if command == "BRPOP":
            replies[:] = [reply]
        return reply

    return parse_and_note


def _problem(channel: Any, item: Any) -> str:
    """Say why kombu cannot make a message of an item; "" when it can, and the error was another one."""
    try:
        message = channel.Message(json.loads(_text(item)), channel=channel)
        hash(message.delivery_tag)
        _ = message.delivery_info["exchange"], message.delivery_info["routing_key"]
        json.dumps(message._raw)  # noqa: SLF001  # what is kept of it while it is out (5.7)
    except Exception as exc:  # noqa: BLE001  # whatever the item provokes, it is what kombu met
        return f"not a message: {type(exc).__name__}: {exc}"[:300]
    return ""


def _case(raw: bytes) -> Case:
    kept = json.loads(raw)
    message = RawMessage(queue=kept["queue"], body=kept["item"], item=True)
    return Case(message, Refusal("undecodable", kept["why"]), kept["id"])


def _list_of(channel: Any) -> str:
    return f"{channel.unacked_key}.refused"


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
