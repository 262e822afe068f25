"""Bring back what the broker or a dead worker lost: held messages that fell silent, and submissions that vanished.

Redis brokers only: RabbitMQ redelivers by itself. One thread per worker. Each worker extends the messages it holds.
Two of the fleet, a leader and a standby, watch all held messages each second; only the leader acts:

* A held message whose score has not moved for ``lease_ttl`` seconds of the watcher's own clock has lost its keeper:
  it goes back to the near end of its queue. Only messages that carry our header: other applications may share the
  database.
* A submission that the ledger has, but neither queue nor worker, was lost in kombu's pop window: it is published again
  under its own id, at most three times, then it is a dead letter ``lost``. A false alarm costs one message.

Nothing is restored while the fleet's renewals were away (`Store.lead` answers ``wait``), and every gap in the watcher's
own sight begins the watch anew: an outage ends nobody's hold.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_reliable import internals, keys
from celery_reliable.errors import SignatureRefused
from celery_reliable.parking import Parking
from celery_reliable.payloads import Envelope
from celery_reliable.publishing import LIVE_RECORD_TTL, identity_in, publish_envelope
from celery_reliable.relay import bury_lost
from celery_reliable.runtime import Runtime, consumed_driver, runtime_of
from celery_reliable.waits import wait_in
from celery_reliable.worker.background import Background
from celery_reliable.worker.broker import RedisBroker, Silent, address_of, away, silent
from celery_reliable.worker.fleet_queues import FleetQueues

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.keys import Identity

_EACH = 1.0  # seconds between two looks
_AT_ONCE = 500  # held messages given back between two looks at the clock
_MOST = 10_000  # held messages read in one round
_GAP = 3.0  # a longer one begins the watch anew
_ROLE_TTL = 2.5
_ROLES = ("leader", "standby")
_ENTRIES = 500  # ledger entries looked at per look, at least
# Seconds that a look goes on for with more of them: a ledger of a million is read in minutes, not in an hour.
_TIME = 0.1
_REST = 20  # times as long as the reading took: of a long backlog, a twentieth of the leader's time
_MOST_TIMES = 3
_RENEWALS = 3

OldestStamp = Callable[[str, int], "int | None"]


class Recovery(bootsteps.StartStopStep):
    """Extend, watch, restore, publish again; see the module."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the consumer; a thread begins with its first connection and ends with the worker."""
        super().__init__(parent, **kwargs)
        self._consumer = parent
        self._background = Background(self._run, name="reliable-recovery")

    def include_if(self, parent: Any) -> bool:
        """Take part on Redis only."""
        return consumed_driver(parent.app) == "redis"

    def create(self, parent: Any) -> None:
        """Prepare the consumer before it connects for the first time."""
        internals.connect_without_sweep(parent)

    def start(self, parent: Any) -> None:
        """Begin, or go on with the new connection. kombu's own sweep waits until it is known what our clock is worth."""
        internals.hold_sweep(parent.task_consumer.channel)
        self._background.begin()

    def shutdown(self, parent: Any) -> None:
        """End the thread, and give up the role by letting it expire."""
        self._background.end(patience=1.0)

    def _run(self) -> None:
        rounds = Rounds(self._consumer)
        pause = _EACH
        while not self._background.wait(pause):
            pause = 0.0 if rounds.go() else _EACH
        rounds.close()


