"""The worker's part of a drain: hear the signal, keep time, end."""

from __future__ import annotations

import atexit
import logging
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.worker import state

from celery_reliable.runtime import runtime_of
from celery_reliable.worker.drain import budget, leaving
from celery_reliable.worker.drain.course import CLEAN_UP, DEAF, END, Course
from celery_reliable.worker.drain.gate import Gate
from celery_reliable.worker.drain.interrupts import Interrupts, take_interrupts
from celery_reliable.worker.drain.watchdog import Watchdog, arm
from celery_reliable.worker.flags import Flags
from celery_reliable.worker.forks import AFTER_FORKS
from celery_reliable.worker.request import ReliableRequest

if TYPE_CHECKING:
    from celery_reliable.worker.drain.handover import HandOver

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EACH = 0.1
_LONGEST_END = 5.0  # seconds that the interpreter may take to fold itself up
_EMBEDDED = {"solo": "threads"}  # where a body runs in a thread of another program, no signal may interrupt it


class Drain(bootsteps.StartStopStep):
    """End this worker in order, at the latest two seconds after ``reliable_drain_timeout``, with code 0.

    1. At the signal: the flag for ``self.draining`` is up.
    2. Within 0.2 s: nothing is consumed any more, and every message whose task has not begun is back in its queue.
    3. When the last task has ended: Celery's warm shutdown.
    4. At the timeout: `Draining` is raised in what still runs. It may save a checkpoint; its message goes back.
    5. A second later: children are killed; their messages, and those of bodies that cannot be killed, go back.
    6. At 1.2 s after the timeout a watchdog ends the process, were broker, store or a body to hold it.
    7. Were a body in C to keep the interpreter, C ends the process: if the call began before the signal, another process
       sees to it at 1.5 s, with code 62; else ``faulthandler`` at 1.9 s, with code 1. The work comes back by the lease.

    A second signal changes nothing. SIGQUIT is Celery's cold shutdown, as ever. ``app.control.shutdown()`` drains too.

    A worker that is embedded in a thread of another program owns neither the signals nor the process: it is told by
    ``control.shutdown()`` only, and nothing here ends the process. There a body that swallows `Draining` holds the exit.
    """

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Make the flags, and choose the pool's class, before the pool makes its children."""
        super().__init__(parent, **kwargs)
        self._worker = parent
        self._app = parent.app
        self.course = Course(runtime_of(parent.app).settings.drain_timeout)
        self._flags = Flags()
        self.kind = _kind(parent.pool_cls)
        self.handover: HandOver | None = None
        self.gate = Gate(is_handed_back=self._is_handed_back, kind=self.kind)
        self._announced = False
        self._greenlet_runs = False
        self._owns_process = False
        self._watchdog = Watchdog(signals=_SIGNALS, on_signal=self._begin, look=self._look)
        parent.reliable_drain = self
        if self.kind == "prefork":
            from celery_reliable.worker.drain.prefork import pool_class  # noqa: PLC0415  # imports the pool

            parent.pool_cls = pool_class(parent.pool_cls, flags=self._flags)

    # --- the worker's life

    def start(self, parent: Any) -> None:
        """Stand before the pool, and take the signals from Celery's handlers, which were installed just now."""
        self.gate.put_before(parent.pool)
        with suppress(ValueError):  # an embedded worker in another thread: signals and process are its host's
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)
            self._owns_process = True
        kind = self.kind if self._owns_process else _EMBEDDED.get(self.kind, self.kind)
        self._interrupts = Interrupts(parent.pool, app=self._app, kind=kind)
        if self._owns_process:
            self._watchdog.start()
            if self.kind != "prefork":  # there bodies run in children, which can be killed
                self._watchdog.guard(patience=self.course.until(DEAF))
            atexit.register(self._let_interpreter_end)
        if self.kind == "solo" and self._owns_process:
            take_interrupts(self._app)
        budget.announce(self._app, drain_timeout=self.course.timeout)

    def stop(self, parent: Any) -> None:
        """Leave the watchdog on guard over Celery's shutdown, if a drain began it in a process of our own."""
        if self.course.began is None and self._owns_process:
            self._watchdog.stop()
        self._flags.close()

    terminate = stop

    # --- begin

    def _on_signal(self, signum: int, frame: Any) -> None:
        """Only raise the flag: this runs between any two steps of the main thread."""
        self.begin()
        if self.kind == "solo" and self.gate.in_body:
            self._hand_back()

    def begin(self) -> None:
        """Begin, as a signal does. Only raises the flag; the consumer's loop and the watchdog do the rest."""
        self._begin()
        if self._owns_process:
            self._watchdog.wake()

    def _begin(self) -> None:
        if self.course.begin(at=self._watchdog.told_at()):
            if self._owns_process:
                arm(self.course.until(END))
                self._watchdog.heard()
            self._flags.set_draining()

    def _announce(self) -> None:
        """Say what Celery's own handler says, and tell whoever listens to its signal."""
        if self._announced:
            return
        self._announced = True
        logger.warning("worker: Warm shutdown (MainProcess)", extra={"reliable_event": "draining"})
        signals.worker_shutting_down.send(sender=self._worker.hostname, sig="SIGTERM", how="Warm", exitcode=0)

    # --- in the thread that owns the broker connection

    def tick(self) -> None:
        """Do what is due. Called ten times a second by the consumer's loop."""
        if self.course.began is None:
            return
        self._announce()
        self._hand_back()
        if self.course.is_past(0.0):
            self._interrupt()
        if self.course.is_past(CLEAN_UP):
            self._end_running()
        self._finish_if_done()

    def tick_in_a_greenlet(self) -> None:
        """Tick beside the consumer's loop, which on a green pool waits where it may."""
        if not self._greenlet_runs:
            self._greenlet_runs = True
            self._worker.pool.spawn_n(self._tick_for_ever)

    def _tick_for_ever(self) -> None:
        while not self.course.finished:
            try:
                self.tick()
            except Exception:  # the broker may go at any moment; the next tick finds out what is left to do
                logger.exception("drain: tick failed")
            time.sleep(_EACH)

    def _hand_back(self) -> None:
        """Hand back what has not begun. Never raises: on solo this may run in the middle of a body."""
        if self.handover is None:
            return
        try:
            self.handover.hand_back()
        except self.handover.consumer.connection_errors as exc:
            logger.warning("drain: broker away, it keeps what this worker held: %r", exc)
        except Exception:  # whatever it is: the drain goes on, and its end gives back the rest
            logger.exception("drain: hand-over failed")

    def _let_interpreter_end(self) -> None:
        """Grant a busy machine some seconds more: all is handed back, and from here on no thread can look."""
        if self.course.began is not None:
            self._watchdog.deafen()
            arm(_LONGEST_END)

    def _is_handed_back(self, message: Any) -> bool:
        return self.handover is not None and self.handover.is_handed_back(message)

    # --- at the timeout

    def _interrupt(self) -> None:
        """Interrupt what is ours. A plain task knows nothing of `Draining`; it has until children are killed."""
        self._flags.set_interrupting()
        for request in _running():
            if isinstance(request, ReliableRequest):
                self._interrupts.interrupt(request)

    def _end_running(self) -> None:
        """End what did not let itself be interrupted."""
        running = [request for request in _running() if not request.acknowledged]
        if self.kind != "prefork":
            if running:
                leaving.release_leases(running, bodies_are_gone=False)
                self._return(running)
                if self._owns_process:
                    self._leave()
            return
        gone = leaving.kill_children(self._worker.pool, running)
        leaving.release_leases(running, bodies_are_gone=gone)
        self._return(running)

    def _return(self, requests: list[Any]) -> None:
        if self.handover is not None and self.handover.connected:
            for request in requests:
                self.handover.return_running(request)

    # --- the end

    def _finish_if_done(self) -> None:
        """Let Celery shut down once nothing is left. The loop notices at its next turn, also while it reconnects."""
        handover = self.handover
        if handover is None or state.active_requests:
            return
        if handover.connected and (not handover.done or handover.held()):
            return
        self.course.finish()
        state.should_stop = 0

    # --- in the watchdog's thread

    def _look(self) -> None:
        if self.kind in {"threads", "solo"} and self.course.is_past(0.0):
            self._interrupt()
        if not self.course.must_leave:
            self._finish_if_done()
            return
        self._leave()

    def _leave(self) -> None:
        held = self.handover.held() if self.handover is not None else []
        leaving.leave(self._app, pool=self._worker.pool, held=held, cleanup=self._clean_up)

    def _clean_up(self) -> None:
        self._flags.close()
        if self._worker.pidlock:
            self._worker.pidlock.release()


def _kind(pool_cls: Any) -> str:
    """Name the pool by what it derives from."""
    for one in pool_cls.__mro__:
        name = one.__module__.rpartition(".")[2]
        if one.__module__.startswith("celery.concurrency."):
            return {"thread": "threads"}.get(name, str(name))
    return "unknown"


def _running() -> list[Any]:
    """Copy a WeakSet that other threads change meanwhile."""
    while True:
        try:
            return list(state.active_requests)
        except RuntimeError:
            continue
