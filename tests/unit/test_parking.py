"""Messages that wait for a worker that can run them, on the memory store."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.parking import Kind, Parked, Parking
from celery_reliable.payloads import PARKED_HEADER, RawMessage
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_reliable.stores.notes import NotePage, Notes

TTL = 100.0
KIND = Kind("shop.charge", 1, "fast")


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        """Begin somewhere."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the present time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def parking(clock: Clock) -> Parking:
    """An empty place."""
    return Parking(MemoryStore(clock=clock), ttl=TTL, spare=50.0)


def message(body: str = "[[], {}, {}]", headers: dict[str, Any] | None = None) -> RawMessage:
    """A message of `KIND`."""
    named = {"task": "shop.charge", "id": "one", **(headers or {})}
    return RawMessage(queue="fast", body=base64.b64encode(body.encode()).decode(), headers=named)


def parked(at: float = 1000.0, **changes: Any) -> Parked:
    """A parked message of `KIND`."""
    facts: dict[str, Any] = {
        "message": message(),
        "since": at,
        "at": at,
        "kind": KIND,
        "task_id": "one",
        "reason": "unregistered",
    }
    return Parked(**{**facts, "why": "no such task", **changes})


def names(parking: Parking) -> list[str]:
    """Return the ids of all that is parked."""
    return sorted(one.task_id for one in parking.everything())


def test_parked_message_is_taken_forgotten_and_gone(parking: Parking, clock: Clock) -> None:
    """It is the same message, byte for byte; its kind goes with the last of it."""
    parking.park(parked())
    assert (set(parking.kinds()), parking.among(["one", "two"])) == ({KIND}, {"one"})
    clock.now += 1
    (taken,) = parking.take([KIND], limit=9)
    assert (taken.parked.message, taken.parked.header()) == (message(), {"since": 1000.0, "times": 1})
    parking.forget([taken])
    assert (names(parking), set(parking.kinds())) == ([], {KIND})
    assert parking.take([KIND], limit=9) == []
    assert parking.kinds() == {}


def test_taken_message_is_nobody_else_s_for_ten_seconds(parking: Parking, clock: Clock) -> None:
    """A taker that dies leaves it to the next; one that lives forgets it."""
    parking.park(parked())
    clock.now += 5
    (first,) = parking.take([KIND], limit=9)
    assert parking.take([KIND], limit=9) == []
    clock.now += 10
    (second,) = parking.take([KIND], limit=9)
    parking.forget([first])
    assert names(parking) == ["one"]
    parking.forget([second])
    assert names(parking) == []


def test_message_parked_again_before_it_was_forgotten_stays(parking: Parking, clock: Clock) -> None:
    """An incapable worker may have received the copy before its publisher came to forget the note."""
    parking.park(parked())
    clock.now += 1
    (taken,) = parking.take([KIND], limit=9)
    parking.park(parked(clock.now, times=2, since=1000.0, message=message(headers={PARKED_HEADER: {"times": 1}})))
    parking.forget([taken])
    assert [(one.times, one.since, one.taken) for one in parking.everything()] == [(2, 1000.0, 0.0)]


def test_wait_doubles_up_to_a_minute(parking: Parking, clock: Clock) -> None:
    """Each time a message is parked again it waits longer: two workers do not play ping-pong with it."""
    waits = []
    for times in range(1, 10):
        parking.park(parked(clock.now, times=times))
        start = clock.now
        while not (taken := parking.take([KIND], limit=1)):
            clock.now += 0.5
        waits.append(clock.now - start)
        parking.forget(taken)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_what_was_parked_before_a_worker_came_up_is_due_for_it(parking: Parking, clock: Clock) -> None:
    """The last deploy of a rollout need not wait out the minute that older workers have earned; a pingpong goes on slowly."""
    parking.park(parked(clock.now, times=7))
    clock.now += 1
    assert parking.take([KIND], limit=9) == []
    assert parking.take([KIND], limit=9, since_up=clock.now - 1) == []
    (taken,) = parking.take([KIND], limit=9, since_up=clock.now)
    assert parking.take([KIND], limit=9, since_up=clock.now) == []
    parking.park(parked(clock.now, times=8))
    parking.forget([taken])
    clock.now += 30
    assert parking.take([KIND], limit=9, since_up=clock.now - 30) == []