class Rounds:
    """What the thread does each second, or at once again if there was more than a round may do."""

    def __init__(self, consumer: Any) -> None:
        """Take the consumer, whose channel may change at any time."""
        self._consumer = consumer
        self._runtime = runtime_of(consumer.app)
        self._token = keys.new_token()
        self._broker: RedisBroker | None = None
        self._watch = Watch()
        self._ledger = LedgerSweep(consumer.app)
        self._fleet = FleetQueues(self._runtime.store.notes)
        self._extended = float("-inf")
        self._interval = self._runtime.settings.lease_ttl / _RENEWALS
        self._stolen: set[str] = set()
        self._foreign: set[str] = set()
        """Silent messages of other applications: not read again each second."""

    def go(self) -> bool:
        """Do one round; whether there is more. What cannot be reached now is looked at again, from the beginning."""
        try:
            broker = self._current()
            if broker is None:
                return False
            self._allow_for_skew(broker)
            self._extend(broker)
            self._fleet.tell(self._queues())
            return self._lead(broker)
        except away():
            self._watch.forget()
            self._ledger.begin()
            return False

    def _current(self) -> RedisBroker | None:
        """Return the view of the present connection."""
        task_consumer = self._consumer.task_consumer
        channel = getattr(task_consumer, "channel", None)
        if channel is None or getattr(channel, "closed", False):
            return None
        if self._broker is None or not self._broker.is_for(channel):
            self.close()
            self._broker = RedisBroker(channel)
        return self._broker

    def _allow_for_skew(self, broker: RedisBroker) -> None:
        store_now = self._runtime.store.known_now()
        if store_now is not None:
            broker.allow_for_skew(time.time() - store_now / 1e6)

    def _extend(self, broker: RedisBroker) -> None:
        now = time.monotonic()
        if now - self._extended < self._interval - _EACH / 2:
            return
        held = {*broker.held_here(), *internals.running_tags()}  # what runs may be of an earlier connection
        missing = broker.extend(sorted(held)) if held else []
        self._extended = now
        self._tell_stolen(broker, missing)

    def _tell_stolen(self, broker: RedisBroker, missing: list[str]) -> None:
        """Say what another consumer took out of our hands, with a visibility timeout shorter than our beat; hurry."""
        stolen = {tag: message for tag in missing if (message := broker.message_held(tag)) is not None}
        for tag, message in stolen.items():
            if tag not in self._stolen:
                self._interval = _EACH
                facts = {"task": message.headers.get("task"), "task_id": message.headers.get("id")}
                self._runtime.events.emit("stolen", **facts, key="")
        self._stolen = set(stolen)

    def _lead(self, broker: RedisBroker) -> bool:
        """Watch if this worker is one of the two, act if it is the leader."""
        settings, store = self._runtime.settings, self._runtime.store
        for role in _ROLES:
            answer = store.lead(role, token=self._token, ttl=_ROLE_TTL, pulse_ttl=settings.lease_ttl)
            if answer != "no":
                break
        else:
            self._watch.forget()
            return False
        self._watch.look(broker.held_anywhere())
        if role != "leader" or answer != "yes":
            return False
        more = self._restore(broker)
        if self._ledger.is_due():
            self._ledger.look(broker, queues=self._queues() | self._fleet.known())
        return more

    def _restore(self, broker: RedisBroker) -> bool:
        """Give silent messages back, for a second at most: the role has to be kept. Whether there are more."""
        silent_tags = self._watch.silent(after=self._runtime.settings.lease_ttl)
        self._foreign.intersection_update(silent_tags)
        tags = [tag for tag in silent_tags if tag not in self._foreign]
        found = deque(self._read(broker, tags[:_MOST]))
        restored, ends = 0, time.monotonic() + _EACH
        while found and time.monotonic() < ends and self._watch.goes_on():
            restored += self._restore_some(broker, [found.popleft() for _ in range(min(_AT_ONCE, len(found)))])
        if restored:
            self._runtime.events.emit("worker_silent", messages=restored)
        return restored > 0 and (bool(found) or len(tags) > _MOST)

    def _read(self, broker: RedisBroker, tags: Sequence[str]) -> list[Silent]:
        """Return silent messages of ours; the one that is due first comes last, so that it is received first."""
        found: list[Silent] = []
        for start in range(0, len(tags), _AT_ONCE):
            scores = {tag: self._watch.score(tag) for tag in tags[start : start + _AT_ONCE]}
            ours = broker.ours(list(scores))
            self._foreign.update(scores.keys() - ours.keys())
            found += [Silent(tag, scores[tag], held) for tag, held in ours.items()]
            if not self._watch.goes_on():
                return []
        return sorted(found, key=lambda one: str(one.headers.get("eta") or ""), reverse=True)

    def _restore_some(self, broker: RedisBroker, some: Sequence[Silent]) -> int:
        headers = [one.headers for one in broker.restore(some)]
        self._runtime.events.emit_all(
            "restored", [{"task": one.get("task"), "task_id": one.get("id"), "key": ""} for one in headers]
        )
        return len(headers)

    def _queues(self) -> set[str]:
        return {queue.name for queue in self._consumer.task_consumer.queues} | self._runtime.stopped_queues

    def close(self) -> None:
        """Close the broker's connection."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None


class Watch:
    """Remember since when each held message's score has stood still, by our own clock."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._seen: dict[str, tuple[str, float]] = {}
        self._looked = float("-inf")

    def look(self, held: dict[str, str]) -> None:
        """Take in the scores of all held messages."""
        self.goes_on()
        now, known = self._looked, self._seen
        self._seen = {
            tag: known[tag] if tag in known and known[tag][0] == score else (score, now) for tag, score in held.items()
        }

    def goes_on(self) -> bool:
        """Note, within a long round too, that we and the broker go on; after a gap, False, the watch begins anew."""
        now, before = time.monotonic(), self._looked
        self._looked = now
        if now - before > _GAP:
            self._seen.clear()
        return now - before <= _GAP

    def silent(self, *, after: float) -> list[str]:
        """Return the tags that have not moved for ``after`` seconds."""
        return silent(self._seen.items(), now=time.monotonic(), after=after)

    def score(self, tag: str) -> str:
        """Return the score a tag was last seen with."""
        return self._seen[tag][0]

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()


