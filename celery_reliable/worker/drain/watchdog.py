"""Hear a signal although the main thread cannot, and end the process in time whatever state it is in."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_reliable.worker.drain.threads import original, start_thread

_EACH = 0.1
_LONGEST = 1e8  # seconds, three years: faulthandler refuses much more


class Watchdog:
    """A thread that waits for a signal, then looks ten times a second until the process ends.

    The interpreter runs a signal's handler in the main thread, between two steps of Python: never, while that thread is
    in a C function. The byte for ``signal.set_wakeup_fd`` is written at once.
    """

    def __init__(self, *, signals: tuple[int, ...], on_signal: Callable[[], None], look: Callable[[], None]) -> None:
        """Take the signals to hear, what to do at the first, and what to do at each look."""
        self._signals, self._on_signal, self._look = signals, on_signal, look
        self._reader = self._writer = -1
        self._read, self._write = original("os", "read"), original("os", "write")
        self._sleep = original("time", "sleep")
        self._stopped = False

    def start(self) -> None:
        """Listen. Without a free wake-up descriptor `wake` alone starts the looks."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # the standard library's signature
        _children_do_not_ring(self)
        taken = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)
        start_thread(self._watch)

    def wake(self) -> None:
        """Begin to look. Safe in a signal handler."""
        with suppress(OSError):
            self._write(self._writer, bytes([self._signals[0]]))

    def stop(self) -> None:
        """Look no more, listen no more: a signal that comes later is another's. May be called twice, or never started."""
        self._stopped = True
        self.deafen()
        self.wake()

    def deafen(self) -> None:
        """Give the wake-up descriptor back."""
        with suppress(ValueError):
            if (taken := signal.set_wakeup_fd(-1)) not in {-1, self._writer}:
                signal.set_wakeup_fd(taken)

    def _watch(self) -> None:
        heard: Any = b""
        while not any(number in heard for number in self._signals):
            heard = self._read(self._reader, 64)
        if not self._stopped:
            self._on_signal()
        while not self._stopped:
            self._look()
            self._sleep(_EACH)


def _children_do_not_ring(watchdog: Watchdog) -> None:
    """Deafen forked children: they have the parent's descriptor, so the parent would hear a SIGTERM to a child.

    From Python 3.12 on asyncio does it too, where it is imported.
    """
    reference = weakref.ref(watchdog)

    def in_child() -> None:
        found = reference()
        if found is not None:
            found.deafen()

    os.register_at_fork(after_in_child=in_child)


def arm(seconds: float) -> None:
    """End the process with code 1 in ``seconds``, even if no thread of Python can run."""
    bounded = min(max(seconds, 0.1), _LONGEST)
    faulthandler.dump_traceback_later(bounded, exit=True, file=sys.__stderr__ or 2)
