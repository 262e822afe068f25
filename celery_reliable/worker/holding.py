"""Keep messages that have to wait, and give back those that cannot run here."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from celery_reliable import internals
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.consumer_timeout import timeout_of
from celery_reliable.worker.flags import draining
from celery_reliable.worker.rescue import free_holder

if TYPE_CHECKING:
    from celery_reliable.worker.request import ReliableRequest
    from celery_reliable.worker.waiting import Hold

_SHARE = 3  # RabbitMQ closes the channel of a message that is out for its consumer_timeout: held for a third of that


class Holding(bootsteps.StartStopStep):
    """Let a message wait in this worker as an ETA does: unacknowledged, in no pool slot, without a publish.

    When the connection is lost the broker has the message anyway, and Celery cancels the timer.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Offer itself to the requests of this app."""
        super().__init__(parent, **kwargs)
        self.consumer = parent
        self._runtime = runtime_of(parent.app)
        self._runtime.holding = self
        self._gone: Collection[str] = ()

    def start(self, parent: Any) -> None:
        """Nothing to start: the consumer's timer does the waiting."""

    def hold(self, request: ReliableRequest, hold: Hold) -> None:
        """Run the request again after the hold; give it back in a drain, and on AMQP in time (by default ten minutes)."""
        if draining():
            self.give_back(request)
            return
        seconds = 0.01 if self._waits_for_nobody(request, hold) else max(hold.seconds, 0.01)
        longest = self._longest()
        if request.held_for + seconds > longest:
            self._later(longest - request.held_for, self.give_back, request)
            return
        request.held_for += seconds
        if hold.counted:
            self.consumer.qos.increment_eventually()
            self._later(seconds, self.consumer.apply_eta_task, request)
            return
        self._later(seconds, self._run_again, request)

    def expect_leases_of(self, owners: Collection[str]) -> None:
        """Take the owners whose processes are gone: a message that meets a lease of theirs waits no longer."""
        self._gone = owners

    def _waits_for_nobody(self, request: ReliableRequest, hold: Hold) -> bool:
        """End the lease that a returned message has met, if its holder is gone."""
        if not self._gone or hold.why != "busy" or not internals.is_redelivered(request.message):
            return False
        return free_holder(self._runtime, request.job, gone=self._gone)

    def _later(self, seconds: float, action: Any, request: ReliableRequest) -> None:
        request._eta_timer_entry = self.consumer.timer.call_after(max(seconds, 0.01), action, (request,))  # noqa: SLF001  # what the strategy sets (5.7), so that on_close can cancel it
        state.task_scheduled(request)

    def _run_again(self, request: ReliableRequest) -> None:
        state.task_reserved(request)
        self.consumer.on_task_request(request)

    def give_back(self, request: ReliableRequest, *, after: float = 0.0) -> None:
        """Return the message to the near end of its queue, in the consumer's own thread."""
        if request.acknowledged:
            return
        if after and not draining():
            self._later(after, self.give_back, request)
            return
        request.acknowledged = True
        state.task_ready(request)
        if self.consumer.hub is not None:
            self._give_back(request)
            return
        self.consumer.call_soon(self._give_back, request)

    def _give_back(self, request: ReliableRequest) -> None:
        try:
            internals.give_back(request.message)
        except self.consumer.connection_errors:
            return  # the broker restores what a lost connection held

    def _longest(self) -> float:
        """Return for how long the broker lets a message wait."""
        consumer = self.consumer
        if consumer.connection.transport.driver_type != "amqp":
            return inf
        return timeout_of(consumer.task_consumer.queues) / _SHARE
