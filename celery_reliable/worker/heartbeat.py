"""Say, only upon evidence, that this worker works: in a file for probes, and in the store for the fleet.

A thread looks every ``reliable_heartbeat_interval``: whether the consumer's loop turned since, whether broker and store
answer, and whether messages wait that this worker has room for and does not receive. While the loop stands still without
an excuse there is no sign of life: the file grows old, and the probe fails.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import celery
import kombu
from celery import bootsteps, signals
from celery.utils.nodenames import node_format
from celery.worker import state

import celery_reliable
from celery_reliable import internals, probe
from celery_reliable.errors import StoreError
from celery_reliable.heartbeats import SHELF, HeartbeatFile, LifeSign, Process
from celery_reliable.runtime import consumed_place, runtime_of
from celery_reliable.sight import Sight, sight_for
from celery_reliable.stores.notes import Write
from celery_reliable.worker import flags
from celery_reliable.worker.evidence import Evidence, LoopWatch, StuckWatch, state_of

if TYPE_CHECKING:
    from celery_reliable.runtime import Runtime
    from celery_reliable.settings import Settings
    from celery_reliable.worker.healthz import Healthz, Last

_TURN = 0.5  # seconds between two timers in an event loop
_SOON = 1.0  # seconds until the next look when there was no sign
_AFTER_LIMIT = 30.0  # seconds that a time limit has to take effect
_BEATS = 3  # looks at which a worker consumes nothing until it is stuck; signs that may be missed
_SHORTEST_NOTE = 60.0
_ACTIVE_ELSEWHERE = "x-single-active-consumer"


class Heartbeat(bootsteps.StartStopStep):
    """Watch the consumer's loop on every pool, through every reconnect.

    The signs begin with the consumer's first attempt to connect, and end with the worker: the file is removed when the
    last task has ended, not when the worker is told to stop.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Hang the watch into the consumer."""
        super().__init__(parent, **kwargs)
        settings = runtime_of(parent.app).settings
        self._loop = LoopWatch(patience=2 * settings.heartbeat_interval)
        self._signs = Signs(parent, loop=self._loop)
        parent.start = _first(self._signs.begin, parent.start)
        parent.create_task_handler = _counting(parent.create_task_handler, count=self._signs.receive)
        signals.worker_shutdown.connect(self._end, sender=parent.controller, weak=False)

    def start(self, parent: Any) -> None:
        """Take the new connection."""
        if self._signs.are_probed:
            self._signs.sight = sight_for(parent)
        if parent.hub is None:  # the loop of green pools, which waits in drain_events for two seconds at most
            parent.connection.drain_events = _first(self._loop.turn, parent.connection.drain_events)

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Turn with the loop of this connection: Celery cancels the timers of the last one."""
        hub.call_soon(self._loop.turn)
        hub.call_repeatedly(_TURN, self._loop.turn)

    def _end(self, **_: Any) -> None:
        signals.worker_shutdown.disconnect(self._end)
        self._signs.end()


