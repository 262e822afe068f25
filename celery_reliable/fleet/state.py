"""Gather what is known of the fleet: from the workers' signs of life, the broker, the beats and the dead letters."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.beat.leadership import Member, leader_and_members
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.fleet.queues import QueueSight, QueueState
from celery_reliable.flow import ages
from celery_reliable.heartbeats import SHELF, LifeSign
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.slots import desk
from celery_reliable.slots.records import SlotRecord
from celery_reliable.stores.notes import every

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.flow.breaking import Phase
    from celery_reliable.stores.base import Store
    from celery_reliable.stores.notes import Notes

_SECOND: Final = 1_000_000
_MISSED: Final = 3  # signs that may be missed
_TELLING: Final = 3  # runs of a task in one worker that say something about how long it takes
_SAMPLE: Final = 1000  # newest letters whose reasons are counted


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker by its last sign of life, which is ``age`` seconds old."""

    sign: LifeSign
    age: float

    @property
    def state(self) -> str:
        """What it says of itself; ``silent`` once it has missed three signs."""
        return "silent" if self.age > _MISSED * self.sign.interval + 1 else self.sign.state


@dataclass(frozen=True, slots=True)
class Upcoming:
    """An entry of the schedule: its next slot (unix seconds; None: none), and what became of the last one."""

    entry: str
    task: str
    next: float | None
    last: str


@dataclass(frozen=True, slots=True)
class Deaths:
    """Dead letters: counts since ever, and why the newest ``sampled`` of them died."""

    counts: Mapping[str, int]
    reasons: Mapping[str, int] = field(default_factory=dict)
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet at one moment, ``at`` (unix seconds by the store's clock). ``held``: messages out at workers.

    ``breakers`` has those of which a failure is known, or an operator's word.
    """

    at: float
    workers: tuple[WorkerState, ...]
    queues: tuple[QueueState, ...]
    held: int | None
    leader: Member | None
    followers: tuple[Member, ...]
    schedule: tuple[Upcoming, ...]
    breakers: Mapping[str, Phase]
    deaths: Deaths

    @property
    def running(self) -> int:
        """How many tasks run, each under a lease."""
        return sum(worker.sign.running for worker in self.workers if worker.state != "silent")

    @property
    def slots(self) -> int:
        """How many could."""
        return sum(worker.sign.concurrency for worker in self.workers if worker.state != "silent")

    def running_in(self, queue: str) -> int:
        """Count the running tasks that came from a queue."""
        return sum(worker.sign.busy.get(queue, 0) for worker in self.workers if worker.state != "silent")

    def ended_in(self, queue: str) -> tuple[int, int]:
        """Count the runs of a queue that ended (well, failed) in the last minute; a retry's failed attempt is one."""
        counts = [worker.sign.ended.get(queue, (0, 0)) for worker in self.workers if worker.state != "silent"]
        return sum(well for well, _ in counts), sum(failed for _, failed in counts)

    @property
    def stopped(self) -> set[str]:
        """Name the queues that some worker does not consume because of a kill switch."""
        return {queue for worker in self.workers if worker.state != "silent" for queue in worker.sign.stopped}

    def consumers_of(self, queue: str) -> int:
        """Count the workers that consume a queue."""
        return sum(queue in worker.sign.queues for worker in self.workers if worker.state != "silent")

    def medians(self) -> dict[str, dict[str, float]]:
        """Return, by queue and task, the median runtime of which half of the workers that ran enough of it have a longer one."""
        found: dict[str, dict[str, list[float]]] = {}
        for worker in self.workers:
            for queue, tasks in worker.sign.runtimes.items():
                for task, (runs, median, *_) in tasks.items():
                    if runs >= _TELLING:
                        found.setdefault(queue, {}).setdefault(task, []).append(median)
        return {queue: {task: statistics.median(one) for task, one in tasks.items()} for queue, tasks in found.items()}

    def _queue_record(self, queue: QueueState) -> dict[str, Any]:
        well, failed = self.ended_in(queue.name)
        told = {"running": self.running_in(queue.name), "workers": self.consumers_of(queue.name)}
        return {**asdict(queue), **told, "ended_well": well, "ended_failed": failed}

    def as_record(self) -> dict[str, Any]:
        """Return it as plain data."""
        queues = [self._queue_record(one) for one in self.queues]
        workers = [{**asdict(one.sign), "state": one.state, "age": one.age} for one in self.workers]
        return {**asdict(self), "workers": workers, "queues": queues, "running": self.running, "slots": self.slots}


def look(app: Celery, *, sight: QueueSight) -> Fleet:
    """Look once: some ten round trips, whatever the number of workers. Raises what store and broker raise."""
    runtime = runtime_of(app)
    store = runtime.store
    moment = store.now()
    now = moment / _SECOND
    workers = tuple(_workers(store.notes, now=now))
    leader, members = leader_and_members(store.notes)
    names = sorted({*app.amqp.queues.consume_from, *_consumed(workers)})
    return Fleet(
        at=now,
        workers=workers,
        queues=tuple(_aged(sight.look(names, now=now), store.notes, app=app, now=now)),
        held=sight.held(),
        leader=leader,
        followers=tuple(one for token, one in members.items() if leader is None or token != leader.token),
        schedule=tuple(_schedule(store.notes)),
        breakers={name: one.phase(moment) for name, one in sorted(runtime.breakers.known().items())},
        deaths=_deaths(store),
    )


def _workers(notes: Notes, *, now: float) -> Iterator[WorkerState]:
    found = every(notes, SHELF)
    for note in sorted(found.values(), key=lambda one: one.name):
        try:
            yield WorkerState(LifeSign.from_json(note.value), max(now - note.version / _SECOND, 0.0))
        except ValueError:
            continue  # of a later version


def _aged(queues: Sequence[QueueState], notes: Notes, *, app: Celery, now: float) -> Iterator[QueueState]:
    """Say of queues whose messages the broker does not show how old the oldest may be, by what workers have told."""
    filled = [one.name for one in queues if one.waiting] if consumed_driver(app) == "amqp" else []
    stamps = ages.told(notes, filled) if filled else {}
    for one in queues:
        stamp = stamps.get(one.name)
        yield one if stamp is None else replace(one, oldest=max(now - stamp / _SECOND, 0.0))


def _consumed(workers: Iterable[WorkerState]) -> set[str]:
    return {queue for worker in workers for queue in (*worker.sign.queues, *worker.sign.stopped)}


def _schedule(notes: Notes) -> Iterator[Upcoming]:
    for name, note in sorted(every(notes, desk.SHELF).items()):
        try:
            record = SlotRecord.from_bytes(note.value)
        except ValueError:
            continue
        if not record.absent:
            following = None if record.following is None else record.following / _SECOND
            yield Upcoming(name, record.task, following, record.why or record.state)


def _deaths(store: Store) -> Deaths:
    counts = store.letter_counts()
    if not counts.get("kept"):
        return Deaths(counts)
    bodies = [body for _, _, body in store.letters(limit=_SAMPLE).letters[:_SAMPLE]]
    letters = [letter for letter in map(DeadLetter.read, bodies) if letter is not None and letter.status != "replayed"]
    return Deaths(counts, dict(Counter(letter.reason for letter in letters)), len(bodies))
