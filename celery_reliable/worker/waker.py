"""Wake the consumer of a green worker on Redis as soon as it may take a message again.

On gevent and eventlet there is no event loop: kombu sleeps in its poller for up to two seconds. With its prefetch count
used up it has no BRPOP pending, so nothing but the timeout ends that sleep: an ack in another greenlet frees a place and
nobody notices (kombu 5.7; about 2.5 tasks a second at a prefetch multiplier of 1).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery import bootsteps
from kombu.utils.eventio import READ

from celery_reliable import internals

_ENOUGH = 4096  # wake-ups that one read takes away; more of them than this mean one more round of the loop


class Alarm:
    """A socket pair that ends the sleep of a poller. `ring` never blocks, and does nothing once closed."""

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        """Open the pair."""
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 once closed."""
        return self._reader.fileno()

    def ring(self) -> None:
        """Make the descriptor readable."""
        with suppress(OSError):  # full: already ringing; closed: the connection is gone, and the sleeper with it
            self._writer.send(b"\0")

    def silence(self) -> None:
        """Make the descriptor unreadable again."""
        with suppress(OSError):
            self._reader.recv(_ENOUGH)

    def close(self) -> None:
        """Close both ends. May be called twice."""
        self._reader.close()
        self._writer.close()


class Waker(bootsteps.StartStopStep):
    """Ring an `Alarm` in the consumer's poller at each ack, reject and rise of the prefetch count.

    Only on green pools, only on Redis. Started again with every connection.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Begin without an alarm."""
        super().__init__(parent, **kwargs)
        self._alarm: Alarm | None = None
        self._poller: Any = None

    def include_if(self, parent: Any) -> bool:
        """Take part where the loop sleeps in kombu's poller and tasks run in greenlets beside it."""
        return bool(getattr(parent.pool, "is_green", False)) and parent.hub is None

    def start(self, parent: Any) -> None:
        """Hang the alarm into the poller of this connection."""
        if parent.connection.transport.driver_type != "redis":
            return
        cycle = parent.connection.transport.cycle
        self._alarm = alarm = Alarm()
        self._poller = cycle.poller
        if internals.pool_name(parent.pool) == "eventlet":
            internals.poll_open_sockets_only(cycle.poller)
        _listen(cycle, alarm=alarm)
        acks = parent.task_consumer.channel.qos
        acks.ack = _then_ring(acks.ack, alarm=alarm)
        acks.reject = _then_ring(acks.reject, alarm=alarm)
        parent.qos.increment_eventually = _then_ring(parent.qos.increment_eventually, alarm=alarm)

    def stop(self, parent: Any) -> None:
        """Take the alarm away. Late acks of this connection's messages may still ring it, to no effect."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            self._poller.unregister(alarm.fileno())
            alarm.close()

    def shutdown(self, parent: Any) -> None:
        """Stop; a consumer that failed to start is never stopped."""
        self.stop(parent)


def _listen(cycle: Any, *, alarm: Alarm) -> None:
    """Answer the alarm before kombu does, to which the descriptor is unknown: it would sweep for lost messages."""
    answer_others, ours = cycle.handle_event, alarm.fileno()

    def handle_event(fileno: int, event: int) -> Any:
        if fileno != ours:
            return answer_others(fileno, event)
        alarm.silence()
        return True

    cycle.handle_event = handle_event
    cycle.poller.register(ours, READ)


def _then_ring(call: Callable[..., Any], *, alarm: Alarm) -> Callable[..., Any]:
    def and_ring(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            alarm.ring()

    return and_ring
