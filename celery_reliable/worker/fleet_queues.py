"""Know which queues the fleet consumes: each worker says so, in a note for each queue."""

from __future__ import annotations

import time
from collections.abc import Collection

from celery_reliable.stores.notes import Notes, Write

SHELF = "queues"
_TELL_EACH = 15.0
_READ_EACH = 5.0
_TTL = 60.0  # a queue that nobody has named for so long is consumed by nobody


class FleetQueues:
    """What this worker consumes, told to the others, and what the others have told."""

    def __init__(self, notes: Notes) -> None:
        """Take the store's notes."""
        self._notes = notes
        self._told: dict[str, float] = {}
        self._known: set[str] = set()
        self._read = float("-inf")

    def tell(self, names: Collection[str]) -> None:
        """Say which queues this worker consumes; at most one call in 15 seconds unless there is a new one."""
        now = time.monotonic()
        due = [name for name in names if now - self._told.get(name, float("-inf")) >= _TELL_EACH]
        if due:
            self._notes.write(SHELF, [Write(name=name, value=b"", ttl=_TTL) for name in due])
            self._told |= dict.fromkeys(due, now)

    def known(self) -> set[str]:
        """Return the queues that somebody consumes, as of five seconds ago at most."""
        now = time.monotonic()
        if now - self._read >= _READ_EACH:
            self._known, self._read = self._all(), now
        return self._known

    def _all(self) -> set[str]:
        page = self._notes.page(SHELF)
        found = {note.name for note in page.notes}
        while page.cursor:
            page = self._notes.page(SHELF, page.cursor)
            found |= {note.name for note in page.notes}
        return found
