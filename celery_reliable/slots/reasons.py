"""Say in words why an entry did not run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from celery_reliable.slots.records import SlotRecord

_SECOND = 1_000_000
_OVERDUE = 60 * _SECOND

MEANINGS = {
    "fired": "published",
    "missed": "passed over: it came due while no beat led, and a later slot was due, too",
    "superseded": "dropped: the broker refused it until a later slot was due",
    "deadline": "dropped: it could not start before its start_deadline",
    "window": "dropped: it could not start within the catch_up_window",
    "disabled": "dropped: the entry was switched off before it was published",
}


def reasons(record: SlotRecord, *, led: bool, now: int) -> Iterator[str]:
    """Iterate over what keeps an entry from running, most telling first; nothing when all is well."""
    if not led:
        yield "No beat leads: start one, or wait until the lease of a dead one has ended."
    if record.absent:
        yield f"It is disabled, or gone from the schedule, since {time_text(record.absent)}."
        return
    if record.state == "claimed":
        yield f"The slot {time_text(record.slot)} is claimed and not known to be published; it is tried again."
    if record.why in MEANINGS:
        yield f"The slot {time_text(record.slot)} was {MEANINGS[record.why]}."
    elif record.why:
        yield f"{record.why[:1].upper()}{record.why[1:]}."
    if record.state == "seen":
        yield f"It has not been due since it was first seen, or changed, at {time_text(record.slot)}."
    if record.following is None and record.slot:
        yield "Its schedule has no further slot."
    elif led and record.following is not None and now - record.following > _OVERDUE:
        yield f"It is overdue since {time_text(record.following)}: the beat that leads is slow, or cannot reach the store."


def time_text(moment: int) -> str:
    """Return a time in microseconds in UTC, to the second."""
    return f"{datetime.fromtimestamp(moment / _SECOND, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
