"""See and mend what kombu's Redis transport keeps: the messages that workers hold, and the ends of the queues.

kombu 5.7 pops a message and then writes it to a hash (``unacked``) and a sorted set by time (``unacked_index``); a
message whose score is older than the visibility timeout is put back by any worker. The names are those of the channel,
so another key prefix or another set of keys is honoured. Works on a connection of its own, with a timeout, from a
thread of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.keys import HEADER, TOKEN, owner_of

if TYPE_CHECKING:
    from celery_reliable.payloads import Envelope

_TIMEOUT = 5.0
_CHUNK = 1000
NEAR = 200  # messages at the near end of a list that are looked at

_TASK_ID = re.compile(rb'"id": *"([^"]+)"')

# Not only ever upwards: a holder whose wall clock is ahead has written a score of the future, which would stand still.
_EXTEND = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local missing = {}
for i = 1, #ARGV do
  if redis.call('ZADD', KEYS[1], 'XX', 'CH', now, ARGV[i]) == 0 and not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    missing[#missing + 1] = ARGV[i]
  end
end
return missing
"""

# By a script: a client that speaks RESP3 gets floats, which do not compare with what Redis says of a score later.
_SCORES = "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')"

# A held message goes back only if its score is still the one that was watched: its keeper may have come back.
_RESTORE = """
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not score or score ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('RPUSH', KEYS[3], ARGV[3])
return 1
"""