class Signs:
    """Give the worker's signs of life, in a thread."""

    def __init__(self, consumer: Any, *, loop: LoopWatch) -> None:
        """Take the consumer, whose connection may change at any time."""
        self._consumer = consumer
        self._runtime: Runtime = runtime_of(consumer.app)
        self._interval = self._runtime.settings.heartbeat_interval
        self._loop = loop
        self._stuck = StuckWatch(after=_BEATS * self._interval)
        self._process = Process.current()
        self._broker = consumed_place(consumer.app)
        self._began = self._drained = float("inf")
        self._received = self._counted = 0
        self._publication = Publication(self._runtime, node=consumer.hostname)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._used_sight: Sight | None = None
        self._withheld = False
        self.sight: Sight | None = None
        """The view of the present broker; set by the consumer's thread, used by ours."""

    @property
    def are_probed(self) -> bool:
        """Whether anybody may ask, so that a connection of its own to the broker is worth its price."""
        settings = self._runtime.settings
        return bool(settings.heartbeat_file or settings.healthz_socket or settings.healthz_port)

    def receive(self) -> None:
        """Count a message, in the consumer's thread."""
        self._received += 1

    def begin(self) -> None:
        """Start the thread. Pool children were forked by now."""
        if self._thread is None:
            self._began = time.monotonic()
            self._publication.open()
            self._thread = threading.Thread(target=self._run, name="reliable-heartbeat", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Let the thread take the signs back. One that waits for a dead server is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_SOON)
        self._publication.close()

    def _run(self) -> None:
        pause = _SOON / 4
        while not self._stop.wait(pause):
            pause = self._interval if self.beat() else min(_SOON, self._interval)
        self._publication.withdraw()

    def beat(self) -> bool:
        """Look once. Return whether there was a sign."""
        received, self._counted = self._received - self._counted, self._received
        waiting = self._look()
        seen = self._evidence(waiting, received=received)
        if not self._lives(seen):
            return False
        self._withheld = False
        self._publication.publish(self._sign(seen, waiting), seen)
        return True

    # --- looking

    def _look(self) -> int | None:
        """Return how many messages wait; None when the broker is away, or never was there."""
        if self.sight is not self._used_sight:
            if self._used_sight is not None:
                self._used_sight.close()
            self._used_sight = self.sight
        if self._used_sight is None:
            return 0 if self._consumer.connection is not None else None
        return self._used_sight.look(_queues(self._consumer, watched=True))

    def _evidence(self, waiting: int | None, *, received: int) -> Evidence:
        slots, running = int(self._consumer.pool.num_processes or 0), len(internals.active_requests())
        room = running < slots and self._consumer.task_consumer is not None and internals.has_room(self._consumer)
        now = time.monotonic()
        return Evidence(
            draining=flags.draining() or state.should_stop is not None or state.should_terminate is not None,
            broker=waiting is not None or received > 0,
            store=True,
            stuck=self._stuck.look(now=now, waiting=waiting or 0, room=room, received=received),
            running=running,
            slots=slots,
            received=received,
        )

    def _lives(self, seen: Evidence) -> bool:
        """Tell whether the loop turns, or may stand still now."""
        if self._is_excused(seen):
            self._loop.excuse()
        if self._loop.lives(connected=self._consumer.connection is not None):
            return True
        still = self._loop.still_for()
        if not self._withheld and still < float("inf"):
            self._withheld = True
            self._runtime.events.emit("heartbeat_withheld", node=self._consumer.hostname, still=still)
        return False

    def _is_excused(self, seen: Evidence) -> bool:
        now = time.monotonic()
        if seen.draining:  # the consumer has ended, the pool ends its tasks
            self._drained = min(self._drained, now)
            return now - self._drained <= self._runtime.settings.drain_timeout + _AFTER_LIMIT
        if not seen.broker:  # at the start: give it a moment to connect
            return now - self._began >= self._interval
        alone = internals.pool_name(self._consumer.pool) == "solo"  # its tasks run in the loop's thread
        return alone and any(self._loop.still_for() <= self._longest(one) for one in internals.active_requests())

    def _longest(self, request: Any) -> float:
        limit = request.time_limits[0] or request.task.time_limit
        return float(limit) + _AFTER_LIMIT if limit else self._runtime.settings.max_runtime

    def _sign(self, seen: Evidence, waiting: int | None) -> LifeSign:
        consumer = self._consumer
        return LifeSign(
            role="worker",
            node=consumer.hostname,
            state=state_of(seen),
            owner=self._runtime.owner,
            process=self._process,
            at=time.time(),
            clock=time.monotonic(),
            interval=self._interval,
            queues=tuple(_queues(consumer)),
            pool=internals.pool_name(consumer.pool),
            concurrency=seen.slots,
            running=seen.running,
            received=self._received,
            waiting=waiting if self._used_sight is not None else None,
            busy=_busy(consumer),
            stopped=tuple(sorted(self._runtime.stopped_queues)),
            runtimes=self._runtime.runs.runtimes(),
            ended=self._runtime.runs.lately(now=time.monotonic()),
            versions=_VERSIONS,
            broker=self._broker,
            probed=self.are_probed,
        )


