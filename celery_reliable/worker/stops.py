"""Tell single runs, without a network call, that they were asked to stop.

A worker's parent writes which runs are asked, by the token of their claim; its pool children look.
"""

from __future__ import annotations

import hashlib
import mmap

from celery_reliable.worker.shared_page import SharedPage, page_of

VARIABLE = "CELERY_RELIABLE_STOPS"
REPLACED = 1
"""A newer job is to run in its place."""
LOST = 2
"""Its right ended while this process stood still; another job may run now."""

_SIZE = 8192
_ENTRY = 8  # bytes: seven of the token's digest, one of the reason


class Stops(SharedPage):
    """The requests to stop of one worker."""

    def __init__(self) -> None:
        """Make the page; nobody is asked yet."""
        super().__init__(VARIABLE, size=_SIZE)

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


def asked(token: str) -> int:
    """Return why a run was asked to stop; 0: it was not."""
    page = page_of(VARIABLE)
    place = -1 if page is None else _find(page, _digest(token))
    return 0 if page is None or place < 0 else page[place + _ENTRY - 1]


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=_ENTRY - 1).digest()


def _find(page: mmap.mmap, digest: bytes) -> int:
    """Return where an entry begins, -1 if there is none."""
    place = page.find(digest)
    while place >= 0 and place % _ENTRY:
        place = page.find(digest, place + 1)
    return place
