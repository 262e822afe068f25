"""Keep messages that have to wait, and give back those that cannot run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from celery_reliable import internals
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.flags import draining

if TYPE_CHECKING:
    from celery_reliable.worker.request import ReliableRequest
    from celery_reliable.worker.waiting import Hold

# RabbitMQ closes a channel whose message stays unacknowledged for consumer_timeout, half an hour by default.
_LONGEST_AMQP_HOLD = 600.0


class Holding(bootsteps.StartStopStep):
    """Let a message wait in this worker as an ETA does: unacknowledged, in no pool slot, without a publish.

    When the connection is lost the broker has the message anyway, and Celery cancels the timer.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Offer itself to the requests of this app."""
        super().__init__(parent, **kwargs)
        self.consumer = parent
        runtime_of(parent.app).holding = self

    def start(self, parent: Any) -> None:
        """Nothing to start: the consumer's timer does the waiting."""

    def hold(self, request: ReliableRequest, hold: Hold) -> None:
        """Run the request again after the hold; give it back in a drain, and on AMQP after ten minutes in all."""
        if draining():
            self.give_back(request)
            return
        seconds = max(hold.seconds, 0.01)
        if self._is_amqp() and request.held_for + seconds > _LONGEST_AMQP_HOLD:
            self._later(_LONGEST_AMQP_HOLD - request.held_for, self.give_back, request)
            return
        request.held_for += seconds
        if hold.counted:
            self.consumer.qos.increment_eventually()
            self._later(seconds, self.consumer.apply_eta_task, request)
            return
        self._later(seconds, self._run_again, request)

    def _later(self, seconds: float, action: Any, request: ReliableRequest) -> None:
        request._eta_timer_entry = self.consumer.timer.call_after(max(seconds, 0.01), action, (request,))  # noqa: SLF001  # what the strategy sets (5.7), so that on_close can cancel it
        state.task_scheduled(request)

    def _run_again(self, request: ReliableRequest) -> None:
        state.task_reserved(request)
        self.consumer.on_task_request(request)

    def give_back(self, request: ReliableRequest) -> None:
        """Return the message to the near end of its queue, in the consumer's own thread."""
        if request.acknowledged:
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

    def _is_amqp(self) -> bool:
        return bool(self.consumer.connection.transport.driver_type == "amqp")
