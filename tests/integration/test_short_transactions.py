"""The short transactions of a Redis broker: quick, complete, and repeated when a connection breaks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu import Connection
from redis.client import Pipeline
from redis.exceptions import OutOfMemoryError

from celery_reliable import internals
from celery_reliable.stores.redis_line import Line, pack_command
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.worker import short_transactions
from celery_reliable.worker.short_transactions import MOST_OWED, ShortTransactions, shorten
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

DEADLINE = 10.0


@contextlib.contextmanager
def clients(url: str) -> Iterator[tuple[Any, Any, ShortTransactions]]:
    """Yield a client whose transactions are short, one to look with, and the transactions."""
    with contextlib.ExitStack() as stack:
        client, eye = (stack.enter_context(contextlib.closing(redis.Redis.from_url(url))) for _ in range(2))
        yield client, eye, stack.enter_context(contextlib.closing(shorten(client)))


def settled(transactions: ShortTransactions, eye: Any) -> bool:
    """Settle, and tell whether everything is acknowledged."""
    transactions.settle()
    return not eye.exists("index", "unacked")


def note(client: Any, tag: str) -> Any:
    """Do what kombu does for a message that was received."""
    return client.pipeline().zadd("index", {tag: 1234567890.1234567}).hset("unacked", tag, "message").execute()


def ack(client: Any, tag: str) -> Any:
    """Do what kombu does for one that is acknowledged."""
    return client.pipeline().zrem("index", tag).hdel("unacked", tag).execute()


def cut(eye: Any) -> None:
    """Let the server close every connection but one."""
    eye.client_kill_filter(_type="normal", skipme=True)


def test_what_is_noted_is_there_when_the_call_returns(redis_url: str) -> None:
    """With the score as it was given, and the answers of redis-py."""
    with clients(redis_url) as (client, eye, _):
        assert note(client, "a") == [1, 1]
        assert eye.zscore("index", "a") == 1234567890.1234567
        assert note(client, "a") == [0, 0]


def test_acks_arrive_though_nobody_waits_for_their_answers(redis_url: str) -> None:
    """From time to time those of many are read."""
    with clients(redis_url) as (client, eye, transactions):
        for number in range(2 * MOST_OWED):
            note(client, str(number))
        for number in range(2 * MOST_OWED):
            ack(client, str(number))
            assert transactions.owed <= MOST_OWED
        wait_until(lambda: not eye.exists("index", "unacked"), DEADLINE, "every ack")


def test_an_ack_on_a_connection_that_is_gone_is_sent_again_by_the_next_transaction(redis_url: str) -> None:
    """As is every one before it whose answer was not read."""
    with clients(redis_url) as (client, eye, _):
        for tag in "abc":
            note(client, tag)
        cut(eye)
        for tag in "ab":  # the kernel takes what nobody will read
            with contextlib.suppress(OSError):
                ack(client, tag)
        assert note(client, "d") == [1, 1]
        assert eye.hkeys("unacked") == [b"c", b"d"]


def test_an_ack_that_nothing_follows_is_sent_again_when_it_is_settled(redis_url: str) -> None:
    """An idle worker's last acks are not left to chance."""
    with clients(redis_url) as (client, eye, transactions):
        note(client, "a")
        cut(eye)
        ack(client, "a")
        wait_until(lambda: settled(transactions, eye), DEADLINE, "the ack")


def test_settling_does_not_wait_for_a_server_that_does_not_answer(private_redis: servers.RedisServer) -> None:
    """It runs in the worker's loop; the ack arrives when the server goes on."""
    with (
        FaultProxy(private_redis.port) as proxy,
        clients(f"redis://127.0.0.1:{proxy.port}/0") as (client, _, transactions),
    ):
        note(client, "a")
        proxy.blackhole()
        ack(client, "a")
        transactions.settle()
        proxy.heal()
        with contextlib.closing(redis.Redis.from_url(private_redis.url)) as eye:
            wait_until(lambda: settled(transactions, eye), DEADLINE, "the ack")


def test_an_ack_that_a_silent_server_owes_is_given_up(private_redis: servers.RedisServer) -> None:
    """Later the message may be another worker's, under the same tag: a late ack would take it out of its hands."""
    with FaultProxy(private_redis.port) as proxy, clients(f"redis://127.0.0.1:{proxy.port}/0") as (client, _, acks):
        note(client, "a")
        proxy.blackhole()
        ack(client, "a")
        wait_until(lambda: (acks.settle(), acks.owed == 0)[1], DEADLINE, "the end of patience")  # type: ignore[func-returns-value]
        proxy.reset()
        proxy.heal()
        assert note(client, "b") == [1, 1]
        with contextlib.closing(redis.Redis.from_url(private_redis.url)) as eye:
            assert eye.hkeys("unacked") == [b"a", b"b"]


