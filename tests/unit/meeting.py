"""Notes whose readers can be made to meet, so that all have read the same before one writes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from celery_reliable.stores.notes import MemoryNotes, Note


class MeetingNotes(MemoryNotes):
    """Readers wait a moment for as many others as ``meeting`` has parties."""

    meeting = threading.Barrier(1)

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Read, then meet the others."""
        found = super().read(shelf, names)
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.2)
        return found
