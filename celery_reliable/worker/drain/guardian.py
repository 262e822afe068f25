"""End a worker that was told to stop while C code keeps its interpreter: a program of its own.

In such a worker no line of Python runs, so none learns of the signal. C leaves a byte for it in the worker's *bell*, a
socket whose reading end this program shares. It takes nothing out: a byte that lies there is a worker that cannot hear.

Only modules written in C are imported: it starts in some 10 ms and has 4 MB of its own.
"""

from __future__ import annotations

import os
import select
import sys
import time
from _socket import AF_UNIX, MSG_DONTWAIT, MSG_PEEK, SOCK_STREAM, socket

STAMP = 20
"""Bytes of the time, on the monotonic clock, at which a signal was seen."""
_EACH = 0.05  # seconds between two looks at a byte that was not taken
_LOOK_FOR_PARENT = 1.0  # where the system does not tell of its end
_LAST = 0.5
_MOST = 4096
_KILL = 9


def stamp(moment: float) -> bytes:
    """Write a time in `STAMP` bytes."""
    return f"{moment:0{STAMP}.6f}".encode()


class Parent:
    """The process that is guarded."""

    def __init__(self, pid: int) -> None:
        """Let the system tell of its end, where it can."""
        self._pid = pid
        self._descriptors = _told_of_the_end(pid)

    def is_gone(self, *, within: float, unless: list[socket]) -> bool:
        """Wait so long for its end, or until one of the sockets has something to say."""
        longest = within if self._descriptors else min(within, _LOOK_FOR_PARENT)
        watched = [*self._descriptors, *(one.fileno() for one in unless)]
        found, _, _ = select.select(watched, [], [], longest)
        return bool(set(found) & set(self._descriptors)) or os.getppid() != self._pid

    def end(self, *, number: int) -> None:
        """End it by a signal; kill it if that was not enough."""
        os.kill(self._pid, number)
        if not self.is_gone(within=_LAST, unless=[]):
            os.kill(self._pid, _KILL)


def _told_of_the_end(pid: int) -> list[int]:
    """Return what becomes readable when a process ends; nothing where the system has no such thing, and one has to look."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux, or before 5.3
        return []


def guard(parent: Parent, bell: socket, *, signals: bytes, patience: float, last: int) -> None:
    """Return when the parent has ended, by itself or because it did not hear a signal for so many seconds."""
    deadline = None
    waiting = b""
    while not parent.is_gone(within=_EACH if waiting else 3600.0, unless=[] if waiting else [bell]):
        waiting = _peek(bell)
        if not set(waiting) & set(signals):
            deadline = None
        elif deadline is None:
            deadline = time.monotonic() + patience
            bell.send(stamp(time.monotonic()), MSG_DONTWAIT)
        elif time.monotonic() >= deadline:
            parent.end(number=last)
            return


def _peek(bell: socket) -> bytes:
    try:
        found = bell.recv(_MOST, MSG_PEEK | MSG_DONTWAIT)
    except BlockingIOError:
        return b""
    if not found:
        raise EOFError  # nobody can ring any more
    return found


def main(arguments: list[str]) -> None:
    """Take the descriptor of the bell, the parent's id, the seconds, its last signal, and the signals to hear."""
    descriptor, pid, patience, last, *signals = arguments
    bell = socket(AF_UNIX, SOCK_STREAM, 0, int(descriptor))
    guard(Parent(int(pid)), bell, signals=bytes(map(int, signals)), patience=float(patience), last=int(last))


if __name__ == "__main__":
    main(sys.argv[1:])