class LedgerSweep:
    """Publish again what the ledger has and nobody else."""

    def __init__(self, app: Celery, *, quiet: float | None = None) -> None:
        """Take the app, and how long an entry may be quiet (twice the lease); reading goes on where it stopped."""
        self._app = app
        self._runtime: Runtime = runtime_of(app)
        self._quiet = 2 * self._runtime.settings.lease_ttl if quiet is None else quiet
        self._unconsumed: set[str] = set()
        settings = self._runtime.settings
        self._parking = Parking(self._runtime.store, ttl=settings.park_ttl, spare=settings.dead_letter_ttl)
        self._rest = float("-inf")
        self.begin()

    def begin(self) -> None:
        """Read the ledger from its beginning."""
        self._entries: Iterator[tuple[str, bytes]] = self._runtime.store.ledger()
        self._spent = 0.0
        self._soonest = time.monotonic() + self._quiet  # what is submitted from now on cannot be old before

    def is_due(self) -> bool:
        """Tell whether anything unread can be old by now: a ledger of young entries is not read each second."""
        return time.monotonic() >= self._rest

    def look(self, broker: RedisBroker, *, queues: set[str]) -> None:
        """Look at some entries; what is old and in sight of nobody is published again.

        ``queues`` are those that somebody consumes. A message to another one waits for whoever will; that is told once.
        """
        self._unconsumed -= queues
        oldest = cache(broker.oldest_stamp)  # one question for each list, however many entries it has
        now = self._runtime.store.now()
        looked = [(one, self._patience(one, oldest, now=now, queues=queues)) for one in self._some()]
        suspects = [(one, patience) for one, patience in looked if patience is not None]
        if not suspects:
            return
        elsewhere = broker.task_ids_held() | self._parking.among(one.task_id for one, _ in suspects)
        for envelope, patience in suspects:
            if envelope.task_id not in elsewhere:
                self._resend(envelope, quiet=patience)

    def _some(self) -> Iterator[Envelope]:
        begins = time.monotonic()
        for number in count(1):
            found = next(self._entries, None)
            if found is None:
                break
            with suppress(ValueError):  # of another version: its own workers will read it
                yield Envelope.from_bytes(found[1])
            if number >= _ENTRIES and time.monotonic() >= begins + _TIME:
                self._spent += time.monotonic() - begins
                return
        self._spent += time.monotonic() - begins
        self._rest = max(self._soonest, time.monotonic() + _REST * self._spent)
        self.begin()

    def _patience(self, envelope: Envelope, oldest: OldestStamp, *, now: int, queues: set[str]) -> float | None:
        """Return how long an entry must have been left alone to be published again, or None while it may not be.

        Never, while its own list holds a message as old: it may be that one. And a retry, or what was published again
        already, waits behind all that was there before: what its list holds must have come later than that.
        """
        queue, priority = address_of(envelope, default_queue=self._app.conf.task_default_queue)
        stamp = identity_in(envelope).job.stamp
        age = (now - stamp) / 1e6 - _seconds_until_due(envelope, stamp)
        self._soonest = min(self._soonest, time.monotonic() + self._quiet - age)
        if age < self._quiet:
            return None
        if queue not in queues:
            self._tell_unconsumed(queue)
            return None
        quarantine = self._runtime.settings.quarantine_queue
        found = [oldest(name, priority) for name in (queue, quarantine) if name]
        waiting = [one for one in found if one is not None]
        if any(one <= stamp for one in waiting):
            return None
        return max([self._quiet, *((now - one) / 1e6 for one in waiting)])

    def _tell_unconsumed(self, queue: str) -> None:
        if queue not in self._unconsumed:
            self._unconsumed.add(queue)
            self._runtime.events.emit("queue_unconsumed", queue=queue)

    def _resend(self, envelope: Envelope, *, quiet: float) -> None:
        runtime, identity = self._runtime, identity_in(envelope)
        answer = runtime.store.resend(
            identity.job, task_id=envelope.task_id, quiet=quiet, most=_MOST_TIMES, record_ttl=LIVE_RECORD_TTL
        )
        facts = {"task": envelope.task, "task_id": envelope.task_id, "key": identity.job.key}
        if answer == "publish":
            runtime.events.emit("published_again", **facts)
            self._publish(envelope, identity)
        if answer == "lost":
            runtime.events.emit("lost", **facts)
            tried = f"published {_MOST_TIMES + 1} times and never settled; is the queue consumed?"
            bury_lost(self._app, envelope, identity, message=tried)

    def _publish(self, envelope: Envelope, identity: Identity) -> None:
        try:
            publish_envelope(self._app, envelope)
        except SignatureRefused as exc:
            bury_lost(self._app, envelope, identity, message=str(exc), reason="rejected")


def _seconds_until_due(envelope: Envelope, stamp: int) -> float:
    """Seconds from the submission to its ETA."""
    wait = wait_in({**(envelope.options.get("headers") or {}), "id": envelope.task_id})
    eta = envelope.options.get("eta")
    if wait is not None:
        return wait.seconds
    if not eta:
        return 0.0
    due = datetime.fromisoformat(eta)
    aware = due if due.tzinfo else due.replace(tzinfo=timezone.utc)
    return max(aware.timestamp() - stamp / 1e6, 0.0)