Held = tuple[dict[str, Any], str, str]
"""A message, its exchange and its routing key, as kombu keeps them."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A held message whose keeper is gone, with the score it was last seen with."""

    tag: str
    score: str
    held: Held

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers of the message."""
        return self.held[0].get("headers") or {}


class RedisBroker:
    """One consumer's view of its Redis broker. Made again for each connection."""

    def __init__(self, channel: Any) -> None:
        """Take the consuming channel; connects at the first call."""
        self._channel = channel
        self._client = _client(channel)
        self._extend = self._client.register_script(_EXTEND)
        self._restore = self._client.register_script(_RESTORE)
        self._scores = self._client.register_script(_SCORES)

    def is_for(self, channel: Any) -> bool:
        """Whether this is the view of that channel."""
        return self._channel is channel

    def held_here(self) -> list[str]:
        """Return the tags of all messages that this worker holds: running, prefetched, waiting, with an ETA."""
        return internals.held_tags(self._channel.qos)

    def extend(self, tags: Sequence[str]) -> list[str]:
        """Make messages as young as if they had just been received; one round trip for 1000. Returns those not there."""
        missing: list[bytes] = []
        for start in range(0, len(tags), _CHUNK):
            chunk = tags[start : start + _CHUNK]
            missing += self._extend(keys=[self._key("unacked_index_key")], args=list(chunk))
        return [tag.decode() for tag in missing]

    def allow_for_skew(self, seconds: float) -> None:
        """Let kombu's own sweep, which compares scores with this process's wall clock, take nothing for older than it is.

        ``seconds`` is how far that clock is ahead of the server's.
        """
        self._channel.qos.visibility_timeout = self._channel.visibility_timeout + max(seconds, 0.0)

    def message_held(self, tag: str) -> Any:
        """Return a message that this worker holds, None when it has been acked meanwhile."""
        qos = self._channel.qos
        return None if tag in qos._dirty else qos._delivered.get(tag)  # noqa: SLF001  # no public name (5.7)

    def held_anywhere(self) -> dict[str, str]:
        """Return the tags of all held messages of the whole fleet, with their scores as Redis writes them."""
        texts = [one.decode() for one in self._scores(keys=[self._key("unacked_index_key")])]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def ours(self, tags: Sequence[str]) -> dict[str, Held]:
        """Return those of the held messages that carry our header, with exchange and routing key."""
        chunks = [tags[start : start + _CHUNK] for start in range(0, len(tags), _CHUNK)]
        raws = [raw for chunk in chunks for raw in self._client.hmget(self._key("unacked_key"), list(chunk))]
        parsed = {tag: json.loads(raw) for tag, raw in zip(tags, raws, strict=True) if raw}
        return {tag: tuple(one) for tag, one in parsed.items() if HEADER in (one[0].get("headers") or {})}

    def marked(self, owners: Collection[str]) -> Iterator[tuple[str, Held]]:
        """Yield the held messages that one of these owners received last, with exchange and routing key."""
        wanted = [owner.encode() for owner in owners]
        for tag, raw in self._client.hscan_iter(self._key("unacked_key"), count=_CHUNK):
            if not any(owner in raw for owner in wanted):
                continue
            message, exchange, routing_key = json.loads(raw)
            if owner_of(str(message["properties"].get(TOKEN))) in owners:
                yield tag.decode(), (message, exchange, routing_key)

    def restore(self, silent: Sequence[Silent]) -> list[Silent]:
        """Put held messages back to the near ends of their queues, in this order, if their scores have not moved since.

        Returns those that went back. One round trip: each one would wait for the interpreter, which a worker that
        receives thousands of messages rarely gives away.
        """
        pushed: list[Silent] = []
        with self._client.pipeline(transaction=False) as together:
            for one in silent:
                for keys, text in self._places(one):
                    self._restore(keys=keys, args=[one.tag, one.score, text], client=together)
                    pushed.append(one)
            answers = together.execute()
        done = {one.tag: one for one, answer in zip(pushed, answers, strict=True) if answer}
        return list(done.values())

    def _places(self, silent: Silent) -> Iterator[tuple[list[str], str]]:
        message, exchange, routing_key = silent.held
        message.setdefault("headers", {})["redelivered"] = True
        message["properties"]["delivery_info"]["redelivered"] = True
        names = [self._key("unacked_key"), self._key("unacked_index_key")]
        for name in self._channel._lookup(exchange, routing_key):  # noqa: SLF001  # as kombu's own restore (5.7)
            yield [*names, self._prefix + self._list_of(name, message)], json.dumps(message)

    def task_ids_held(self) -> set[str]:
        """Return the task ids of all held messages.

        And perhaps more, found in other headers: not parsed, since a worker may hold ten thousand of them.
        """
        found: set[bytes] = set()
        for _, raw in self._client.hscan_iter(self._key("unacked_key"), count=_CHUNK):
            found.update(_TASK_ID.findall(raw))
        return {one.decode() for one in found}

    def oldest_stamp(self, queue: str, priority: int) -> int | None:
        """Return the submit stamp (microseconds) of the oldest message near the end of a queue from which is received.

        None for an empty list; 0 when a message there has no stamp, so that nothing can be told.
        """
        pri = self._channel._q_for_pri(queue, self._reversed(priority))  # noqa: SLF001  # no public name (5.7)
        raws = self._client.lrange(self._prefix + pri, -NEAR, -1)
        if not raws:
            return None
        headers = (json.loads(raw).get("headers") or {} for raw in raws)
        return min(int((one.get(HEADER) or {}).get("s") or 0) for one in headers)

    def _list_of(self, queue: str, message: Mapping[str, Any]) -> str:
        priority = self._channel._get_message_priority(message, reverse=False)  # noqa: SLF001  # as kombu's own (5.7)
        return str(self._channel._q_for_pri(queue, priority))  # noqa: SLF001

    def _reversed(self, priority: int) -> int:
        return self._channel._get_message_priority({"properties": {"priority": priority}}, reverse=False)  # type: ignore[no-any-return]  # noqa: SLF001

    @property
    def _prefix(self) -> str:
        return str(self._channel.global_keyprefix or "")

    def _key(self, name: str) -> str:
        return self._prefix + str(getattr(self._channel, name))

    def close(self) -> None:
        """Close the connection."""
        self._client.connection_pool.disconnect()


def _client(channel: Any) -> Any:
    from redis import ConnectionPool, Redis  # noqa: PLC0415  # the driver is imported where it is used
    from redis.sentinel import SentinelConnectionPool  # noqa: PLC0415

    pool = channel.pool
    if isinstance(pool, SentinelConnectionPool):
        return Redis(connection_pool=pool)
    options = {**pool.connection_kwargs, "socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    return Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))


def address_of(envelope: Envelope, *, default_queue: str) -> tuple[str, int]:
    """Return queue and priority that an envelope is published to."""
    options = envelope.options
    queue = options.get("queue") or options.get("routing_key") or default_queue
    return str(queue), int(options.get("priority") or 0)


def silent(seen: Iterable[tuple[str, tuple[str, float]]], *, now: float, after: float) -> list[str]:
    """Return the tags whose score has not moved for ``after`` seconds of the watcher's own clock."""
    return [tag for tag, (_, since) in seen if now - since >= after]


def away() -> tuple[type[Exception], ...]:
    """Return what is raised while broker or store are away."""
    return (StoreError, *internals.away())
