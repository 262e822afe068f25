"""Tell running tasks that this worker has to stop, and interrupt those that do not.

The minimum that a hand-over needs: the flag for ``self.draining``, and at ``reliable_drain_timeout`` an interruption of
what still runs in pool children. The rest is Celery's warm shutdown.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_reliable.runtime import runtime_of
from celery_reliable.worker.flags import Flags

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drain(bootsteps.StartStopStep):
    """Raise the flag on SIGTERM and SIGINT, then let Celery's own handler go on."""

    requires = ("celery.worker.components:Pool", "celery_reliable.worker.preflight:Preflight")

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Make the flags before the pool makes its children."""
        super().__init__(parent, **kwargs)
        self._timeout = runtime_of(parent.app).settings.drain_timeout
        self._flags = Flags()
        self._timer: threading.Timer | None = None

    def start(self, parent: Any) -> None:
        """Put our handler before Celery's, which were installed just now."""
        for number in _SIGNALS:
            self._wrap(number, signal.getsignal(number))

    def _wrap(self, number: int, previous: Any) -> None:
        def handler(signum: int, frame: Any) -> None:
            self._flags.set_draining()
            self._begin()
            if callable(previous):
                previous(signum, frame)

        with suppress(ValueError):  # an embedded worker in another thread: its host handles signals
            signal.signal(number, handler)

    def _begin(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._timeout, _interrupt_children)
            self._timer.daemon = True
            self._timer.start()

    def stop(self, parent: Any) -> None:
        """Nothing left to tell."""
        if self._timer is not None:
            self._timer.cancel()
        self._flags.close()

    terminate = stop


def _interrupt_children() -> None:
    """Raise billiard's soft time limit in every child that still runs a task; there it is taken for the drain's."""
    for request in list(state.active_requests):
        pid = request.worker_pid
        if pid and pid != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
