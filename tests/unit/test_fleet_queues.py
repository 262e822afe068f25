"""Each worker says which queues it consumes."""

from __future__ import annotations

from celery_reliable.stores.memory import MemoryStore
from celery_reliable.worker.fleet_queues import FleetQueues


def test_queues_of_all_workers_are_known_to_each() -> None:
    """However many, page by page."""
    notes = MemoryStore().notes
    one, other = FleetQueues(notes), FleetQueues(notes)
    names = {f"queue-{number}" for number in range(1200)}
    one.tell({"left", *names})
    other.tell({"right"})
    assert one.known() == other.known() == {"left", "right", *names}


def test_nothing_is_told_twice_within_a_while() -> None:
    """One call a quarter of a minute; a queue that is new at once."""
    notes = MemoryStore().notes
    queues = FleetQueues(notes)
    queues.tell({"left"})
    version = notes.read("queues", ["left"])["left"].version
    queues.tell({"left", "right"})
    assert set(notes.read("queues", ["left", "right"])) == {"left", "right"}
    assert notes.read("queues", ["left"])["left"].version == version
