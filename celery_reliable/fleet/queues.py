"""Ask the broker how much waits in each queue, and for how long, without taking anything out of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Protocol

from celery_reliable.keys import HEADER
from celery_reliable.runtime import consumed_driver
from celery_reliable.sight import client_of

if TYPE_CHECKING:
    from celery import Celery

_PATIENCE: Final = 5.0
_NEAR: Final = 20
"""Messages at the end from which is received: those that came back lie there, before the oldest."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue: how many messages wait in it, the age of the oldest in seconds, and how many consume it.

    None where the broker does not tell. The age counts from the submission, or from when the message was due (a retry, an
    ETA); one that came back from a worker does not count, it is next.
    """

    name: str
    waiting: int | None
    oldest: float | None = None
    consumers: int | None = None


class QueueSight(Protocol):
    """A view of a broker. Raises what the broker's driver raises when it is away."""

    def look(self, names: Sequence[str], *, now: float) -> list[QueueState]:
        """Return the state of each queue; ``now`` is unix seconds by the store's clock."""
        ...

    def held(self) -> int | None:
        """Return how many messages all workers hold: running, prefetched, with an ETA. None: the broker does not tell."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def sight_of(app: Celery) -> QueueSight:
    """Return a view of the broker from which an app's workers receive. Connects, and does not try for long."""
    connection = app.connection_for_read()
    connection.ensure_connection(max_retries=1, timeout=_PATIENCE)
    kinds: dict[str, type[QueueSight]] = {"redis": RedisQueues, "amqp": AmqpQueues}
    return kinds.get(consumed_driver(app), VirtualQueues)(connection)  # type: ignore[call-arg]  # a protocol has no __init__


class RedisQueues:
    """Redis: a queue is one list for each step of priority."""

    def __init__(self, connection: Any) -> None:
        """Take a connection of kombu's, for its names and its address."""
        self._connection = connection
        channel = connection.default_channel
        self._client = client_of(channel.pool)
        self._prefix = channel.global_keyprefix or ""
        self._list_of, self._steps = channel._q_for_pri, channel.priority_steps  # noqa: SLF001  # no public name (5.7)
        self._unacked = self._prefix + channel.unacked_key

    def look(self, names: Sequence[str], *, now: float) -> list[QueueState]:
        """See `QueueSight.look`: two round trips."""
        lists = [(name, self._prefix + self._list_of(name, step)) for name in names for step in self._steps]
        lengths = self._each("llen", [(key,) for _, key in lists])
        filled = [one for one, length in zip(lists, lengths, strict=True) if length]
        ends = self._each("lrange", [(key, -_NEAR, -1) for _, key in filled])
        waiting = dict.fromkeys(names, 0)
        ages: dict[str, list[float]] = {}
        for (name, _), length in zip(lists, lengths, strict=True):
            waiting[name] += length
        for (name, _), messages in zip(filled, ends, strict=True):
            ages.setdefault(name, []).extend(_ages(messages, now=now))
        return [QueueState(name, waiting[name], max(ages.get(name, ()), default=None)) for name in names]

    def _each(self, command: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                getattr(pipeline, command)(*call)
            return list(pipeline.execute())

    def held(self) -> int | None:
        """See `QueueSight.held`."""
        return int(self._client.hlen(self._unacked))

    def close(self) -> None:
        """See `QueueSight.close`."""
        self._client.connection_pool.disconnect()
        self._connection.release()


class AmqpQueues:
    """RabbitMQ: a passive declaration tells length and consumers. It shows no message; for ages see `flow.ages`."""

    def __init__(self, connection: Any) -> None:
        """Take a connection of kombu's."""
        self._connection = connection

    def look(self, names: Sequence[str], *, now: float) -> list[QueueState]:
        """See `QueueSight.look`. A queue that does not exist is empty."""
        return [self._state(name) for name in names]

    def _state(self, name: str) -> QueueState:
        channel = self._connection.channel()  # a refusal closes it
        try:
            found = channel.queue_declare(name, passive=True)
            channel.close()
        except self._connection.channel_errors:
            return QueueState(name, 0, consumers=0)
        return QueueState(name, int(found.message_count), consumers=int(found.consumer_count))

    def held(self) -> int | None:
        """See `QueueSight.held`."""
        return None

    def close(self) -> None:
        """See `QueueSight.close`."""
        self._connection.release()


class VirtualQueues:
    """Any other transport of kombu's: the length, as far as it knows."""

    def __init__(self, connection: Any) -> None:
        """Take a connection of kombu's."""
        self._connection = connection

    def look(self, names: Sequence[str], *, now: float) -> list[QueueState]:
        """See `QueueSight.look`."""
        size = getattr(self._connection.default_channel, "_size", None)
        return [QueueState(name, int(size(name)) if size else None) for name in names]

    def held(self) -> int | None:
        """See `QueueSight.held`."""
        return None

    def close(self) -> None:
        """See `QueueSight.close`."""
        self._connection.release()


def _ages(messages: Iterable[bytes], *, now: float) -> Iterable[float]:
    """Return how long messages have been due; what is not ours, came back, or is not due has no age."""
    for raw in messages:
        try:
            headers = json.loads(raw).get("headers") or {}
            since = max(int(headers[HEADER]["s"]) / 1e6, _due(headers.get("eta")))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if since <= now and not headers.get("redelivered"):
            yield now - since


def _due(eta: str | None) -> float:
    if not eta:
        return 0.0
    found = datetime.fromisoformat(eta)
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
