"""Give messages back to the near end of their queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kombu.transport.virtual import QoS as VirtualQoS
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from kombu.message import Message

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


def held_tags(qos: Any) -> list[str]:
    """Return the tags of all messages that a virtual channel holds: ``_delivered`` without ``_dirty`` (kombu 5.7)."""
    while True:
        try:
            return [tag for tag in list(qos._delivered) if tag not in qos._dirty]  # noqa: SLF001
        except RuntimeError:  # changed meanwhile
            continue


def give_back_left_over(old: Any, new: Any, *, but: Collection[str]) -> int:
    """Give back, through a new channel, what an old one held, except for the tags in ``but``. Returns how many."""
    left = [tag for tag in held_tags(old) if tag not in but]
    for tag in left:
        new.restore_by_tag(tag, leftmost=False)
        VirtualQoS.ack(old, tag)
    return len(left)


def keep_late_arrivals_near(channel: Any) -> None:
    """Give back, at the near end, what a BRPOP still brings of a queue whose consumer was cancelled meanwhile.

    kombu (5.7, ``Transport._reject_inbound_message``) puts it behind the whole backlog.
    """
    transport = channel.connection
    if not hasattr(transport, "_reject_inbound_message"):
        return

    def give_back_late(raw: Any) -> None:
        message = channel.Message(raw, channel=channel)
        channel.qos.append(message, message.delivery_tag)
        give_back(message)

    transport._reject_inbound_message = give_back_late  # noqa: SLF001
