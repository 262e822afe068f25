"""Pool children that only their own worker can end, and that end at once when it does.

A SIGTERM sent to a whole process group (a supervisor's, a terminal's) reaches the children too, and ends a stock child
in the middle of its task. billiard resets the handlers of signals after Celery's ``worker_process_init`` (4.3), so
ours are set in ``on_loop_start``, which comes later, under fork as under spawn.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.common import _shutdown_cleanup
from billiard.pool import Worker as BlockingWorker
from billiard.pool import soft_timeout_sighandler
from celery.concurrency import asynpool, prefork

from celery_reliable.errors import Draining
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.bodies import bodies_of
from celery_reliable.worker.flags import Flags, draining, interrupting, may_terminate

if TYPE_CHECKING:
    from celery import Celery


def pool_class(base: type[prefork.TaskPool], *, flags: Flags) -> type[prefork.TaskPool]:
    """Return the pool whose children ignore foreign SIGTERMs."""

    class TaskPool(base):
        Pool = _pool_with(base.Pool, worker=Child, flags=flags)
        BlockingPool = _pool_with(base.BlockingPool, worker=BlockingChild, flags=flags)

        def on_start(self) -> None:
            """Fork children that share the memory of all that is loaded: a collection in a child would copy it."""
            gc.collect()
            gc.freeze()
            super().on_start()

        def on_stop(self) -> None:
            """End idle children by signal: they would look for the end of their queue once a second only."""
            if flags.draining:
                for process in list(getattr(self._pool, "_pool", ())):
                    process.terminate()
            super().on_stop()

    return TaskPool


def _pool_with(base: Any, *, worker: type, flags: Flags) -> Any:
    class Pool(base):
        Worker = worker

        def _create_worker_process(self, i: int) -> Any:
            process = super()._create_worker_process(i)
            flags.forbid_termination(process.pid)
            return _allowing(process, flags=flags)

        def terminate_job(self, pid: int, sig: int | None = None) -> None:
            flags.allow_termination(pid)
            super().terminate_job(pid, sig)

    return Pool


def _allowing(process: Any, *, flags: Flags) -> Any:
    """Let the child know each time that its worker ends it: a shrinking pool, a hard time limit, the end."""
    terminate = process.terminate

    def allow_and_terminate() -> None:
        flags.allow_termination(process.pid)
        terminate()

    process.terminate = allow_and_terminate
    return process


class _ChildMixin:
    initargs: tuple[Any, ...]
    on_exit: Any

    def on_loop_start(self, pid: int) -> None:
        """Take SIGTERM and the signal that interrupts a body, then report for work."""
        draining()  # maps the flags: their file may be gone when they matter
        signal.signal(signal.SIGTERM, _on_terminate)
        signal.signal(signal.SIGUSR1, _interrupter(self.initargs[0]))
        super().on_loop_start(pid)  # type: ignore[misc]  # billiard's Worker

    def _do_exit(self, pid: int, exitcode: int | None, exc: BaseException | None = None) -> None:
        """Leave at once in a drain: the second that billiard (4.3) sleeps here lets the parent read the exit first."""
        signal.signal(signal.SIGTERM, _shutdown_cleanup)
        if not draining() or exc is not None:
            super()._do_exit(pid, exitcode, exc)  # type: ignore[misc]  # billiard's Worker
            return
        try:
            if self.on_exit is not None:
                self.on_exit(pid, exitcode or 0)
        finally:
            os._exit(exitcode or 0)


class Child(_ChildMixin, asynpool.Worker):
    """A child of the pool that the event loop drives."""


class BlockingChild(_ChildMixin, BlockingWorker):
    """A child of the pool that threads drive."""


def _on_terminate(signum: int, frame: Any) -> None:
    if may_terminate(os.getpid()):
        _shutdown_cleanup(signum, frame)


def _interrupter(app: Celery) -> Callable[[int, Any], None]:
    """Raise what the signal means: the end of the drain in a body of ours, elsewhere a soft time limit."""

    def on_interrupt(signum: int, frame: Any) -> None:
        if not interrupting():
            soft_timeout_sighandler(signum, frame)
        elif bodies_of(runtime_of(app)):
            raise Draining

    return on_interrupt
