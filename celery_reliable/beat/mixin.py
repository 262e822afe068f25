"""Put leadership and slots over any scheduler."""

from __future__ import annotations

import heapq
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler, event_t
from celery.schedules import schedstate

from celery_reliable import keys
from celery_reliable.beat import schedules
from celery_reliable.beat.facts import Reader
from celery_reliable.beat.firing import Broker, Claim, Refused, stamped
from celery_reliable.beat.heartbeat import BeatSign
from celery_reliable.beat.leadership import Leadership
from celery_reliable.beat.requests import Requests
from celery_reliable.beat.slotting import AGAIN_SOON, BATCH, Slotting
from celery_reliable.errors import ReliableError, StoreError
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import Desk
from celery_reliable.slots.sequences import SECOND
from celery_reliable.worker.metrics import serve as serve_metrics

if TYPE_CHECKING:
    from celery import Celery

_LONGEST_SLEEP = 1.0  # of the leader: entries and requests that come meanwhile wait no longer
_FLUSH_FROM = 500  # confirms that are written at the latest
_LEAVING = 2.0  # seconds for the last words to the store
_TAKING_OVER = 120.0  # for reading a large schedule


class LeaderMixin(Slotting):
    """Let a scheduler run on any number of hosts: ``class Mine(LeaderMixin, MyScheduler)``.

    One beat leads and runs the wrapped scheduler, the others stand by; one that loses its lease stands by in the same
    process. Every slot is claimed in the store before it is published, under an id derived from entry and slot.

    Guarantee: a slot fires once, whoever leads (a `ReliableTask` has one outcome for it; any other task is published at
    most once, unless the broker took a message and said it did not). Limits: the store keeps its writes. Slots that
    came due while nobody led are judged by ``reliable_catch_up`` and ``reliable_start_deadline``.

    .. versionadded:: 0.1
    """

    # Publishes go through the app's pool, each with its own error: the scheduler's producer (5.7) connects in the middle
    # of a tick, for minutes, and loses the entry when it fails.
    producer: Any = None

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        """Read the settings; nothing is set up before this beat is elected."""
        super().__init__(app, *args, lazy=True, **kwargs)
        self._leads = False
        self._closed = False
        if lazy:
            return
        runtime = runtime_of(app)
        self._runtime, self._events = runtime, runtime.events
        self._leadership = Leadership(
            runtime.store.notes, ttl=runtime.settings.leader_ttl, events=runtime.events, clock=self.monotonic
        )
        serve_metrics(runtime)
        self._sign = BeatSign(runtime, me=self._leadership.me, clock=self.monotonic)
        self._desk = Desk(runtime.store.notes, now=runtime.store.now)
        self._requests = Requests(runtime.store.notes, clock=self.monotonic)
        self._broker = Broker(clock=self.monotonic)
        self._reader = Reader(app=app, settings=runtime.settings, complain=self._complain)
        self._facts, self._claims, self._refused = {}, {}, {}
        self._paced, self._failing = {}, {}
        self._last_tick = self._kept_alive = 0.0
        self._compared = float("-inf")

    # --- the loop

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Lead or stand by. Returns the seconds to sleep; never raises for what may pass by itself.

        Celery's signal handler closes the scheduler and raises SystemExit in whatever the loop does. In a ``__del__``
        (of a result, which talks to Redis) Python swallows that, and the loop would go on: it ends here then.
        """
        if self._closed:
            raise SystemExit
        if not self._leadership.holds() and not self._elected():
            self._sign.show("store_down" if self._leadership.store_away else "standby")
            return self._leadership.pause()
        began = self.monotonic()
        self._leadership.expect(self._patience())
        pause = self._lead(*args, **kwargs)
        self._last_tick = self.monotonic() - began
        if self._last_tick > self._leadership.ttl and not self._leadership.holds():
            self._events.emit("beat_slow", seconds=self._last_tick, ttl=self._leadership.ttl)
        self._leadership.expect(pause + self._patience())
        self._sign.show("leading")
        return pause

    def _patience(self) -> float:
        """Return how late the loop may be: longer than its last round took, else a slow one could never lead."""
        return max(self._leadership.ttl, 2 * self._last_tick)

    def _elected(self) -> bool:
        if self._leads:
            self._stand_by()
        if not self._leadership.poll():
            return False
        self._leadership.expect(_TAKING_OVER)
        try:
            self._desk.load(epoch=self._leadership.epoch)
            self.reset_wrapped()
            self.setup_schedule()
        except Exception as exc:  # noqa: BLE001  # the wrapped scheduler's database or file, or our store
            self._events.emit("beat_failed", what="take over", error=repr(exc))
            self._leadership.give_up(f"could not take over: {exc!r}")
            return False
        self._leads = True
        self._events.emit("leading", epoch=self._leadership.epoch, entries=len(self._desk))
        return True

    def _lead(self, *args: Any, **kwargs: Any) -> float:
        try:
            self._retry_refused()
            self._answer_requests()
            pause = super().tick(*args, **kwargs)
            if pause or self._desk.unwritten >= _FLUSH_FROM:
                self._desk.flush()
        except StoreError as exc:
            self._events.emit("beat_failed", what="store", error=str(exc))
            return _LONGEST_SLEEP
        except Exception as exc:  # noqa: BLE001  # the wrapped scheduler's database is away, say; without this beat would end
            self._events.emit("beat_failed", what="tick", error=repr(exc))
            return _LONGEST_SLEEP
        if self._desk.deposed:
            self._leadership.give_up("another beat leads")
        return min(max(pause or 0.0, 0.0), _LONGEST_SLEEP)

    def _stand_by(self) -> None:
        self._leads = False
        self._claims.clear()
        self._refused.clear()
        self._events.emit("standing_by", epoch=self._leadership.epoch, reason=self._leadership.reason)
        try:
            self.close_wrapped()
        except Exception as exc:  # noqa: BLE001  # the wrapped scheduler's database or file
            self._events.emit("beat_failed", what="stand by", error=repr(exc))

    def close(self) -> None:
        """Leave: write what is known, free the lease, close the wrapped scheduler. May be called twice.

        Celery calls it from a signal handler, in the middle of whatever the loop does; so what needs the store happens
        in a thread, for two seconds at most.
        """
        if self._closed or not hasattr(self, "_leadership"):
            super().close()
            return
        self._closed = True
        leaving = threading.Thread(target=self._leave, name="reliable-leaving", daemon=True)
        leaving.start()
        leaving.join(_LEAVING)
        self._sign.remove()
        super().close()

    def _leave(self) -> None:
        try:
            if self._leadership.holds():
                self._desk.flush()
        except StoreError as exc:
            self._events.emit("beat_failed", what="leave", error=str(exc))
        finally:
            self._leadership.resign()

    # --- what Celery's scheduler asks (5.7, celery/beat.py)

    def _when(self, entry: Any, next_time_to_run: float, **_: Any) -> float:
        """Place an entry in the heap by the monotonic clock: the wall clock may step."""
        return self.monotonic() + (next_time_to_run or 0.0)

    def adjust(self, n: Any, drift: float = 0.0) -> Any:
        """Wake when a slot is due, not 10 ms before it: a slot of the future cannot be claimed."""
        return n

    def schedules_equal(self, old_schedules: Any, new_schedules: Any) -> bool:
        """Compare once a second, not for each entry that fires, and first by identity: there may be 100,000."""
        changed = getattr(self, "_heap_invalidated", False)  # django-celery-beat's own word for it (2.9)
        if not changed and self.monotonic() - self._compared < _LONGEST_SLEEP:
            return True
        self._compared = self.monotonic()
        if not changed and self._compares_plainly() and _same(old_schedules, new_schedules):
            return True
        return bool(super().schedules_equal(old_schedules, new_schedules))

    def _compares_plainly(self) -> bool:
        """Tell whether the wrapped scheduler compares entries only, as Celery's and django-celery-beat's (2.9) do."""
        compares = super().schedules_equal.__func__
        return compares is Scheduler.schedules_equal or hasattr(self, "_heap_invalidated")

    def populate_heap(self, *_: Any, **__: Any) -> None:
        """Order all entries by their next slot, and note which have gone."""
        self._heap = None  # until it is complete: a store that goes away meanwhile must not leave an old order
        now = self._runtime.store.now()
        heap, present = [], set()
        for number, entry in enumerate(self.schedule.values()):
            if number % BATCH == 0:
                self._leadership.expect(_TAKING_OVER)
            present.add(entry.name)
            look = self._looked(entry, now=now)
            heap.append(event_t(self._when(entry, 0.0 if look.claim else look.wait), 5, entry))
        heapq.heapify(heap)
        self._heap = heap
        self._note_gone(present)
        self._desk.flush()

    def is_due(self, entry: Any) -> Any:
        """Claim the entry's slot if one is due, together with those of others that are due.

        With the store away nothing is due for a second: what Celery catches here (5.7) it tries again after five minutes.
        """
        try:
            return self._is_due(entry)
        except StoreError as exc:
            self._events.emit("beat_failed", what="claim", error=str(exc))
            return schedstate(is_due=False, next=AGAIN_SOON)

    def _is_due(self, entry: Any) -> Any:
        if entry.name not in self._claims:
            if not self._leadership.holds():
                return schedstate(is_due=False, next=AGAIN_SOON)
            now = self._runtime.store.now()
            look = self._looked(entry, now=now)
            if look.claim is None:
                return schedstate(is_due=False, next=look.wait)
            self._claim([look, *self._looks_of_peers(entry, now=now)])
        claim = self._claims.get(entry.name)
        if claim is None:
            return schedstate(is_due=False, next=AGAIN_SOON)
        return schedstate(is_due=True, next=self._until_next(claim))

    def reserve(self, entry: Any) -> Any:
        """Move the entry on; its last run is the slot, not the time of sending."""
        following = super().reserve(entry)
        claim = self._claims.get(entry.name)
        if claim is not None:
            self.put_last_run(following, self.slot_as_time(claim.slot, entry=entry))
        return following

    def slot_as_time(self, slot: int, *, entry: Any) -> Any:
        """Return a slot as the wrapped scheduler keeps times: aware, unless it keeps naive ones."""
        when = schedules.datetime_of(slot)
        known = entry.default_now()
        return when.replace(tzinfo=None) if known.tzinfo is None else when.astimezone(known.tzinfo)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        """Publish the claimed slot of an entry; without a claim nothing is published."""
        if advance:
            self.reserve(entry)
        claim = self._claims.pop(entry.name, None)
        return None if claim is None else self._fire(entry, claim)

    # --- firing

    def _fire(self, entry: Any, claim: Claim) -> Any:
        """Publish; what is refused is tried again. A lost lease, or somebody else's claim, stops it."""
        self._leadership.expect(self._patience())
        if not self._leadership.holds():
            return None  # the slot stays claimed: the next leader publishes it, under the same id
        if self._broker.wait():
            self._refused[entry.name] = Refused(claim, entry, self.monotonic() + self._broker.wait())
            return None
        refused = self._refused.pop(entry.name, None)
        if not claim.facts.reliable and not self._confirmed_first(claim, refused):
            return None
        registered = claim.facts.task in self.app.tasks
        marked = stamped(entry, claim, registered=registered, now=self._runtime.store.now())
        try:
            result = super().apply_async(marked, advance=False)
        except Exception as exc:  # noqa: BLE001  # whatever stops a publish; it is tried again, and dropped at the deadline
            self._refuse(entry, claim, exc)
            return None
        self._broker.took()
        reason = getattr(result, "reliable_skipped", "")
        if reason:
            self._note_skip(claim, reason)
        else:
            self._confirm(claim)
        return result

    def _confirmed_first(self, claim: Claim, refused: Refused | None) -> bool:
        """Confirm the slot of a plain task before its publish: it has nobody to notice a second message."""
        record = self._desk.record(claim.entry)
        if record is None or record.slot != claim.slot:
            return False
        if record.state != "claimed":
            return refused is not None and refused.claim.slot == claim.slot  # confirmed, and then refused
        return claim.entry in self._desk.put(
            {claim.entry: (record, record.fired(at=self._runtime.store.now(), epoch=self._desk.epoch))}
        )

    def _note_skip(self, claim: Claim, reason: str) -> None:
        """Keep that a slot was not sent, because a job of its kind runs still."""
        record = self._desk.record(claim.entry)
        if record is not None and record.slot == claim.slot:
            self._drop(claim.entry, record, f"overlap: {reason}", now=self._runtime.store.now())

    def _confirm(self, claim: Claim) -> None:
        record = self._desk.record(claim.entry)
        if record is not None and record.state == "claimed" and record.slot == claim.slot:
            self._desk.amend(claim.entry, record.fired(at=self._runtime.store.now(), epoch=self._desk.epoch))
        facts = {"entry": claim.entry, "slot": keys.slot_text(claim.slot), "task": claim.facts.task}
        self._events.emit("slot_fired", **facts, task_id=claim.task_id, again=claim.again)

    def _refuse(self, entry: Any, claim: Claim, exc: Exception) -> None:
        self._refused[claim.entry] = Refused(claim, entry, self._broker.refused())
        record = self._desk.record(claim.entry)
        if record is not None:
            self._desk.amend(claim.entry, replace(record, why=f"publish refused: {exc}"))
        slot = keys.slot_text(claim.slot)
        self._events.emit("slot_refused", entry=claim.entry, slot=slot, task=claim.facts.task, error=str(exc))

    def _retry_refused(self) -> None:
        """Publish again what the broker refused, as long as its slot may still start."""
        if not self._refused or self._broker.wait():
            return
        now = self._runtime.store.now()
        for name, refused in list(self._refused.items()):
            if refused.retry_at > self.monotonic() or self._broker.wait():
                continue
            record = self._desk.record(name)
            if record is not None and record.state == "claimed":
                look = self._looked(refused.entry, now=now)
                if look.claim is not None and look.claim.again:
                    self._fire(refused.entry, look.claim)
            elif self._may_still_start(refused.claim, now=now):
                self._fire(refused.entry, refused.claim)
            else:
                self._give_up(name, now=now)

    def _may_still_start(self, claim: Claim, *, now: int) -> bool:
        """Tell whether a plain task's slot, which is confirmed already, may be published still."""
        record = self._desk.record(claim.entry)
        same = record is not None and record.slot == claim.slot and not record.absent
        return same and not claim.facts.policy.reason((now - claim.slot) / SECOND)

    def _give_up(self, name: str, *, now: int) -> None:
        refused = self._refused.pop(name)
        record = self._desk.record(name)
        if record is not None and record.slot == refused.claim.slot:
            self._drop(name, record, "deadline", now=now)

    # --- fire now, when asked to

    def _answer_requests(self) -> None:
        for request in self._requests.waiting():
            try:
                task_id = self._run_now(request.entry, request.task_id)
                self._requests.answer(request, task_id=task_id)
            except StoreError:
                raise
            except Exception as exc:  # noqa: BLE001  # no such entry, or whatever stops a publish: the one who asked is told
                self._requests.answer(request, error=str(exc) or repr(exc))

    def _run_now(self, name: str, task_id: str) -> str:
        """Publish an entry outside its schedule, as a job of its own."""
        try:
            entry = self.entry_named(name)
        except KeyError:
            msg = f"no entry {name!r} is in the schedule; it may be disabled"
            raise ReliableError(msg) from None
        facts = self._facts_of(entry)
        key = keys.slot_key(name, facts.version, f"run:{task_id}")
        claim = Claim(name, 0, key, task_id, facts)
        registered = facts.task in self.app.tasks
        super().apply_async(stamped(entry, claim, registered=registered, now=self._runtime.store.now()), advance=False)
        self._events.emit("entry_run", entry=name, task=facts.task, task_id=task_id)
        return task_id


def _same(old: Any, new: Any) -> bool:
    """Tell whether two schedules have the same entries, comparing only those that are not one and the same object."""
    if old is None or new is None or len(old) != len(new):
        return False
    return all(
        (found := new.get(name)) is entry or (found is not None and found == entry) for name, entry in old.items()
    )
