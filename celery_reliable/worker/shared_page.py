"""Share one small page of memory between a worker and its pool children: one writes, the others look.

A worker makes a file, in memory where the system has such a place, and names it in its environment; children map it when
they first look. It works for forked, spawned and recycled children alike, and there is none in tests, in eager mode and in
producers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in memory, the file below it gets a random name


class SharedPage:
    """The writer's side. `close` removes the file; may be called twice."""

    def __init__(self, variable: str, *, size: int) -> None:
        """Make the file and name it, in ``variable``, for the children to come."""
        folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="celery-reliable-", dir=folder)
        os.ftruncate(descriptor, size)
        self._page = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._variable = variable
        self.path = Path(name)
        os.environ[variable] = name

    def close(self) -> None:
        """Remove the file; children that mapped it keep what it said last."""
        self.path.unlink(missing_ok=True)
        if os.environ.get(self._variable) == str(self.path):
            del os.environ[self._variable]


_pages: dict[str, mmap.mmap] = {}


def page_of(variable: str) -> mmap.mmap | None:
    """Return the page that the worker of this process has named, for reading; None without one."""
    name = os.environ.get(variable)
    if name is None:
        return None
    return _pages.get(name) or _mapped(name)


def _mapped(name: str) -> mmap.mmap | None:
    with suppress(OSError, ValueError), Path(name).open("rb") as file:
        _pages[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _pages.get(name)
