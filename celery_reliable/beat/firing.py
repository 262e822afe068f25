"""Publish a claimed slot under its own id, and remember what the broker refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_reliable import keys
from celery_reliable.beat.facts import Facts
from celery_reliable.keys import HEADER, Identity, SlotKey
from celery_reliable.slots.skips import ENTRY_HEADER, SCHEDULE_HEADER, SLOT_HEADER
from celery_reliable.stores.base import Job

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to fire one slot of an entry. ``following`` is the next slot in microseconds, if there is one."""

    entry: str
    slot: int
    key: SlotKey
    task_id: str
    facts: Facts
    following: int | None = None
    again: bool = False

    @classmethod
    def of(cls, entry: str, slot: int, facts: Facts, *, following: int | None = None, again: bool = False) -> Claim:
        """Name the slot's job: the same for whoever fires it."""
        key = keys.slot_key(entry, facts.version, keys.slot_text(slot))
        return cls(entry, slot, key, keys.slot_id(key), facts, following, again)


@dataclass(frozen=True, slots=True)
class Refused:
    """A claimed slot that the broker did not take."""

    claim: Claim
    entry: Any
    retry_at: float


class Broker:
    """Remember that the broker is away, so that a thousand due entries do not each wait for it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin in good hope."""
        self._clock = clock
        self._until = float("-inf")
        self._pause = _FIRST_PAUSE

    def wait(self) -> float:
        """Return for how many seconds nothing should be published; 0: go on."""
        return max(self._until - self._clock(), 0.0)

    def refused(self) -> float:
        """Note a failed publish; return when it should be tried again, by the monotonic clock."""
        self._until = self._clock() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return self._until

    def took(self) -> None:
        """Note a publish that worked."""
        self._pause, self._until = _FIRST_PAUSE, float("-inf")


def stamped(entry: Any, claim: Claim, *, registered: bool, now: int) -> Any:
    """Return a copy of an entry whose message carries the slot and its id.

    Not ``copy.copy``: django-celery-beat's and redbeat's entries do not survive it. The headers are a copy, too: Celery
    writes into them (5.7).
    """
    clone = object.__new__(type(entry))
    clone.__dict__.update(entry.__dict__)
    clone.options = {**(entry.options or {}), "task_id": claim.task_id}
    given = {name: value for name, value in _headers(entry).items() if name not in claim.facts.wrong}
    headers = {**given, ENTRY_HEADER: claim.entry}
    if claim.slot:
        headers[SLOT_HEADER] = keys.slot_text(claim.slot)
        if claim.facts.rhythm is not None:
            headers[SCHEDULE_HEADER] = claim.facts.rhythm
    if claim.facts.reliable and registered:
        clone.options["idempotency_key"] = claim.key
    else:
        # Sent by name: the worker that has the task, if it is one of ours, finds the slot's key here.
        headers[HEADER] = Identity(Job(str(claim.key), "slot", now), claim.task_id, "", 1).to_header()
    clone.options["headers"] = headers
    return clone


def _headers(entry: Any) -> Mapping[str, Any]:
    return (entry.options or {}).get("headers") or {}
