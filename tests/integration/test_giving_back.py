"""Held messages of a Redis queue go back to it many at a time, as kombu itself puts back one."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Exchange, Queue

from celery_reliable import internals

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

PREFIXES = ["", "shop."]


@pytest.fixture(params=PREFIXES)
def connection(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Connection]:
    """A connection, with and without a prefix before every key."""
    options = {"global_keyprefix": request.param, "priority_steps": [0, 5], "queue_order_strategy": "priority"}
    with Connection(redis_url, transport_options=options) as made:
        yield made


class Shelf:
    """A queue, and a consumer of it."""

    def __init__(self, connection: Connection) -> None:
        """Declare the queue."""
        name = f"returned-{uuid.uuid4().hex[:8]}"
        self.channel = connection.channel()
        self.queue = Queue(name, Exchange(name), routing_key=name)(self.channel)
        self.queue.declare()
        self.producer = connection.Producer(self.channel)

    def put(self, *bodies: str, priority: int = 0) -> None:
        """Publish."""
        for body in bodies:
            self.producer.publish(
                body, exchange=self.queue.exchange, routing_key=self.queue.routing_key, priority=priority
            )

    def take(self, count: int) -> list[Any]:
        """Receive, without an ack."""
        return [self.queue.get(no_ack=False) for _ in range(count)]

    def unacked(self) -> int:
        """Count what is held."""
        with self.channel.conn_or_acquire() as client:
            return int(client.hlen("unacked"))


@pytest.fixture
def shelf(connection: Connection) -> Shelf:
    """An empty queue."""
    return Shelf(connection)


def bodies(messages: list[Any]) -> list[str]:
    """Return what they say."""
    return [message.payload for message in messages]


def test_messages_are_received_again_in_their_order_before_the_backlog(shelf: Shelf) -> None:
    """Each to the list of its priority; marked as redelivered, as kombu marks them."""
    shelf.put("a", "b", "c")
    shelf.put("whenever", priority=5)
    held = shelf.take(4)
    shelf.put("d")

    internals.give_back_all(held[::-1])

    assert [held[0].acknowledged, shelf.unacked()] == [True, 0]
    again = shelf.take(5)
    assert bodies(again) == ["a", "b", "c", "d", "whenever"]
    assert [message.delivery_info.get("redelivered") for message in again] == [True, True, True, None, True]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_one_that_another_puts_back_is_not_doubled(shelf: Shelf, when: str) -> None:
    """Its visibility timeout was over, say; also between our look at it and our step."""
    shelf.put("a", "b")
    held = shelf.take(2)
    look_up = shelf.channel._lookup

    def put_back() -> None:
        shelf.channel.qos.restore_by_tag(held[0].delivery_tag)

    def look_up_late(*args: Any) -> Any:
        shelf.channel._lookup = look_up
        put_back()
        return look_up(*args)

    if when == "before":
        put_back()
    else:
        shelf.channel._lookup = look_up_late
    internals.give_back_all(held)

    assert sorted(bodies(shelf.take(2))) == ["a", "b"]
    assert shelf.queue.get() is None


def test_acknowledged_messages_and_none_at_all_are_left_alone(shelf: Shelf) -> None:
    """Nothing is sent for them."""
    shelf.put("a")
    (message,) = shelf.take(1)
    message.ack()
    internals.give_back_all([message])
    internals.give_back_all([])
    assert shelf.queue.get() is None


def test_more_than_one_script_takes_are_given_back(shelf: Shelf) -> None:
    """In slices, the order kept."""
    numbers = [str(number) for number in range(205)]
    shelf.put(*numbers)
    internals.give_back_all(shelf.take(len(numbers))[::-1])
    assert bodies(shelf.take(len(numbers))) == numbers
