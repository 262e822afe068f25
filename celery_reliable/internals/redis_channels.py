"""Have kombu's Redis channels outlive a lost connection, and do less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from celery.worker import state
from kombu.transport.redis import _socket_readable


class _InTurn(tuple[int, ...]):  # noqa: SLOT001  # a tuple has no room for named slots
    """Steps of priority that are gone through in an order of their own, and are found by their number as ever."""

    order: Callable[[Sequence[int]], Sequence[int]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self[:]))


def take_turns(channel: Any, turns: Any) -> None:
    """Let ``turns`` say in which order a Redis channel looks into its lists.

    ``_brpop_start`` (kombu 5.7) asks ``_queue_cycle`` for the order of queues, and goes through ``priority_steps`` around it;
    ``_brpop_read`` tells the cycle from where a message came. The number of a step is found by index, not by this order.
    """
    steps = _InTurn(channel.priority_steps[:])
    steps.order = turns.steps
    turns.update(channel.active_queues)
    channel.priority_steps, channel._queue_cycle = steps, turns  # noqa: SLF001


def is_connected(channel: Any) -> bool:
    """Tell whether a virtual channel still belongs to a connection: kombu (5.7) takes away both references."""
    return getattr(getattr(channel, "connection", None), "client", None) is not None


def outlive_connection(channel: Any, *, successor: Callable[[], Any]) -> None:
    """Let a Redis channel ack and give back messages after its connection was closed.

    kombu (5.7) makes new clients from `_get_pool`, which asks the connection for its address, and finds a message's
    queue through the connection's state. Of a closed one it gets an AttributeError, which ends the worker's main process
    or, in `_do_restore_message`, drops the message. Instead: the pool of the living channel, and the bindings that
    ``successor()``, the channel of the next connection, knows.
    """
    make_pool, look_up = channel._get_pool, channel._lookup  # noqa: SLF001
    pools = {False: channel.pool}

    def get_pool(asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  # kombu's signature
        if is_connected(channel):
            pools[asynchronous] = make_pool(asynchronous)
        return pools[asynchronous]

    def lookup(exchange: str, routing_key: str, default: str | None = None) -> Any:
        if is_connected(channel):
            return look_up(exchange, routing_key, default)
        heir = successor()
        if not is_connected(heir):
            raise ConnectionError("no connection to the broker; the message stays with it until there is one")
        return heir._lookup(exchange, routing_key, default)  # noqa: SLF001

    channel._get_pool, channel._lookup = get_pool, lookup  # noqa: SLF001


def reuse_client(channel: Any, *, prepare: Callable[[Any], None] | None = None) -> None:
    """Let a Redis channel keep one client of its pool; other channels are left as they are.

    kombu (5.7, ``conn_or_acquire``) makes a `redis.Redis` for each command, twice a message in a worker: a sixth of what
    its main process does. A client holds no connection of its own, only the pool, and may be shared by threads.
    ``prepare`` is called with each that is made.
    """
    make = getattr(channel, "_create_client", None)
    if make is None or "_create_client" in vars(channel):
        return
    kept: list[Any] = []

    def create_client(asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  # kombu's signature
        if asynchronous:
            return make(asynchronous=True)
        if not kept or kept[0].connection_pool is not channel.pool:
            kept[:] = [make()]
            if prepare is not None:
                prepare(kept[0])
        return kept[0]

    channel._create_client = create_client  # noqa: SLF001


def restore_only_at_the_end(qos: Any) -> None:
    """Take ``restore_unacked_once`` (kombu 5.7) of a Redis channel out of the way of a lost connection.

    It is called at each close of the channel, also of one whose server is away or hangs, and gives back what still
    runs. Instead: nothing while the worker goes on; all when it ends, without an error.
    """
    restore = qos.restore_unacked_once

    def restore_unacked_once(stderr: Any = None) -> None:
        qos._on_collect.cancel()  # noqa: SLF001
        if state.should_stop is None and state.should_terminate is None:
            return
        try:
            restore(stderr)
        except qos.channel.connection_errors:
            return  # the sweep of silent messages brings back what could not be given back

    qos.restore_unacked_once = restore_unacked_once


def connect_without_sweep(consumer: Any) -> None:
    """Let a worker's consumer take no message from another worker when it connects to Redis.

    kombu (5.7, ``MultiChannelPoller.on_poll_init``) sweeps for messages whose score is old by the worker's own clock before any
    step of the consumer has begun. Five seconds later, or in green pools after an empty poll, it does so again.
    """
    connect = consumer.connection_for_read

    def connection_for_read(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        cycle = connection.transport.cycle
        cycle.on_poll_init = lambda poller: setattr(cycle, "poller", poller)
        return connection

    consumer.connection_for_read = connection_for_read


def hold_sweep(channel: Any) -> None:
    """Take no message from another worker until ``channel.qos.visibility_timeout`` is set (kombu 5.7)."""
    channel.qos.visibility_timeout = inf


def mark_deliveries(qos: Any, *, name: str, mark: Callable[[], str]) -> None:
    """Write ``mark()`` into the properties of each message that a Redis channel notes as out.

    ``QoS.append`` (kombu 5.7) stores ``message._raw`` among the unacked, so that whoever looks there sees whose it is;
    its properties are those of the message.
    """
    append = qos.append

    def marked(message: Any, delivery_tag: str) -> None:
        message._raw["properties"][name] = mark()  # noqa: SLF001
        append(message, delivery_tag)

    qos.append = marked


def return_late_replies(channel: Any) -> None:
    """Put back at once the message that answers a BRPOP which was sent before the prefetch count was used up.

    When a message that waited (ETA, hold) starts to run, the prefetch count falls and the BRPOP that it had allowed is
    still pending. kombu (5.7, ``MultiChannelPoller._pause_brpop``) leaves its answer in the socket until there is room:
    a message in no queue and not among the unacked, for as long as a task runs, and lost if the worker is killed.
    """

    def put_back(asked: Any, _fileno: int) -> None:
        connection = asked.client.connection
        if not _socket_readable(connection._sock):  # noqa: SLF001
            return  # no answer yet: it goes on being polled
        try:
            reply = asked.client.parse_response(connection, "BRPOP")
        except asked.connection_errors:
            connection.disconnect()
            raise
        finally:
            asked._in_poll = None  # noqa: SLF001
        if reply:
            with asked.conn_or_acquire() as client:
                client.rpush(*reply)

    channel.connection.cycle._pause_brpop = put_back  # noqa: SLF001