class Publication:
    """Where the signs of life go: the store, the file, the answers to HTTP probes."""

    def __init__(self, runtime: Runtime, *, node: str) -> None:
        """Take the names; nothing is written yet."""
        self._runtime = runtime
        self._node = node
        settings = runtime.settings
        path = settings.heartbeat_file and node_format(settings.heartbeat_file, node)
        self._file = HeartbeatFile(path) if path else None
        self._healthz = list(_healthz(settings, node=node, last=lambda: self.last))
        self._closing = threading.Lock()
        self._closed = self._noted = False
        self._said: dict[str, str] = {}
        self.last: LifeSign | None = None

    def open(self) -> None:
        """Begin to answer HTTP probes; what cannot be opened now is tried again at each sign."""
        for healthz in self._healthz:
            try:
                healthz.open()
            except OSError as exc:
                self._say_once("healthz_failed", str(healthz.address), error=str(exc))

    def publish(self, sign: LifeSign, seen: Evidence) -> None:
        """Write the sign: to the store, which thereby answers, then to the file."""
        self._noted = self._note(sign)
        if not self._noted:
            sign = replace(sign, state=state_of(replace(seen, store=False)))
        self._tell_change(sign)
        self.last = sign = replace(sign, runtimes={}, ended={})
        with self._closing:
            if self._closed:
                return
            self.open()
            if self._file is not None:
                self._write(self._file, sign)

    def withdraw(self) -> None:
        """Take the note back. Not from a store that was away: it expires."""
        if self._noted:
            self._write_note(Write(name=self._runtime.owner, value=None, ttl=1.0))

    def close(self) -> None:
        """Remove the file and stop to answer. May be called twice."""
        with self._closing:
            self._closed = True
            if self._file is not None:
                self._file.remove()
            for healthz in self._healthz:
                healthz.close()

    def _note(self, sign: LifeSign) -> bool:
        ttl = max(_SHORTEST_NOTE, (_BEATS + 1) * sign.interval)
        return self._write_note(Write(name=sign.owner, value=sign.to_json().encode(), ttl=ttl))

    def _write_note(self, note: Write) -> bool:
        try:
            self._runtime.store.notes.write(SHELF, [note])
        except StoreError:
            return False
        return True

    def _tell_change(self, sign: LifeSign) -> None:
        """Tell when the worker begins or ceases to take work; not of each task that comes and goes."""
        before = "starting" if self.last is None else self.last.state
        if (before in (*probe.READY, "starting")) != (sign.state in probe.READY):
            self._runtime.events.emit("worker_state", node=self._node, state=sign.state, before=before)

    def _write(self, file: HeartbeatFile, sign: LifeSign) -> None:
        path = str(file.path)
        try:
            keeper = file.write(sign)
        except OSError as exc:
            self._say_once("heartbeat_unwritten", path, error=str(exc))
            return
        if keeper is not None:
            self._say_once("heartbeat_shared", path, node=self._node, keeper=keeper.node)
            return
        self._said.pop(path, None)

    def _say_once(self, event: str, place: str, **facts: Any) -> None:
        """Tell of a fault when it begins or changes, not at every beat."""
        said = repr((event, facts))
        if self._said.get(place) != said:
            self._said[place] = said
            self._runtime.events.emit(event, place=place, **facts)


_VERSIONS = {
    "celery_reliable": celery_reliable.__version__,
    "celery": celery.__version__,
    "kombu": kombu.__version__,
    "python": platform.python_version(),
}


def _healthz(settings: Settings, *, node: str, last: Last) -> Iterator[Healthz]:
    if not (settings.healthz_socket or settings.healthz_port):
        return
    from celery_reliable.worker.healthz import Healthz  # noqa: PLC0415  # an HTTP server is a megabyte

    if settings.healthz_socket:
        yield Healthz(node_format(settings.healthz_socket, node), last=last)
    if settings.healthz_port:
        yield Healthz((settings.healthz_host, settings.healthz_port), last=last)


def _queues(consumer: Any, *, watched: bool = False) -> list[str]:
    """Return the queues that are consumed now; ``watched``: those whose messages this worker must receive.

    Of a queue with a single active consumer another worker may be the one that receives.
    """
    if consumer.task_consumer is None:
        return []
    queues = list(consumer.task_consumer.queues)
    return [one.name for one in queues if not (watched and (one.queue_arguments or {}).get(_ACTIVE_ELSEWHERE))]


def _busy(consumer: Any) -> dict[str, int]:
    """Count what runs by queue; of a queue that is not consumed any more by its routing key."""
    queues = list(consumer.task_consumer.queues) if consumer.task_consumer is not None else []
    names = {(one.exchange.name if one.exchange else "", one.routing_key): one.name for one in queues}
    infos = [one.delivery_info or {} for one in internals.active_requests()]
    origins = [(info.get("exchange") or "", info.get("routing_key") or "") for info in infos]
    return dict(Counter(names.get(origin, origin[1]) for origin in origins))


def _first(action: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def acting(*args: Any, **kwargs: Any) -> Any:
        action()
        return call(*args, **kwargs)

    return acting


def _counting(make: Callable[..., Any], *, count: Callable[[], None]) -> Callable[..., Any]:
    """Wrap what makes the handler of messages, so that it counts each of them."""

    def make_counting(*args: Any, **kwargs: Any) -> Any:
        return _first(count, make(*args, **kwargs))

    return make_counting
