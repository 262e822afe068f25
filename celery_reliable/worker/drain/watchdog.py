"""Hear a signal although the main thread cannot, and end the process in time whatever state it is in."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import weakref
from _socket import MSG_DONTWAIT, MSG_PEEK, socketpair  # the one of C, which gevent and eventlet leave alone
from collections.abc import Callable
from contextlib import suppress

from celery_reliable.worker.drain.guarding import Guardian
from celery_reliable.worker.drain.threads import original, start_thread

_EACH = 0.1
_LONGEST = 1e8  # seconds, three years: faulthandler refuses much more
_MOST = 4096
_WAKE = 0  # no signal has this number: the guardian does not mind it


class Watchdog:
    """A thread that waits for a signal, then looks ten times a second until the process ends.

    The interpreter runs a signal's handler in the main thread, between two steps of Python: never, while that thread is
    in a C function. The byte for ``signal.set_wakeup_fd`` is written at once. It is left in its socket until the drain
    has begun: a guardian takes that for a sign of life.
    """

    def __init__(self, *, signals: tuple[int, ...], on_signal: Callable[[], None], look: Callable[[], None]) -> None:
        """Take the signals to hear, what to do at the first, and what to do at each look."""
        self._signals, self._on_signal, self._look = signals, on_signal, look
        self._ears, self._bell = socketpair()
        self._ears.settimeout(None)  # whatever the program has made the default of its sockets
        self._bell.settimeout(0.0)
        self._guardian = Guardian(ears=self._ears, bell=self._bell)
        self._sleep = original("time", "sleep")
        self._hears = self._stopped = False

    def start(self) -> None:
        """Listen. Without a free wake-up descriptor `wake` alone starts the looks."""
        _children_do_not_ring(self)
        taken = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        self._hears = taken == -1
        if not self._hears:
            signal.set_wakeup_fd(taken)
        start_thread(self._watch)

    def guard(self, *, patience: float) -> None:
        """Have the process ended that did not hear a signal for so many seconds, because C code keeps the interpreter."""
        if self._hears:
            self._guardian.start(signals=self._signals, patience=patience)

    def told_at(self) -> float | None:
        """Return when a signal came that was not heard at once, by the monotonic clock. Safe in a signal handler."""
        return self._guardian.told_at()

    def wake(self) -> None:
        """Begin to look. Safe in a signal handler."""
        with suppress(OSError):
            self._bell.send(bytes([_WAKE]))

    def heard(self) -> None:
        """Tell the guardian that the signal was heard, and the end is bounded otherwise. Safe in a signal handler."""
        self._take(_MOST)

    def _take(self, most: int) -> None:
        with suppress(BlockingIOError):
            self._ears.recv(most, MSG_DONTWAIT)

    def stop(self) -> None:
        """Look no more, listen no more: a signal that comes later is another's. May be called twice, or never started."""
        self._stopped = True
        self.deafen()
        self.wake()
        self._guardian.stop()

    def deafen(self) -> None:
        """Give the wake-up descriptor back."""
        with suppress(ValueError):
            if (taken := signal.set_wakeup_fd(-1)) not in {-1, self._bell.fileno()}:
                signal.set_wakeup_fd(taken)

    def _watch(self) -> None:
        while not set(seen := self._ears.recv(_MOST, MSG_PEEK)) & {*self._signals, _WAKE}:
            self._take(len(seen))  # and not what has come since
        if not self._stopped:
            self._on_signal()
        while not self._stopped:
            self.heard()
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
