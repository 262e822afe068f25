"""Tell pool children, without a network call, what their worker was told.

A worker makes one small file, in memory where the system has such a place, and names it in its environment; children
map it when they first look. It works for forked, spawned and recycled children alike, and says no where there is no
file: in tests, in eager mode, in producers.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "CELERY_RELIABLE_FLAGS"
_SIZE = 4096
_DRAINING = 0
_INTERRUPTING = 1
_TABLE = 64  # where the process ids begin that may obey a SIGTERM, four bytes each
_PLACES = (_SIZE - _TABLE) // 4
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in memory, the file below it gets a random name


class Flags:
    """The flags of one worker. `close` removes the file; may be called twice."""

    def __init__(self) -> None:
        """Make the file and name it for the children to come."""
        folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="celery-reliable-", dir=folder)
        os.ftruncate(descriptor, _SIZE)
        self._page = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self.path = Path(name)
        self._allowed = 0
        os.environ[VARIABLE] = name

    def set_draining(self) -> None:
        """Tell every task of this worker. Safe in a signal handler."""
        self._page[_DRAINING] = 1

    @property
    def draining(self) -> bool:
        """Whether this worker was told to stop; also after `close`."""
        return self._page[_DRAINING] == 1

    def set_interrupting(self) -> None:
        """Say that a body that still runs has to end now."""
        self._page[_INTERRUPTING] = 1

    def allow_termination(self, pid: int) -> None:
        """Let a child obey the SIGTERM that this worker is about to send; it ignores all others."""
        struct.pack_into("I", self._page, _TABLE + 4 * (self._allowed % _PLACES), pid)
        self._allowed += 1

    def forbid_termination(self, pid: int) -> None:
        """Forget what an earlier process of this id was allowed."""
        for place in range(min(self._allowed, _PLACES)):
            if struct.unpack_from("I", self._page, _TABLE + 4 * place)[0] == pid:
                struct.pack_into("I", self._page, _TABLE + 4 * place, 0)

    def close(self) -> None:
        """Remove the file; children that mapped it keep what it said last."""
        self.path.unlink(missing_ok=True)
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]


_pages: dict[str, mmap.mmap] = {}


def draining() -> bool:
    """Whether this worker was told to stop."""
    return _is_set(_DRAINING)


def interrupting() -> bool:
    """Whether the drain timeout is over: a body that still runs, or would begin now, has to end."""
    return _is_set(_INTERRUPTING)


def may_terminate(pid: int) -> bool:
    """Whether the worker itself wants this child to end."""
    page = _page()
    return page is not None and pid in struct.unpack_from(f"{_PLACES}I", page, _TABLE)


def _is_set(flag: int) -> bool:
    page = _page()
    return page is not None and page[flag] == 1


def _page() -> mmap.mmap | None:
    name = os.environ.get(VARIABLE)
    if name is None:
        return None
    return _pages.get(name) or _mapped(name)


def _mapped(name: str) -> mmap.mmap | None:
    with suppress(OSError, ValueError), Path(name).open("rb") as file:
        _pages[name] = mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)
    return _pages.get(name)
