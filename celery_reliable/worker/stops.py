"""Tell single runs, without a network call, that they were asked to stop.

Like `worker.flags`, one small file in memory for each worker: its parent writes which runs are asked, by the token of their
claim; pool children map it when they first look.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "CELERY_RELIABLE_STOPS"
REPLACED = 1
"""A newer job is to run in its place."""
LOST = 2
"""Its right ended while this process stood still; another job may run now."""

_SIZE = 8192
_ENTRY = 8  # bytes: seven of the token's digest, one of the reason
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in memory, the file below it gets a random name


class Stops:
    """The requests to stop of one worker. `close` removes the file; may be called twice."""

    def __init__(self) -> None:
        """Make the file and name it for the children to come."""
        folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="celery-reliable-", dir=folder)
        os.ftruncate(descriptor, _SIZE)
        self._page = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self.path = Path(name)
        os.environ[VARIABLE] = name

    def ask(self, token: str, *, reason: int) -> None:
        """Ask a run to stop. Above a thousand at once the rest is not told: they run to their end."""
        digest = _digest(token)
        place = _find(self._page, digest)
        if place < 0:
            place = _find(self._page, bytes(_ENTRY - 1))
        if place >= 0:
            self._page[place : place + _ENTRY] = digest + bytes([reason])

    def forget(self, token: str) -> None:
        """Make room: the run has ended."""
        place = _find(self._page, _digest(token))
        if place >= 0:
            self._page[place : place + _ENTRY] = bytes(_ENTRY)

    def close(self) -> None:
        """Remove the file; children that mapped it keep what it said last."""
        self.path.unlink(missing_ok=True)
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]


_pages: dict[str, mmap.mmap] = {}


def asked(token: str) -> int:
    """Return why a run was asked to stop; 0: it was not."""
    name = os.environ.get(VARIABLE)
    if name is None:
        return 0
    page = _pages.get(name) or _mapped(name)
    place = -1 if page is None else _find(page, _digest(token))
    return 0 if page is None or place < 0 else page[place + _ENTRY - 1]


def _mapped(name: str) -> mmap.mmap | None:
    with suppress(OSError, ValueError), Path(name).open("rb") as file:
        _pages[name] = mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)
    return _pages.get(name)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=_ENTRY - 1).digest()


def _find(page: mmap.mmap, digest: bytes) -> int:
    """Return where an entry begins, -1 if there is none."""
    place = page.find(digest)
    while place >= 0 and place % _ENTRY:
        place = page.find(digest, place + 1)
    return place
