"""Know which task bodies run in this process, and interrupt them at no other moment.

An interruption that landed a moment later would hit what writes the outcome, or the next task of the thread.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_reliable.errors import Draining
from celery_reliable.worker.flags import interrupting

if TYPE_CHECKING:
    from celery_reliable.runtime import Runtime


class Bodies:
    """The bodies of one process, by the token of their claim."""

    __slots__ = ("_interrupted", "_lock", "_threads")

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._threads: dict[str, int] = {}
        self._interrupted: set[str] = set()

    def inside(self, token: str) -> _Inside:
        """Mark a body as interruptible while it runs. Raises `Draining` at once when it would begin too late."""
        return _Inside(self, token)

    def enter(self, token: str) -> None:
        """Begin; see `inside`."""
        if interrupting():
            raise Draining
        with self._lock:
            self._threads[token] = threading.get_ident()

    def leave(self, token: str) -> None:
        """End; an interruption that has not arrived yet is called back. See `inside`."""
        thread = self._threads.pop(token, None)
        with suppress(Draining), self._lock:  # one that arrives here comes too late: the body has ended
            if token in self._interrupted and thread is not None:
                self._interrupted.discard(token)
                _raise_in(thread, None)  # one that has not arrived yet must not hit what comes after the body

    def __contains__(self, token: str) -> bool:
        """Whether this body runs."""
        return token in self._threads

    def __bool__(self) -> bool:
        """Whether any body runs. Safe in a signal handler."""
        return bool(self._threads)

    def interrupt_thread(self, token: str) -> bool:
        """Raise `Draining` in the thread of a body, once, at its next step in Python. False: no such body."""
        with self._lock:
            thread = self._threads.get(token)
            if thread is None or token in self._interrupted:
                return False
            self._interrupted.add(token)
            return _raise_in(thread, Draining)


class _Inside:
    """The block of `Bodies.inside`; a generator would cost three times as much for each task."""

    __slots__ = ("_bodies", "_token")

    def __init__(self, bodies: Bodies, token: str) -> None:
        self._bodies, self._token = bodies, token

    def __enter__(self) -> None:
        self._bodies.enter(self._token)

    def __exit__(self, *exc_info: object) -> None:
        self._bodies.leave(self._token)


def bodies_of(runtime: Runtime) -> Bodies:
    """Return the bodies of an app in this process."""
    found: Bodies = runtime.__dict__.setdefault("bodies", Bodies())
    return found


def _raise_in(thread: int, exception: type[BaseException] | None) -> bool:
    raised = ctypes.py_object(exception) if exception is not None else None
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised) == 1)