def test_same_message_twice_is_kept_once_and_as_long(parking: Parking) -> None:
    """A redelivery does not begin its time anew; a mark of the broker's does not make it another message."""
    parking.park(parked())
    parking.park(parked(1050.0, message=message(headers={"redelivered": True, "x-delivery-count": 3})))
    assert [(one.since, one.at) for one in parking.everything()] == [(1000.0, 1050.0)]


def test_two_messages_under_one_id_are_both_kept(parking: Parking, clock: Clock) -> None:
    """Nobody says that ids are unique: a second message must not replace the first."""
    parking.park(parked())
    for _ in range(2):
        parking.park(parked(message=message("[[2], {}, {}]")))
    clock.now += 1
    bodies = {taken.parked.message.content for taken in parking.take([KIND], limit=9)}
    assert bodies == {b"[[], {}, {}]", b"[[2], {}, {}]"}


def test_only_wanted_kinds_are_taken_oldest_first(parking: Parking, clock: Clock) -> None:
    """A worker takes what it can run, of the queues it consumes, as many as it asks for."""
    other = Kind("shop.charge", 2, "fast")
    parking.park(parked(task_id="newer", kind=other))
    for age, name in ((3, "c"), (1, "a"), (2, "b")):
        parking.park(parked(since=1000.0 + age, task_id=name))
    clock.now += 10
    assert [taken.name for taken in parking.take([KIND], limit=9)] == ["a", "b", "c"]
    assert [taken.name for taken in parking.take([other], limit=9)] == ["newer"]


def test_expired_are_found_by_their_first_time(parking: Parking, clock: Clock) -> None:
    """Being parked again does not prolong it."""
    parking.park(parked(task_id="old"))
    clock.now += TTL - 1
    parking.park(parked(clock.now, task_id="old", since=1000.0, times=7))
    parking.park(parked(clock.now, task_id="young"))
    assert parking.take_expired(limit=9) == []
    clock.now += 1
    assert [taken.name for taken in parking.take_expired(limit=9)] == ["old"]
    assert parking.has_expired(1000.0)


class Meanwhile:
    """Notes to which something happens after each page that is read."""

    def __init__(self, notes: Notes) -> None:
        """Take the notes; nothing happens yet."""
        self._notes = notes
        self.happens: Callable[[], object] = lambda: None

    def page(self, shelf: str, cursor: str = "", *, limit: int = 500) -> NotePage:
        """Read a page, then let it happen, on the shelf of messages."""
        found = self._notes.page(shelf, cursor, limit=limit)
        if shelf == "parked":
            self.happens()
        return found

    def __getattr__(self, name: str) -> Any:
        """Be the notes otherwise."""
        return getattr(self._notes, name)


def test_kind_noted_between_look_and_removal_stays(clock: Clock) -> None:
    """A message parked while its kind is being found empty is found by the next look."""
    store: Any = MemoryStore(clock=clock)
    parking = Parking(store, ttl=TTL, spare=50.0)
    parking.park(parked())
    clock.now += 1
    parking.forget(parking.take([KIND], limit=9))

    store.notes = meanwhile = Meanwhile(store.notes)
    racing = Parking(store, ttl=TTL, spare=50.0)
    meanwhile.happens = lambda: parking.park(parked(clock.now))
    assert racing.take([KIND], limit=9) == []
    clock.now += 1
    assert set(parking.kinds()) == {KIND}
    assert len(parking.take([KIND], limit=9)) == 1


def test_note_of_another_version_is_left_alone(parking: Parking) -> None:
    """Its own workers read it; ours goes beside it."""
    parking._notes.write("parked", [Write(name="one", value=b'{"v": 99}', ttl=9.0)])
    parking.park(parked())
    parking.park(parked())
    assert names(parking) == ["one"]
    assert parking.among(["one"]) == {"one"}
