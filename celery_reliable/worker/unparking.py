"""Bring parked messages back to their queues, and bury those for which nobody came."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery_reliable import internals, keys
from celery_reliable.parking import Kind, Taken
from celery_reliable.payloads import PARKED_HEADER
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.worker.refusals import Case, Refusals

_BATCH = 50  # messages that go back in one round, so that a backlog of them does not flood the queue
_ROLE_TTL = 5.0
_EXPIRY_EACH = (1.0, 300.0)  # seconds between two looks for messages whose time is over: at least, at most
_PARTS = 20  # ... and a twentieth of that time in between


_UNFIT = (TypeError, ValueError, LookupError, AttributeError)  # what a property that the broker cannot take provokes


class Unparking:
    """What the fleet does with its parked messages: each worker that comes up, and then one capable worker for each kind.

    A message is published to its own queue, confirmed, then forgotten. Whoever dies in between leaves a message that
    another worker publishes again after ten seconds: a `ReliableTask` runs once all the same.
    """

    def __init__(self, consumer: Any, refusals: Refusals) -> None:
        """Take the consumer, whose queues may change at any time."""
        self._consumer = consumer
        self._runtime: Runtime = runtime_of(consumer.app)
        self._refusals = refusals
        self._parking = refusals.parking
        self._token = keys.new_token()
        self._expiry_due = 0.0
        self._since_up: float | None = None
        """By the store's clock; 0 once all was brought back that had waited for this worker."""

    def look(self) -> bool:
        """Do one round; True when there may be more to do at once."""
        self._bury_expired()
        if not self._queues():  # it consumes nothing yet
            return False
        if self._since_up is None:
            self._since_up = self._parking.now()
        runnable = [
            kind
            for kind in self._parking.kinds()
            if self._can_run(kind) and (self._since_up or self._leads(f"unpark.{kind.name}"))
        ]
        taken = self._parking.take(runnable, limit=_BATCH, since_up=self._since_up) if runnable else []
        if taken:
            self._publish(taken)
        if len(taken) == _BATCH:
            return True
        self._since_up = 0.0
        return False

    def _can_run(self, kind: Kind) -> bool:
        known = known_version(self._consumer, kind.task)
        return known is not None and known >= kind.version and kind.queue in self._queues()

    def _queues(self) -> set[str]:
        task_consumer = self._consumer.task_consumer
        return {queue.name for queue in task_consumer.queues} if task_consumer is not None else set()

    def _leads(self, role: str) -> bool:
        answer = self._runtime.store.lead(
            role, token=self._token, ttl=_ROLE_TTL, pulse_ttl=self._runtime.settings.lease_ttl
        )
        return answer != "no"

    def _publish(self, taken: list[Taken]) -> None:
        with self._consumer.app.connection_for_write() as connection:
            connection.connect()
            channel = connection.default_channel
            for one in taken:
                self._publish_one(channel, one)

    def _publish_one(self, channel: Any, one: Taken) -> None:
        """Publish, then forget; a message that cannot be published does not keep the others, and becomes a letter in time."""
        raw, spared = one.parked.message, bool(self._since_up)  # older workers may take up what waited for a new one
        try:
            internals.put_back(channel, raw, headers={**raw.headers, PARKED_HEADER: one.parked.header(spared=spared)})
        except _UNFIT:
            _logger.exception("a parked message cannot be published", extra={"reliable_task_id": one.parked.task_id})
            return
        self._tell(one)
        self._parking.forget([one])

    def _tell(self, taken: Taken) -> None:
        parked = taken.parked
        facts = {"task": parked.kind.task, "task_id": parked.task_id, "key": parked.task_id, "queue": parked.kind.queue}
        self._runtime.events.emit("unparked", **facts, waited=self._parking.now() - parked.since)

    def _bury_expired(self) -> None:
        """Look through all parked messages now and then; one worker of the fleet does."""
        if time.monotonic() < self._expiry_due or not self._leads("unpark.expiry"):
            return
        shortest, longest = _EXPIRY_EACH
        pause = min(max(self._runtime.settings.park_ttl / _PARTS, shortest), longest)
        taken = self._parking.take_expired(limit=_BATCH)
        for one in taken:
            self._refusals.bury(Case.of(one.parked))
            self._parking.forget([one])
        self._expiry_due = time.monotonic() + (0.0 if len(taken) == _BATCH else pause)


def known_version(consumer: Any, task: str) -> int | None:
    """Return the payload version that this worker's code has of a task, None for one that it does not consume."""
    if task not in consumer.strategies:
        return None
    return int(getattr(consumer.app.tasks.get(task), "payload_version", None) or 1)


_logger = logging.getLogger("celery_reliable")
