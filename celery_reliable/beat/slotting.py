"""Find which slots are due, and claim them, for the scheduler that leads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timezone
from typing import Any

from celery.beat import ScheduleEntry
from celery.schedules import schedstate

from celery_reliable import keys
from celery_reliable.beat.facts import Facts, Reader
from celery_reliable.beat.firing import Broker, Claim, Refused
from celery_reliable.beat.leadership import Leadership
from celery_reliable.errors import StoreError
from celery_reliable.events import Events
from celery_reliable.runtime import Runtime
from celery_reliable.slots.desk import Desk
from celery_reliable.slots.planning import Plan, plan
from celery_reliable.slots.records import SlotRecord
from celery_reliable.slots.sequences import SECOND, Once, Sequence, latest

BATCH = 500  # slots claimed in one round trip
AGAIN_SOON = 1.0
_NEVER = 100_000_000.0  # seconds, as django-celery-beat writes it
_DISABLED_PAUSE = 5.0  # likewise
_FAILED_PAUSE = 60.0  # until a schedule that raised is asked again
_CATCH_UP_PAUSE = 0.2  # between two missed slots of one entry
_DAY = 86_400.0

Wrapped: Any = object  # what a mixin stands over is known only to the class that uses it


@dataclass(frozen=True, slots=True)
class Look:
    """What was found about an entry: the slot to fire now, or how long to wait."""

    wait: float
    claim: Claim | None = None
    change: tuple[SlotRecord, SlotRecord] | None = None
    """The record as it was seen, and with the claim."""


class Slotting(Wrapped):
    """Look at entries, plan and claim their slots. A part of `LeaderMixin`, which makes the attributes."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """The clock by which the loop waits. Due is what the store's clock says."""

    app: Any
    _heap: Any
    _runtime: Runtime
    _events: Events
    _leadership: Leadership
    _desk: Desk
    _broker: Broker
    _reader: Reader
    _facts: dict[str, Facts]
    _claims: dict[str, Claim]
    _refused: dict[str, Refused]
    _paced: dict[str, float]
    _failing: dict[str, str]
    _kept_alive: float

    # --- seams for the wrapped scheduler

    def reset_wrapped(self) -> None:
        """Make the wrapped scheduler read its schedule anew, as a new leader must."""
        self._heap = None
        self.old_schedulers = None
        self._facts.clear()
        self._reader.forget()

    def close_wrapped(self) -> None:
        """Let go of what the wrapped scheduler holds while it leads."""

    def entry_named(self, name: str) -> Any:
        """Return one entry. Raises KeyError."""
        return self.schedule[name]

    def peers_of(self, entry: Any) -> Iterator[Any]:
        """Iterate over other entries that may be due, so that their slots are claimed together."""
        heap = self._heap or []
        waiting, limit = [0], self.monotonic()
        while waiting:
            at = waiting.pop()
            if at < len(heap) and heap[at][0] <= limit:
                waiting += (2 * at + 1, 2 * at + 2)
                if heap[at][2] is not entry:
                    yield heap[at][2]

    def put_last_run(self, entry: Any, when: Any) -> None:
        """Let an entry show the slot as its last run."""
        entry.last_run_at = when

    def is_disabled(self, entry: Any) -> bool:
        """Tell whether an entry is switched off."""
        return False

    def starts_at(self, entry: Any) -> int:
        """Return the moment before which no slot counts, in microseconds."""
        return 0

    # --- looking

    def _looked(self, entry: Any, *, now: int) -> Look:
        """Look at an entry; one whose schedule raises must not stop the others."""
        try:
            look = self._look(entry, now=now)
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001  # a schedule of the project's own, or a row nobody can read
            self._tell_failing(entry, exc)
            return Look(_FAILED_PAUSE)
        if self._failing:
            self._failing.pop(entry.name, None)
        return look

    def _look(self, entry: Any, *, now: int) -> Look:
        blocked = self._blocked_for(entry, now=now)
        if blocked is not None:
            return Look(blocked)
        facts = self._facts_of(entry)
        record = self._sight(entry, facts, now=now)
        if record.state == "claimed":
            return self._look_at_claimed(entry, facts, record, now=now)
        if entry.name in self._refused and facts.policy.catch_up == "all":
            return Look(AGAIN_SOON)  # a plain task's slot, which is confirmed and goes first
        found = self._plan(entry, facts, record, now=now)
        if found.slot is None:
            self._tell_passed(entry.name, record, found)
            return Look(_seconds_until(found.following, now=now))
        wait = max(self._broker.wait(), self._paced.get(entry.name, 0.0) - self.monotonic())
        return Look(wait) if wait > 0 else self._wish(entry, facts, record, found, now=now)

    def _plan(self, entry: Any, facts: Facts, record: SlotRecord, *, now: int) -> Plan:
        return plan(facts.sequence, last=record.slot, now=now, policy=facts.policy, not_before=self.starts_at(entry))

    def _wish(self, entry: Any, facts: Facts, record: SlotRecord, found: Plan, *, now: int) -> Look:
        assert found.slot is not None  # noqa: S101  # for the type checker
        claim = Claim.of(entry.name, found.slot, facts, following=found.following)
        wanted = record.claimed(
            found.slot, epoch=self._desk.epoch, at=now, following=found.following, missed=found.missed
        )
        return Look(0.0, claim, (record, wanted))

    def _look_at_claimed(self, entry: Any, facts: Facts, record: SlotRecord, *, now: int) -> Look:
        """Publish a claimed slot again, unless its time is over, or a newer one stands for it."""
        policy, age = facts.policy, (now - record.slot) / SECOND
        longest = max(policy.window, policy.on_time) if policy.deadline is None else max(policy.deadline, AGAIN_SOON)
        if age > longest:
            self._drop(entry.name, record, "window" if policy.deadline is None else "deadline", now=now)
            return self._look(entry, now=now)
        refused = self._refused.get(entry.name)
        if refused is not None and policy.catch_up != "all":
            newer = self._plan(entry, facts, record, now=now)
            if newer.slot is not None and not self._broker.wait():
                self._drop(entry.name, record, "superseded", now=now)
                return self._look(entry, now=now)
        wait = max(self._broker.wait(), refused.retry_at - self.monotonic() if refused else 0.0)
        if wait > 0:
            return Look(wait)
        following = facts.sequence.after(max(now, record.slot), anchor=record.slot)
        return Look(0.0, Claim.of(entry.name, record.slot, facts, following=following, again=True))

    def _blocked_for(self, entry: Any, *, now: int) -> float | None:
        """Return how long an entry is not due whatever its schedule says, None when its schedule decides."""
        if self.is_disabled(entry):
            self._note_gone_now(entry.name, now=now)
            return _DISABLED_PAUSE
        if type(entry).is_due is ScheduleEntry.is_due:
            return None
        clone = object.__new__(type(entry))
        clone.__dict__.update(entry.__dict__)
        clone.schedule = _Always()
        due, wait = clone.is_due()
        return None if due else float(wait)

    def _facts_of(self, entry: Any) -> Facts:
        known = self._facts.get(entry.name)
        if known is None or not known.still_true_of(entry):
            known = self._facts[entry.name] = self._reader.facts_of(entry)
        return known

    def _complain(self, name: str, problem: str) -> None:
        self._events.emit("policy_invalid", entry=name, problem=problem)

    def _sight(self, entry: Any, facts: Facts, *, now: int) -> SlotRecord:
        """Return the record of an entry; a new or changed one, or one that was switched off, starts now."""
        record = self._desk.record(entry.name)
        if record is not None and record.schedule_version == facts.version and not record.absent:
            return record
        self._claims.pop(entry.name, None)
        self._refused.pop(entry.name, None)
        if record is None or record.schedule_version != facts.version:
            record = self._first_record(entry, facts, now=now)
        else:
            record = _back_again(record, facts.sequence, now=now)
        self._desk.amend(entry.name, record)
        return record

    def _first_record(self, entry: Any, facts: Facts, *, now: int) -> SlotRecord:
        start = 0 if isinstance(facts.sequence, Once) else self._first_anchor(entry, facts.sequence, now=now)
        return SlotRecord(
            facts.version,
            start,
            epoch=self._desk.epoch,
            task=entry.task,
            schedule=facts.words,
            following=facts.sequence.after(start, anchor=start),
        )

    def _first_anchor(self, entry: Any, sequence: Sequence, *, now: int) -> int:
        """Return the moment from which slots count: an entry with a start in the future has its first slot then."""
        start = self.starts_at(entry)
        return now // SECOND * SECOND if start <= now else start - min(sequence.typical, start)

    def _looks_of_peers(self, entry: Any, *, now: int) -> list[Look]:
        found: list[Look] = []
        for peer in self.peers_of(entry):
            if peer.name in self._claims:
                continue
            look = self._looked(peer, now=now)
            if look.claim is not None:
                found.append(look)
            if len(found) >= BATCH - 1:
                break
        return found

    def _until_next(self, claim: Claim) -> float:
        if claim.facts.policy.catch_up == "all" and claim.following is not None:
            return max(_seconds_until(claim.following, now=self._runtime.store.now()), _CATCH_UP_PAUSE)
        return _seconds_until(claim.following, now=self._runtime.store.now())

    # --- claiming

    def _claim(self, looks: Iterable[Look]) -> None:
        """Claim slots in one round trip; those that another beat has claimed stay its own."""
        wanted = [(look.claim, look.change) for look in looks if look.claim is not None]
        won = self._desk.put({claim.entry: change for claim, change in wanted if change is not None})
        for claim, change in wanted:
            if change is None or claim.entry in won:
                self._claims[claim.entry] = claim
                self._pace(claim)
        if self._desk.deposed:
            self._leadership.give_up("another beat leads")

    def _pace(self, claim: Claim) -> None:
        if claim.facts.policy.catch_up == "all":
            self._paced[claim.entry] = self.monotonic() + _CATCH_UP_PAUSE

    def _drop(self, name: str, record: SlotRecord, reason: str, *, now: int) -> None:
        """Say that a claimed slot will not fire."""
        self._refused.pop(name, None)
        self._claims.pop(name, None)
        self._desk.amend(name, record.dropped(reason, at=now))
        facts = self._facts.get(name)
        rhythm = facts.rhythm if facts is not None else None
        self._events.emit("slot_dropped", entry=name, slot=keys.slot_text(record.slot), reason=reason, schedule=rhythm)

    # --- entries that come and go

    def _note_gone(self, present: set[str]) -> None:
        now = self._runtime.store.now()
        for name in [name for name in self._desk.names() if name not in present]:
            self._note_gone_now(name, now=now)
        if self.monotonic() - self._kept_alive > _DAY:
            self._kept_alive = self.monotonic()
            self._desk.keep_alive()

    def _note_gone_now(self, name: str, *, now: int) -> None:
        """Note since when an entry is disabled or gone: what comes due meanwhile is no missed run."""
        record = self._desk.record(name)
        if record is None or record.absent:
            return
        if record.state == "claimed":
            self._drop(name, record, "disabled", now=now)
            record = self._desk.record(name) or record
        self._desk.amend(name, replace(record, absent=now))
        for kept in (self._facts, self._claims, self._refused, self._paced, self._failing):
            kept.pop(name, None)

    def _tell_failing(self, entry: Any, exc: Exception) -> None:
        problem = f"its schedule raised {exc!r}"
        if self._failing.get(entry.name) == problem:
            return
        self._failing[entry.name] = problem
        self._events.emit("schedule_failed", entry=entry.name, error=repr(exc))
        record = self._desk.record(entry.name)
        if record is not None:
            self._desk.amend(entry.name, replace(record, why=problem))

    def _tell_passed(self, name: str, record: SlotRecord, found: Plan) -> None:
        """Keep why a due slot does not fire, once for each reason."""
        if not found.reason or found.missed is None:
            return
        why = f"{found.reason}: missed from {keys.slot_text(found.missed)}"
        if record.why != why:
            self._desk.amend(name, replace(record, why=why, following=found.following))
            self._events.emit("slots_missed", entry=name, slot=keys.slot_text(found.missed), reason=found.reason)


class _Always:
    """A schedule that is due: what else an entry's ``is_due`` looks at is seen alone."""

    tz = timezone.utc

    @staticmethod
    def is_due(last_run_at: Any) -> Any:  # noqa: ARG004  # as schedules are asked
        """Say yes."""
        return schedstate(is_due=True, next=AGAIN_SOON)


def _seconds_until(slot: int | None, *, now: int) -> float:
    return _NEVER if slot is None else max((slot - now) / SECOND, 0.0)


def _back_again(record: SlotRecord, sequence: Sequence, *, now: int) -> SlotRecord:
    """Let an entry that was switched off go on in its rhythm, without what came due meanwhile."""
    first = sequence.after(record.slot, anchor=record.slot)
    if isinstance(sequence, Once) or first is None or first > now:
        return replace(record, absent=0, following=first)
    passed = latest(sequence, first=first, until=now, anchor=record.slot)
    return replace(record, absent=0, slot=passed, state="seen", following=sequence.after(passed, anchor=passed))