def test_a_full_server_refuses_a_note_with_the_error_of_redis_py_and_takes_acks(
    private_redis: servers.RedisServer,
) -> None:
    """Whoever catches it knows it by its class."""
    with clients(private_redis.url) as (client, eye, transactions):
        note(client, "a")
        eye.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            note(client, "b")
        ack(client, "a")
        wait_until(lambda: settled(transactions, eye), DEADLINE, "the ack")


def test_an_ack_that_the_server_refuses_is_sent_again(redis_url: str) -> None:
    """Its error is redis-py's, and comes with the next transaction."""
    with clients(redis_url) as (client, eye, transactions):
        note(client, "a")
        eye.delete("index")
        eye.set("index", "no sorted set")
        ack(client, "a")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            wait_until(lambda: settled(transactions, eye), DEADLINE, "the answer")


def test_an_ack_that_is_sent_again_at_the_memory_limit_is_taken(private_redis: servers.RedisServer) -> None:
    """By redis-py, too, without the ``MULTI`` that a full Redis refuses."""
    with clients(private_redis.url) as (client, eye, transactions):
        note(client, "a")
        cut(eye)
        ack(client, "a")
        eye.config_set("maxmemory", 1)
        wait_until(lambda: settled(transactions, eye), DEADLINE, "the ack")


def test_what_is_sent_after_the_end_is_answered_at_once(redis_url: str) -> None:
    """A task that outlives its connection acks through the old channel, where nobody settles any more."""
    with clients(redis_url) as (client, eye, transactions):
        note(client, "a")
        before = len(eye.client_list())
        transactions.close()
        ack(client, "a")
        assert transactions.owed == 0
        assert not eye.exists("index", "unacked")
        wait_until(lambda: len(eye.client_list()) < before, DEADLINE, "no connection to be kept")


def test_a_connection_that_has_rested_for_long_is_not_used(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall forgets it without a word, and what is sent on it is lost."""
    with clients(redis_url) as (client, eye, _):
        note(client, "a")
        before = {one["id"] for one in eye.client_list()}
        note(client, "b")
        assert {one["id"] for one in eye.client_list()} == before
        monkeypatch.setattr(short_transactions, "_LONGEST_REST", 0.0)
        note(client, "c")
        assert {one["id"] for one in eye.client_list()} - before


def test_nothing_is_read_over_tls_that_has_not_come(redis_tls: servers.RedisTlsServer) -> None:
    """Over TLS one cannot peek: what has been decrypted, or has arrived, can be read."""
    with contextlib.closing(redis.Redis.from_url(redis_tls.url, ssl_ca_certs=str(redis_tls.ca_file))) as client:
        options = client.connection_pool.connection_kwargs
        line = Line(client.connection_pool.connection_class(**options, protocol=2))
        assert not line.has_replies()
        line.send(pack_command(("PING",)))
        wait_until(line.has_replies, DEADLINE, "the answer")
        assert line.receive(1) == [b"PONG"]
        assert not line.has_replies()
        line.close()


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_kombus_notes_and_acks_are_short_transactions(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """``QoS.append`` and ``QoS.ack`` (5.7), and redis-py's ``Pipeline.command_stack`` (8.1); a global prefix stays."""
    with Connection(redis_url, transport_options={"global_keyprefix": prefix}) as connection:
        channel: Any = connection.channel()
        made: list[ShortTransactions] = []
        internals.reuse_client(channel, prepare=lambda client: made.append(shorten(client)))
        queue = connection.SimpleQueue("letters", channel=channel)
        queue.put("hello")
        with monkeypatch.context() as patch, contextlib.closing(redis.Redis.from_url(redis_url)) as eye:
            patch.setattr(Pipeline, "execute", None)
            message = queue.get(timeout=DEADLINE)
            assert eye.hkeys(f"{prefix}unacked") == [message.delivery_tag.encode()]
            message.ack()
            wait_until(lambda: not eye.exists(f"{prefix}unacked", f"{prefix}unacked_index"), DEADLINE, "the ack")
        queue.put("again")
        queue.get(timeout=DEADLINE).requeue()  # a transaction that watches
        assert queue.get(timeout=DEADLINE).payload == "again"
        made[0].close()
        queue.close()
