"""Ask the broker, on a connection of its own with timeouts, whether it answers and what waits.

The consumer's own connection tells nothing while its loop is blocked in it, and a half-open one never tells. Each look is
a round trip that ends within some seconds, whatever the network does; one that fails is answered by None.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

_TIMEOUT = 3.0
_NEAR = 5  # messages at the near end of a list that are looked at: a retry among them says nothing about the queue
_HEADER = "reliable"  # as in `keys`, which is above this module


@dataclass(frozen=True, slots=True)
class Load:
    """How many messages wait in a queue, and the submit stamp of the oldest (microseconds; 0: it cannot be told)."""

    depth: int
    oldest: int = 0


class Sight(Protocol):
    """A view of the broker."""

    def load(self, queues: Sequence[str]) -> Load | None:
        """Return what waits in queues together, or None when the broker does not answer."""
        ...

    def look(self, queues: Sequence[str]) -> int | None:
        """Return how many messages wait in the queues, or None when the broker does not answer."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def sight_for(consumer: Any) -> Sight | None:
    """Return a view of the broker that a consumer has just connected to; None for a kind of broker that has none."""
    driver = consumer.connection.transport.driver_type
    if driver == "redis":
        return RedisSight(consumer.task_consumer.channel)
    return AmqpSight(consumer.connection) if driver == "amqp" else None


def sight_on(connection: Any) -> Sight | None:
    """Return a view of the broker for who has no consumer. Raises what connecting raises."""
    driver = connection.transport.driver_type
    if driver == "redis":
        return RedisSight(connection.default_channel)
    return AmqpSight(connection) if driver == "amqp" else None


class RedisSight:
    """Redis: the lengths of the lists, in one round trip."""

    def __init__(self, channel: Any) -> None:
        """Take the consuming channel for its address and names; connects at the first look."""
        self._client = client_of(channel.pool)
        self._prefix = channel.global_keyprefix or ""
        self._list_of = channel._q_for_pri  # noqa: SLF001  # no public name (5.7)
        self._steps = channel.priority_steps

    def look(self, queues: Sequence[str]) -> int | None:
        """See `Sight.look`. One connection that was lost meanwhile is replaced."""
        from redis.exceptions import RedisError  # noqa: PLC0415  # the driver is imported where it is used

        try:
            with self._client.pipeline(transaction=False) as lengths:
                lengths.ping()
                for queue in queues:
                    for step in self._steps:
                        lengths.llen(self._prefix + self._list_of(queue, step))
                return sum(map(int, lengths.execute()[1:]))
        except (OSError, RedisError):
            return None

    def load(self, queues: Sequence[str]) -> Load | None:
        """See `Sight.load`. All priorities, in one round trip; the oldest lie at the end from which is received."""
        from redis.exceptions import RedisError  # noqa: PLC0415  # the driver is imported where it is used

        try:
            with self._client.pipeline(transaction=False) as both:
                for queue, step in product(queues, self._steps):
                    name = self._prefix + self._list_of(queue, step)
                    both.llen(name).lrange(name, -_NEAR, -1)
                answers = both.execute()
        except (OSError, RedisError):
            return None
        stamps = [stamp for raws in answers[1::2] for raw in raws if (stamp := _stamp(raw))]
        return Load(sum(map(int, answers[::2])), min(stamps, default=0))

    def close(self) -> None:
        """See `Sight.close`."""
        self._client.connection_pool.disconnect()


class AmqpSight:
    """RabbitMQ: a passive declaration of each queue tells its length."""

    def __init__(self, connection: Any) -> None:
        """Take the consumer's connection for its address; connects at the first look."""
        self._connection = connection.clone(heartbeat=0, connect_timeout=_TIMEOUT)
        self._channel: Any = None

    def look(self, queues: Sequence[str]) -> int | None:
        """See `Sight.look`. A queue that does not exist has no messages."""
        away = (OSError, *self._connection.connection_errors)
        try:
            return sum(self._length(queue) for queue in queues) if queues else self._ping()
        except away:
            self.close()
            return None

    def load(self, queues: Sequence[str]) -> Load | None:
        """See `Sight.load`. RabbitMQ shows the length alone."""
        depth = self.look(queues)
        return None if depth is None else Load(depth)

    def _length(self, queue: str) -> int:
        try:
            return int(self._open().queue_declare(queue, passive=True).message_count)
        except self._connection.channel_errors:
            self._channel = None
            return 0

    def _ping(self) -> int:
        self._open().flow(True)  # noqa: FBT003  # the protocol's own; a round trip that changes nothing
        return 0

    def _open(self) -> Any:
        if self._channel is None:
            self._connection.connect()
            # Not SO_RCVTIMEO, which py-amqp's read_timeout sets (5.3): green sockets do not know it.
            self._connection.connection.sock.settimeout(_TIMEOUT)
            self._channel = self._connection.channel()
        return self._channel

    def close(self) -> None:
        """See `Sight.close`. By force: an orderly goodbye waits for an answer."""
        self._channel = None
        with suppress(Exception):  # of a connection that is given up, whatever it says
            self._connection.collect(socket_timeout=_TIMEOUT)


def _stamp(raw: bytes) -> int:
    """Return the submit stamp in a message; 0 for one that has none, or is none, or waits until later on purpose."""
    try:
        headers = json.loads(raw)["headers"]
        return 0 if headers.get("eta") else int(headers[_HEADER]["s"])
    except (ValueError, KeyError, TypeError):
        return 0


def client_of(pool: Any) -> Any:
    """Return a client of the same server whose calls end in time; one retry, for a connection that was closed."""
    from redis import ConnectionPool, Redis  # noqa: PLC0415  # the driver is imported where it is used
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.exceptions import ConnectionError as Lost  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415
    from redis.sentinel import SentinelConnectionPool  # noqa: PLC0415

    options = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    options |= {"socket_timeout": _TIMEOUT, "retry": Retry(NoBackoff(), 1, supported_errors=(Lost,))}
    if "path" not in options:  # a Unix socket connects at once or never
        options["socket_connect_timeout"] = _TIMEOUT
    options["connection_class"] = pool.connection_class
    if isinstance(pool, SentinelConnectionPool):
        options["is_master"] = pool.is_master
        made: Any = SentinelConnectionPool  # untyped
        return Redis(connection_pool=made(pool.service_name, pool.sentinel_manager, **options))
    return Redis(connection_pool=ConnectionPool(**options))
