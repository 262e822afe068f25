"""Know every message that this worker holds, and hand back those whose task has not begun."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from celery_reliable import internals

if TYPE_CHECKING:
    from celery_reliable.worker.drain.step import Drain

logger = logging.getLogger(__name__)

_TICK = 0.1
_SLICE = 0.2  # seconds of giving back at a time
_AT_ONCE = 200  # messages between two looks at the clock
_AT_ONCE_OF_QUEUES = 1000  # messages of stopped queues that are given back in one turn of the loop
_LONGEST_READ = 0.2  # seconds that a loop without a hub waits for the broker before it looks up

# eventlet (0.41) says so of a socket that broke while it was polled; Celery (5.7) would end the worker with code 1.
_BROKEN_SOCKET = "Second simultaneous read"


class HandOver(bootsteps.StartStopStep):
    """The consumer's part of a drain, begun anew with every connection.

    It runs in the thread that owns the broker connection: on a hub in the event loop, on threads and solo between two
    reads, on green pools in a greenlet of its own, because there the loop may wait for a free slot.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Watch what the consumer receives, and get into its loop."""
        super().__init__(parent, **kwargs)
        self.consumer = parent
        self.connected = False
        self.done = False
        self._held: dict[int, Any] = {}
        self._prune_above = 64
        self._handed_back: set[int] = set()
        self._to_return: deque[Any] = deque()
        self._green = bool(getattr(parent.pool, "is_green", False))
        self._drain: Drain = parent.controller.reliable_drain
        self._drain.handover = self
        parent.create_task_handler = self._watching(parent.create_task_handler)
        if parent.hub is None:
            parent.loop = self._looking_up(parent.loop)

    def create(self, parent: Any) -> HandOver:
        """Get into the remote control, now that all steps are made: ``shutdown`` drains, green pools read in short."""
        control = parent.blueprint.steps.get("celery.worker.consumer.control.Control")
        if control is None:
            return self
        node = control.box.node
        node.handlers = {**node.handlers, "shutdown": self._shutdown}
        if self._green:
            start = control.start
            control.start = lambda consumer: start(_ShortReads(consumer))
        return self

    def _shutdown(self, _state: Any, msg: str = "Got shutdown from remote", **_: Any) -> None:
        """Drain instead of what ``app.control.shutdown()`` does in Celery (5.7): raise WorkerShutdown in the loop."""
        logger.warning(msg)
        self._drain.begin()

    # --- the consumer's life

    def start(self, parent: Any) -> None:
        """Begin with no message: what the last connection held is the broker's again."""
        self._held.clear()
        self._handed_back.clear()
        self._to_return.clear()
        self.done, self.connected = False, True
        if self._drain.course.began is not None:
            parent.task_consumer.consume = _nothing
        if self._green:
            self._drain.tick_in_a_greenlet()

    def stop(self, parent: Any) -> None:
        """Forget what the connection held that is gone, or about to go."""
        self.connected = False
        self._held.clear()
        self._to_return.clear()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Tick on the hub. Celery asks with each new connection, and cancels the timers of the last one."""
        hub.call_repeatedly(_TICK, self._drain.tick)

    # --- what it holds

    def _watching(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_task_handler(*args: Any, **kwargs: Any) -> Any:
            handle = create(*args, **kwargs)

            def on_message(message: Any) -> Any:
                if self._drain.course.began is not None:
                    return self._return([message])
                self._hold(message)
                return handle(message)

            return on_message

        return create_task_handler

    def _hold(self, message: Any) -> None:
        self._held[id(message)] = message
        if len(self._held) > self._prune_above:
            self._prune()
            self._prune_above = max(64, 2 * len(self._held))

    def _prune(self) -> None:
        for number, message in list(self._held.items()):
            if message.acknowledged:
                del self._held[number]

    def held(self) -> list[Any]:
        """Return the messages that are neither acked nor given back, oldest first."""
        return [message for message in list(self._held.values()) if not message.acknowledged]

    def is_handed_back(self, message: Any) -> bool:
        """Whether a task must not begin any more. Once a message is back it says so itself."""
        return id(message) in self._handed_back or message._state == "REQUEUED"  # noqa: SLF001  # kombu's Message (5.7)

    # --- hand back

    def hand_back(self) -> None:
        """Stop consuming, then give back every message whose task has not begun, the newest first.

        Each goes to the end from which the queue is read, so the oldest is read first again. Thousands are given back
        in slices, one a tick, so that acks and heartbeats go on: first what could run now, then what waits for its time.
        """
        if not self.connected:
            return
        if not self.done:
            self.done = True
            self._cancel_consumer()
            self._to_return.extend(self._take_all())
        elif not self._to_return:
            return
        self._return_some()
        if not self._to_return:
            logger.info("drain: messages handed back", extra={"reliable_count": len(self._handed_back)})

    def _take_all(self) -> list[Any]:
        requests = {id(request.message): request for request in _known_requests()}
        self._forget_waiting()
        taken: tuple[list[Any], list[Any]] = [], []
        for message in reversed(self.held()):
            request = requests.get(id(message))
            if self._take(message, request):
                taken[request in state.scheduled_requests].append(message)
                self._forget(request)
        return taken[0] + taken[1]

    def hand_back_from(self, queues: Collection[str], *, cancelled: Mapping[str, str]) -> None:
        """Give back what came from some queues and has not begun, the newest first, while this worker goes on.

        Of thousands some in each call. ``cancelled`` has queues by tag that are not consumed any more.
        """
        if not self.connected or self._drain.course.began is not None:
            return
        requests = {id(request.message): request for request in _known_requests()}
        taken: list[Any] = []
        for message in reversed(self.held()):
            if internals.queue_of(message, self.consumer.task_consumer, cancelled=cancelled) not in queues:
                continue
            request = requests.get(id(message))
            if self._take(message, request):
                taken.append(message)
                if request is not None and internals.raised_prefetch(self.consumer, request):
                    self.consumer.qos.decrement_eventually()
                self._forget(request)
            if len(taken) == _AT_ONCE_OF_QUEUES:
                break
        gone = set(map(id, taken))
        internals.forget_waiting(self.consumer, gone)
        self._return(taken)
        self._handed_back -= gone  # an id may be another message's soon

    def _return_some(self) -> None:
        """Return a slice; on solo everything, because there the next tick may come after a long body only."""
        until = time.monotonic() + (math.inf if self._drain.kind == "solo" else _SLICE)
        while self._to_return and time.monotonic() < until:
            self._return([self._to_return.popleft() for _ in range(min(_AT_ONCE, len(self._to_return)))])

    def _take(self, message: Any, request: Any) -> bool:
        """Decide, against the pool's own decision to begin, that a task does not begin."""
        with self._drain.gate.lock:
            if self._drain.gate.has_begun(request):
                return False
            self._handed_back.add(id(message))
            return True

    def _cancel_consumer(self) -> None:
        """On AMQP green pools another greenlet reads: do not wait for the answer."""
        consumer, channel = self.consumer.task_consumer, self.consumer.task_consumer.channel
        consumer.consume = _nothing
        if self._green and self.consumer.connection.transport.driver_type == "amqp":
            for tag in list(consumer._active_tags.values()):  # noqa: SLF001  # what `Consumer.cancel` (kombu 5.7) reads
                channel.basic_cancel(tag, nowait=True)
            consumer._active_tags.clear()  # noqa: SLF001
            return
        consumer.cancel()
        internals.keep_late_arrivals_near(channel)

    def _forget_waiting(self) -> None:
        """Empty what would begin tasks later: requests that wait for a slot or for their rate limit."""
        semaphore = getattr(self.consumer.controller, "semaphore", None)
        if semaphore is not None:
            semaphore.clear()
        for bucket in list(self.consumer.task_buckets.values()):
            if bucket is not None:
                bucket.clear_pending()

    def _forget(self, request: Any) -> None:
        if request is None:
            return
        request.acknowledged = True
        if request._eta_timer_entry is not None:  # noqa: SLF001  # set by the strategy (5.7) for this purpose
            self.consumer.timer.cancel(request._eta_timer_entry)  # noqa: SLF001
        state.task_ready(request)
        state.scheduled_requests.discard(request)

    def _return(self, messages: Sequence[Any]) -> None:
        with suppress(*self.consumer.connection_errors):  # the broker restores what a lost connection held
            internals.give_back_all(messages)

    def return_running(self, request: Any) -> None:
        """Give back the message of a task that was ended from outside."""
        request.acknowledged = True
        state.task_ready(request)
        self._return([request.message])

    # --- loops without a hub

    def _looking_up(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        look_up = _nothing if self._green else self._drain.tick

        def looking_up(consumer: Any, connection: Any, *args: Any, **kwargs: Any) -> Any:
            return loop(consumer, _Reading(connection, look_up=look_up), *args, **kwargs)

        return looking_up


class _ShortReads:
    """A consumer to a greenlet that reads remote control commands, and for whose last read the end has to wait."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def connection_for_read(self, *args: Any, **kwargs: Any) -> Any:
        return _Reading(self._consumer.connection_for_read(*args, **kwargs))


class _Reading:
    """A connection whose reads are short."""

    def __init__(self, connection: Any, *, look_up: Callable[[], None] | None = None) -> None:
        self._connection, self._look_up = connection, look_up or _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __enter__(self) -> _Reading:  # noqa: PYI034  # Self comes with Python 3.11
        self._connection.__enter__()
        return self

    def __exit__(self, *facts: object) -> None:
        self._connection.__exit__(*facts)

    def drain_events(self, timeout: float | None = None, **kwargs: Any) -> Any:
        self._look_up()
        short = _LONGEST_READ if timeout is None else min(timeout, _LONGEST_READ)
        try:
            return self._connection.drain_events(timeout=short, **kwargs)
        except RuntimeError as exc:
            if _BROKEN_SOCKET not in str(exc):
                raise
            raise ConnectionResetError(str(exc)) from exc


def _known_requests() -> Iterator[Any]:
    """Return requests that run, wait for a slot or wait for their time. Those that wait for their rate are in no set."""
    yield from list(state.requests.values())
    for known in (state.reserved_requests, state.active_requests, state.scheduled_requests):
        yield from list(known)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what must not happen any more."""
