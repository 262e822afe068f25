"""The records of slots: of two beats that write one, the second finds that it was too late."""

from __future__ import annotations

import itertools

import pytest

from celery_reliable.slots.desk import Desk
from celery_reliable.slots.records import SlotRecord
from celery_reliable.stores.notes import MemoryNotes

NOW = 1_000_000_000
SEEN = SlotRecord("v", NOW)


@pytest.fixture
def notes() -> MemoryNotes:
    """A shelf on a clock that moves by a second with each look."""
    ticks = itertools.count(NOW // 1_000_000)
    return MemoryNotes(clock=lambda: float(next(ticks)))


def desk(notes: MemoryNotes, epoch: int) -> Desk:
    """Return the desk of a leader."""
    made = Desk(notes, now=lambda: NOW)
    made.load(epoch=epoch)
    return made


def claimed(desk: Desk, slot: int) -> tuple[SlotRecord, SlotRecord]:
    """Return the change that claims a slot, from what a desk knows."""
    known = desk.record("job")
    assert known is not None
    return known, known.claimed(slot, epoch=desk.epoch, at=NOW, following=None, missed=None)


def begun(notes: MemoryNotes) -> None:
    """Write the first record."""
    first = desk(notes, 1)
    first.amend("job", SEEN)
    first.flush()


def test_of_two_claims_of_a_slot_one_wins(notes: MemoryNotes) -> None:
    """The other desk learns what is there, and that it leads no longer."""
    begun(notes)
    old, new = desk(notes, 1), desk(notes, 2)
    assert new.put({"job": claimed(new, NOW + 5)}) == {"job"}
    assert old.put({"job": claimed(old, NOW + 5)}) == set()
    assert old.deposed
    assert old.record("job") == new.record("job")


def test_a_claim_is_not_written_over_by_one_made_from_an_older_record(notes: MemoryNotes) -> None:
    """A change that waited is refused first; the claim that was derived from it goes with it."""
    begun(notes)
    old, new = desk(notes, 1), desk(notes, 2)
    old.amend("job", SEEN.dropped("deadline", at=NOW))
    stale = claimed(old, NOW + 5)
    assert new.put({"job": claimed(new, NOW + 5)}) == {"job"}
    assert old.put({"job": stale}) == set()
    record = desk(notes, 3).record("job")
    assert record is not None
    assert record.epoch == 2


def test_what_this_leader_fired_outlives_a_store_that_forgot_it(notes: MemoryNotes) -> None:
    """After a fail-over the store has an older record: the slot does not fire again."""
    begun(notes)
    leader = desk(notes, 1)
    leader.put({"job": claimed(leader, NOW + 5)})
    other = desk(notes, 1)
    other.amend("job", SEEN)
    other.flush()
    leader.load(epoch=2)
    record = leader.record("job")
    assert record is not None
    assert (record.slot, record.state) == (NOW + 5, "claimed")


def test_records_that_would_be_forgotten_are_written_again(notes: MemoryNotes) -> None:
    """A yearly job is claimed more rarely than notes live."""
    begun(notes)
    leader = Desk(notes, now=lambda: NOW + 40 * 86_400 * 1_000_000)
    leader.load(epoch=2)
    leader.keep_alive()
    assert leader.unwritten == 1
