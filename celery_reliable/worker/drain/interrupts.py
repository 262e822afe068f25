"""Raise `Draining` in bodies that still run, each pool in its own way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_reliable.errors import Draining
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.bodies import Bodies, bodies_of
from celery_reliable.worker.flags import interrupting

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.worker.request import ReliableRequest


class Interrupts:
    """Interrupt requests of one worker. A body is interrupted once; a child may be signalled until it answers."""

    def __init__(self, pool: Any, *, app: Celery, kind: str) -> None:
        """Take the pool and its kind: ``prefork``, ``threads``, ``gevent``, ``eventlet`` or ``solo``."""
        self._pool = pool
        self._bodies: Bodies = bodies_of(runtime_of(app))
        self._told: set[str] = set()
        self._ways: dict[str, Callable[[ReliableRequest], None]] = {
            "prefork": self._child,
            "threads": self._thread,
            "gevent": self._gevent,
            "eventlet": self._eventlet,
            "solo": self._main,
        }
        self._raise_in = self._ways.get(kind, self._thread)
        self._main_thread = threading.main_thread().ident or 0

    def interrupt(self, request: ReliableRequest) -> None:
        """Raise `Draining` in the request's body."""
        self._raise_in(request)

    def _once(self, request: ReliableRequest) -> bool:
        if request.token not in self._bodies or request.token in self._told:
            return False
        self._told.add(request.token)
        return True

    def _child(self, request: ReliableRequest) -> None:
        """Signal once: the child raises if its body runs, and the body does not begin if it has not."""
        if not request.worker_pid or request.token in self._told:
            return
        self._told.add(request.token)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(request.worker_pid, signal.SIGUSR1)

    def _thread(self, request: ReliableRequest) -> None:
        self._bodies.interrupt_thread(request.token)

    def _main(self, request: ReliableRequest) -> None:
        if self._once(request):
            signal.pthread_kill(self._main_thread, signal.SIGUSR1)

    def _gevent(self, request: ReliableRequest) -> None:
        greenlet = self._greenlet_of(request)
        if greenlet is not None and self._once(request):
            greenlet.kill(Draining, block=False)

    def _eventlet(self, request: ReliableRequest) -> None:
        from eventlet.greenthread import kill  # noqa: PLC0415  # only where it is the pool

        greenlet = self._greenlet_of(request)
        if greenlet is not None and self._once(request):
            kill(greenlet, Draining)

    def _greenlet_of(self, request: ReliableRequest) -> Any:
        return self._pool._pool_map.get(request.worker_pid)  # noqa: SLF001  # how Celery (5.7) ends one itself


def take_interrupts(app: Celery) -> None:
    """Let SIGUSR1 raise `Draining` in the main thread while a body runs there; else it means what it meant before."""
    previous, bodies = signal.getsignal(signal.SIGUSR1), bodies_of(runtime_of(app))

    def handler(signum: int, frame: Any) -> None:
        if interrupting():
            if bodies:
                raise Draining
        elif callable(previous):
            previous(signum, frame)

    signal.signal(signal.SIGUSR1, handler)
