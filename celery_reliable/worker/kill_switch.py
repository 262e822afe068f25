"""Stop consuming a queue whose runs fail, and go on when it is well, while the worker's other queues go on."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.flow.lanes import Lanes
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.flags import draining

_EACH = 1.0  # seconds between two looks


class KillSwitches(bootsteps.StartStopStep):
    """Ask each second which queues are stopped: a thread decides, the consumer's loop acts.

    On green pools that loop waits where it may, for a free slot for instance, so there a greenlet beside it stops a queue, as
    it does in a drain. What begins to consume reads from the connection, and is left to the loop everywhere.

    What came from a stopped queue and has not begun goes back to it, so that nothing is hoarded: prefetched messages, and
    those that wait for their time. There only if a queue has a kill switch.
    """

    requires = (
        "celery.worker.consumer.tasks:Tasks",
        "celery_reliable.worker.taking_turns:TakingTurns",
        "celery_reliable.worker.drain.handover:HandOver",
    )

    def include_if(self, parent: Any) -> bool:
        """Take part where a queue may be stopped."""
        return bool(runtime_of(parent.app).settings.kill_switches)

    def create(self, parent: Any) -> None:
        """Find out which queues of this worker may be stopped; nothing connects yet."""
        self._consumer, self._runtime = parent, runtime_of(parent.app)
        self._green = bool(getattr(parent.pool, "is_green", False))
        self._waits_for_no_answer = self._green and consumed_driver(parent.app) == "amqp"
        self._background = Background(self._run, name="reliable-kill-switch")
        lanes = self._runtime.lanes or Lanes({})
        consumed = set(parent.app.amqp.queues.consume_from)
        every = {queue: lanes.expanded([queue]) for queue in self._runtime.settings.kill_switches or ()}
        self._names = {queue: names for queue, names in every.items() if consumed.intersection(names)}
        self._runtime.runs.count(self._names)
        self._wanted: frozenset[str] = frozenset()
        self._stopped: dict[str, None] = {}
        self._cancelled: dict[str, str] = {}
        self._asked = self._looked = False

    # --- the consumer's life

    def start(self, parent: Any) -> None:
        """Leave out what is stopped before the loop begins to consume; what is to go on again is the loop's."""
        if not self._looked:
            self._look()
        self._asked = False
        self._cancelled.clear()  # a tag is one connection's
        self._stop_all()
        internals.keep_late_arrivals_near(parent.task_consumer.channel)
        self._background.begin()

    def shutdown(self, parent: Any) -> None:
        """End the thread."""
        self._background.end()

    # --- in the thread

    def _run(self) -> None:
        while not self._background.wait(_EACH):
            self._look()
            if self._green and self._is_up():
                self._withdraw()
            if (self._wanted or self._stopped) and not self._asked:
                self._asked = True
                self._consumer.call_soon(self._act)

    def _is_up(self) -> bool:
        return self._consumer.task_consumer is not None and not draining()

    def _look(self) -> None:
        switches = self._runtime.switches
        if switches is not None and self._names:
            stopped = switches.look(self._runtime.runs.ended())
            self._wanted = frozenset(name for queue in stopped for name in self._names[queue])
        self._looked = True

    # --- in the thread that owns the broker connection

    def _act(self) -> None:
        """Make what is consumed what it should be. What fails with the connection is done by the next `start`."""
        self._asked = False
        if not self._is_up():
            return
        for name in [name for name in self._stopped if name not in self._wanted]:
            self._consumer.add_task_queue(name)
            del self._stopped[name]
        self._withdraw()

    def _withdraw(self) -> None:
        self._stop_all()
        if self._wanted:
            self._consumer.controller.reliable_drain.handover.hand_back_from(self._wanted, cancelled=self._cancelled)

    def _stop_all(self) -> None:
        consumed = self._consumer.app.amqp.queues.consume_from
        for name in [name for name in self._wanted if name in consumed]:
            self._stopped[name] = None
            tags = internals.queues_by_tag(self._consumer.task_consumer)
            self._cancelled |= {tag: queue for tag, queue in tags.items() if queue == name}
            if self._waits_for_no_answer and name in tags.values():
                internals.cancel_without_answer(self._consumer, name)
            else:
                self._consumer.cancel_task_queue(name)
        self._runtime.stopped_queues = frozenset(self._stopped)
