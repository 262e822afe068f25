"""Tell pool children, without a network call, that their worker was told to stop.

A worker makes one small file, in memory where the system has such a place, and names it in its environment; children
map it when they first look. It works for forked, spawned and recycled children alike, and says no where there is no
file: in tests, in eager mode, in producers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "CELERY_RELIABLE_FLAGS"
_SIZE = 4096
_DRAINING = 0
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
        os.environ[VARIABLE] = name

    def set_draining(self) -> None:
        """Tell every task of this worker. Safe in a signal handler."""
        self._page[_DRAINING] = 1

    def close(self) -> None:
        """Remove the file; children that mapped it keep what it said last."""
        self.path.unlink(missing_ok=True)
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]


_pages: dict[str, mmap.mmap] = {}


def draining() -> bool:
    """Whether this worker was told to stop."""
    name = os.environ.get(VARIABLE)
    if name is None:
        return False
    page = _pages.get(name) or _mapped(name)
    return page is not None and page[_DRAINING] == 1


def _mapped(name: str) -> mmap.mmap | None:
    with suppress(OSError, ValueError), Path(name).open("rb") as file:
        _pages[name] = mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)
    return _pages.get(name)
