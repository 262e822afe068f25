"""Redis channels that outlive a lost connection, and do less."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import redis
from kombu import Connection
from kombu.transport import virtual
from kombu.transport.redis import Channel, MultiChannelPoller

from celery_reliable import internals
from tests.unit.internals.channels import PooledChannel


def test_channel_makes_its_clients_of_its_pool() -> None:
    """So that a closed channel with a pool can still ack: ``outlive_connection``."""
    assert "self.pool" in inspect.getsource(Channel._create_client)
    assert "_get_pool()" in inspect.getsource(Channel.pool.fget)
    assert "self._lookup(" in inspect.getsource(Channel._do_restore_message)


def test_a_redis_channel_makes_a_client_for_each_command_unless_told_to_keep_it() -> None:
    """``Channel.conn_or_acquire`` and ``_create_client``; a new pool gets a new client."""
    channel: Any = PooledChannel()

    def client() -> Any:
        with channel.conn_or_acquire() as found:
            return found

    assert client() is not client()
    internals.reuse_client(channel)
    first = client()
    assert first is client()
    channel.pool = redis.ConnectionPool()
    assert client() is not first
    assert client().connection_pool is channel.pool
    assert channel._create_client(asynchronous=True).connection_pool is channel.async_pool


def test_closing_a_channel_restores_what_it_holds() -> None:
    """By the method that ``restore_only_at_the_end`` replaces on the instance."""
    assert "self._qos.restore_unacked_once()" in inspect.getsource(virtual.Channel.close)
    qos = virtual.QoS(None)
    qos._on_collect.cancel()
    assert {"_delivered", "_dirty", "_on_collect"} <= set(vars(qos))


def test_closed_connection_leaves_its_channels_without_client() -> None:
    """``is_connected``: the transport of a closed kombu connection has no client, a closed channel no transport."""
    with Connection("memory://") as connection:
        channel = connection.channel()
        assert internals.is_connected(channel)
    assert not internals.is_connected(channel)
    assert not internals.is_connected(None)


def test_answer_to_a_late_question_is_paused_by_one_method() -> None:
    """Which ``return_late_replies`` replaces on the instance."""
    for method in (MultiChannelPoller._update_brpop_polling, MultiChannelPoller.on_readable):
        assert "self._pause_brpop(" in inspect.getsource(method)


def test_a_channel_looks_in_the_order_of_its_turns() -> None:
    """``_brpop_start`` asks the cycle, then goes through the steps; a step is found by its number whatever their order."""
    source = inspect.getsource(Channel._brpop_start)
    assert "self._queue_cycle.consume(len(self.active_queues))" in source
    assert "for pri in self.priority_steps\n                for queue in queues]" in source
    assert "self._queue_cycle.rotate(dest)" in inspect.getsource(Channel._brpop_read)

    class Turning:
        consumed: Any = ()

        def update(self, queues: Any) -> None:
            self.consumed = list(queues)

        def steps(self, steps: Any) -> list[int]:
            return list(reversed(steps))

    turning = Turning()
    channel: Any = SimpleNamespace(priority_steps=[0, 3, 6, 9], active_queues={"q"}, _queue_cycle=None)
    for _ in range(2):  # as a reconnect may do: the order is of the steps as they were
        internals.take_turns(channel, turning)
        assert (channel._queue_cycle, turning.consumed) == (turning, ["q"])
        assert list(channel.priority_steps) == [9, 6, 3, 0]
        assert [Channel.priority(channel, number) for number in (0, 2, 3, 7, 9)] == [0, 0, 3, 6, 9]
