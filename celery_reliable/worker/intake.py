"""Take in every message of the queue, also those that cannot run here: none is dropped, none ends the worker.

What Celery would be handed is inspected first. A message that can run goes on as if we were not there. Any other waits,
unacknowledged, for a thread of this worker: it parks or buries it, and then acks. While the store is away it stays
unacknowledged, counts towards the prefetch limit, and is tried again. The same thread brings parked messages back.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_reliable import internals
from celery_reliable.payloads import PARKED_HEADER, SIGNATURE_HEADER, RawMessage
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.waits import eta_here, wait_in
from celery_reliable.worker.broker import away
from celery_reliable.worker.consumer_timeout import FarEtas
from celery_reliable.worker.flags import draining
from celery_reliable.worker.inspection import Incoming, Refusal, inspect, unsigned
from celery_reliable.worker.queue_items import QueueItems
from celery_reliable.worker.refusals import Case, Later, Refusals
from celery_reliable.worker.unparking import Unparking, known_version

if TYPE_CHECKING:
    from kombu.message import Message

    from celery_reliable.signing import Signer

_EACH = 1.0  # seconds between two rounds
_LONGEST_WAIT = 15.0
# RabbitMQ closes a channel whose message stays unacknowledged for consumer_timeout, half an hour by default.
_LONGEST_HOLD = 600.0
# What a message that we let pass may still provoke in Celery's strategy, before there is a request.
_DATA_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

Handler = Callable[["Message"], Any]


class Intake(bootsteps.StartStopStep):
    """Put the inspection before Celery's handler, and the thread beside the consumer; see the module."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Replace the consumer's handlers before its task consumer takes them (Celery 5.7, ``Tasks.start``)."""
        super().__init__(parent, **kwargs)
        self._consumer = parent
        self._clerk: Clerk | None = None
        self._far_etas = FarEtas(parent)
        runtime = runtime_of(parent.app)
        self._doubt = Doubt(runtime, runtime.signer) if runtime.signer is not None else None
        stock = parent.create_task_handler
        parent.create_task_handler = lambda: self._inspecting(stock())
        parent.on_decode_error = self._on_decode_error
        parent.on_invalid_task = self._on_invalid_task
        parent.on_unknown_message = lambda _, message: self._refuse(message, self._inspected(message))
        parent.on_unknown_task = lambda _, message, __: self._refuse(message, self._inspected(message))

    def start(self, parent: Any) -> None:
        """Begin, or go on with the new connection."""
        if self._clerk is None:
            self._clerk = Clerk(parent)
            self._clerk.start()
        self._clerk.connected()

    def shutdown(self, parent: Any) -> None:
        """End the thread. What it has not settled is unacknowledged, so the broker gives it back."""
        clerk, self._clerk = self._clerk, None
        if clerk is not None:
            clerk.stop()

    # --- what Celery calls

    def _inspecting(self, stock: Handler) -> Handler:
        def on_task_received(message: Message) -> Any:
            refusal = self._inspected(message)
            if refusal is not None:
                return self._refuse(message, refusal)
            message.headers.pop(PARKED_HEADER, None)
            if message.headers.get("eta"):
                self._reckon_eta(message.headers)
                self._far_etas.look(str(message.headers.get("task")), message.headers["eta"])
            try:
                return stock(message)
            except _DATA_ERRORS as exc:
                if internals.is_taken(message):
                    raise
                return self._refuse(message, _invalid(message, exc))

        return on_task_received

    def _reckon_eta(self, headers: dict[str, Any]) -> None:
        """Set an ETA that another process's clock has written by ours, if the message says how long it waits."""
        wait = wait_in(headers)
        if wait is not None:
            store_now = runtime_of(self._consumer.app).store.known_now()
            headers["eta"] = eta_here(headers["eta"], wait, store_now=store_now, here=datetime.now(timezone.utc))

    def _on_decode_error(self, message: Message, exc: Exception) -> None:
        doubted = self._doubt.of(message) if self._doubt is not None else None
        self._refuse(message, doubted or inspect(Incoming(message.headers, None, _told(exc)), knows=self._knows))

    def _on_invalid_task(self, _body: Any, message: Message, exc: Exception) -> None:
        self._refuse(message, _invalid(message, exc))

    # --- what is done with it

    def _inspected(self, message: Message) -> Refusal | None:
        if self._doubt is not None and (refusal := self._doubt.of(message)) is not None:
            return refusal  # before its body is decoded
        return inspect(_read(message), knows=self._knows)

    def _knows(self, task: str) -> int | None:
        return known_version(self._consumer, task)

    def _refuse(self, message: Message, refusal: Refusal | None) -> None:
        refusal = refusal or _invalid(message, InvalidTaskError("refused by Celery"))
        queue = internals.queue_of(message, self._consumer.task_consumer)
        raw = RawMessage(queue=queue, **internals.raw_parts(message))
        assert self._clerk is not None  # noqa: S101  # started before anything is consumed
        self._clerk.take(Held(message, Case(raw, refusal, _name_of(message, refusal))))


