"""Have a small process beside this one, which ends it when no thread of Python can.

A thread cannot do it: one that waits for the signal needs the interpreter to act on it. ``faulthandler`` has a thread
that does not, but somebody has to set its clock *after* the signal; set before, as a dead man's switch, it would end
workers that nobody told to stop. A fork would keep a copy of all memory that the worker changes later, and every socket.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
from _socket import MSG_DONTWAIT, MSG_PEEK, socket
from contextlib import suppress

from celery_reliable.worker.drain import guardian
from celery_reliable.worker.drain.threads import original

logger = logging.getLogger(__name__)

LAST_SIGNAL = 62
"""The signal, and the exit code, of a worker that its guardian ends: on Linux the last but two of the real-time signals."""
_BELL = 3


class Guardian:
    """The process that guards this one. It ends with this one, and ignores signals to the whole group."""

    def __init__(self, *, ears: socket, bell: socket) -> None:
        """Take both ends of the bell: where signals are read, and where they are written."""
        self._ears, self._bell = ears, bell
        self._pid = 0

    def start(self, *, signals: tuple[int, ...], patience: float) -> None:
        """Start it, if this is an ordinary interpreter."""
        if not sys.executable or getattr(sys, "frozen", False):
            logger.info("drain: no guardian: expected a Python in sys.executable, found %r", sys.executable)
            return
        facts = [_BELL, os.getpid(), patience, _end_at_last_signal(), *map(int, signals)]
        command = [sys.executable, "-S", guardian.__file__, *map(str, facts)]
        try:
            self._pid = _spawn(command, bell=self._ears.fileno(), deaf_to=signals)
        except OSError as exc:
            logger.warning("drain: no guardian, C code that keeps the interpreter may hold the exit: %r", exc)

    def told_at(self) -> float | None:
        """Return when it saw the first signal, by the monotonic clock; None before. Safe in a signal handler."""
        with suppress(OSError, ValueError):
            return float(self._bell.recv(guardian.STAMP, MSG_PEEK | MSG_DONTWAIT))
        return None

    def stop(self) -> None:
        """End it. May be called twice, or never started."""
        pid, self._pid = self._pid, 0
        if pid:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                original("os", "waitpid")(pid, 0)


def _spawn(command: list[str], *, bell: int, deaf_to: tuple[int, ...]) -> int:
    """Start a program that has this descriptor, no other one of ours, and signals blocked from its first moment on."""
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    blocked = {*deaf_to, signal.SIGHUP, signal.SIGQUIT}
    actions = [*null, (os.POSIX_SPAWN_DUP2, bell, _BELL)]
    spawn = original("os", "posix_spawn")
    return int(spawn(command[0], command, os.environ, file_actions=actions, setsigmask=blocked))


def _end_at_last_signal() -> int:
    """Let C write the stack and end this process at a signal; return the signal, SIGKILL where that cannot be had.

    The kernel lets nobody kill the first process of a container from inside it, which is what a worker often is.
    """
    try:
        if signal.getsignal(LAST_SIGNAL) is not signal.SIG_DFL:
            return signal.SIGKILL
        library = ctypes.CDLL(None)
        library.signal(LAST_SIGNAL, ctypes.cast(library._exit, ctypes.c_void_p))  # noqa: SLF001  # C's
        faulthandler.register(LAST_SIGNAL, file=sys.__stderr__ or 2, all_threads=True, chain=True)
    except (ValueError, OSError, AttributeError):  # no such signal, no such library, no standard error
        return signal.SIGKILL
    return LAST_SIGNAL