class Doubt:
    """Believe no message that is not signed by a key of ours."""

    __slots__ = ("_runtime", "_signer")

    def __init__(self, runtime: Runtime, signer: Signer) -> None:
        """Take who verifies, and who is told."""
        self._runtime, self._signer = runtime, signer

    def of(self, message: Message) -> Refusal | None:
        """Return why a message is refused, None when it is believed. In the mode "warn" it goes on without its signature."""
        fault = self._signer.fault(message.headers, message.body, (message.content_type, message.content_encoding))
        if not fault:
            return None
        refusal = unsigned(message.headers, fault)
        if self._signer.enforces:
            return refusal
        facts = {"task": refusal.task, "task_id": refusal.task_id, "key": refusal.task_id, "reason": fault}
        self._runtime.events.emit("unsigned", **facts)
        if isinstance(message.headers, dict):
            message.headers.pop(SIGNATURE_HEADER, None)
        return None


@dataclass(slots=True)
class Held:
    """One message that waits to be settled, unacknowledged; ``due`` and ``since`` by the monotonic clock."""

    message: Message
    case: Case
    due: float = 0.0
    since: float = 0.0
    tries: int = 0


class Clerk:
    """The thread that settles what was refused, brings parked messages back, and buries those whose time is over."""

    def __init__(self, consumer: Any) -> None:
        """Take the consumer, whose connection may change at any time."""
        self._consumer = consumer
        self._runtime: Runtime = runtime_of(consumer.app)
        self._refusals = Refusals(consumer.app)
        self._unparking = Unparking(consumer, self._refusals)
        self._items = QueueItems(self._refusals, on_item=self._notice)
        self._held: deque[Held] = deque()
        self._bell = threading.Event()
        self._ended = False
        self._round_due = 0.0
        self._away: tuple[type[Exception], ...] = away()
        self._thread = threading.Thread(target=self._run, name="reliable-intake", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the present step end."""
        self._ended = True
        self._bell.set()
        self._thread.join(timeout=1.0)

    def connected(self) -> None:
        """Watch the new connection's channel; look for parked messages at once."""
        self._items.watch(self._consumer)
        self._round_due = 0.0
        self._bell.set()

    def take(self, held: Held) -> None:
        """Settle a message soon. Called in the consumer's thread, which does not wait."""
        held.since = time.monotonic()
        self._held.append(held)
        self._bell.set()

    def _notice(self) -> None:
        self._round_due = 0.0
        self._bell.set()

    def _run(self) -> None:
        while not self._ended:
            self._bell.clear()
            self._settle_due()
            if time.monotonic() >= self._round_due:
                self._round()
            self._bell.wait(_EACH if not self._has_due() else 0.0)

    def _has_due(self) -> bool:
        now = time.monotonic()
        return any(held.due <= now for held in list(self._held))

    # --- messages that this worker holds

    def _settle_due(self) -> None:
        for _ in range(len(self._held)):
            held = self._held.popleft()
            if self._ended:
                return
            if held.due > time.monotonic() or not self._settled(held):
                self._held.append(held)

    def _settled(self, held: Held) -> bool:
        """Settle one message and ack it; False when it has to be tried again."""
        if _is_gone(held.message):
            return True
        try:
            self._refusals.settle(held.case)
        except Later as later:
            return self._postponed(held, later.seconds)
        except self._away:
            held.tries += 1
            wait = self._runtime.random.uniform(0.0, min(_LONGEST_WAIT, 0.5 * 2 ** min(held.tries, 5)))
            self._tell_away(held, wait)
            return self._postponed(held, wait)
        except Exception:  # a message may hold what nobody thought of: it stays, and so does this thread
            _logger.exception("a message that cannot run could not be settled either; it is tried again")
            return self._postponed(held, _LONGEST_WAIT)
        self._consumer.call_soon_ack(_ack, held.message, self._consumer.connection_errors)
        return True

    def _postponed(self, held: Held, seconds: float) -> bool:
        """Wait on; a message held for ten minutes, or at the worker's end, is given back and received again."""
        held.due = time.monotonic() + seconds
        if held.due - held.since < _LONGEST_HOLD and not draining():
            return False
        self._consumer.call_soon_ack(_give_back, held.message, self._consumer.connection_errors)
        return True

    def _tell_away(self, held: Held, wait: float) -> None:
        refusal = held.case.refusal
        facts = {"task": refusal.task, "task_id": refusal.task_id, "key": refusal.task_id or held.case.name}
        self._runtime.events.emit("store_unavailable", **facts, verb="park", wait=wait)

    # --- the fleet's

    def _round(self) -> None:
        self._round_due = time.monotonic() + _EACH
        if draining():
            return
        try:
            self._items.settle()
            if self._unparking.look():
                self._round_due = 0.0
        except Later:
            return  # an expired message whose job runs: looked at again
        except self._away:
            return  # looked at again in the next round
        except Exception:  # the thread has other work, too
            _logger.exception("parked messages could not be looked at")


def _read(message: Message) -> Incoming:
    try:
        return Incoming(message.headers, message.decode())
    except Exception as exc:  # noqa: BLE001  # a decoder's error, whatever it is
        return Incoming(message.headers, None, _told(exc))


def _invalid(message: Message, exc: Exception) -> Refusal:
    """Refuse what Celery could not take although it looked well."""
    incoming = _read(message)
    known = inspect(Incoming(incoming.headers, incoming.body, incoming.failure or _told(exc)), knows=lambda _: None)
    assert known is not None  # noqa: S101  # a failure is always refused
    return Refusal(
        "undecodable" if isinstance(exc, DecodeError | ContentDisallowed) else "invalid",
        _told(exc),
        known.task,
        known.task_id,
    )


def _told(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:500]


def _name_of(message: Message, refusal: Refusal) -> str:
    """Return what is the same when the message comes again, as far as its broker gives it such a name."""
    given = message.properties.get("message_id") or message.properties.get("delivery_tag")
    return refusal.task_id or str(given or uuid.uuid4())


def _is_gone(message: Message) -> bool:
    """Tell whether a message's connection is lost: the broker gives it to somebody again."""
    return getattr(message.channel, "connection", None) is None


def _ack(message: Message, errors: tuple[type[Exception], ...]) -> None:
    if not _is_gone(message):
        message.ack_log_error(_logger, errors)


def _give_back(message: Message, errors: tuple[type[Exception], ...]) -> None:
    try:
        if not _is_gone(message):
            internals.give_back(message)
    except errors:
        return  # the broker restores what a lost connection held


_logger = get_logger(__name__)
