"""Ask the beat that leads to fire an entry now, and wait for its answer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_reliable.stores.notes import Note, Notes, Write, every

SHELF = "beat.requests"
_KEPT = 3600.0  # seconds for a leader to come
_POLL = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody wants an entry to run now, under this task id. Answered once ``sent`` or ``error`` is set."""

    entry: str
    task_id: str
    sent: bool = False
    error: str = ""
    version: int = 0

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps([self.entry, self.task_id, self.sent, self.error]).encode()

    @classmethod
    def from_note(cls, note: Note) -> Request | None:
        """Decode, None when it is not ours."""
        try:
            entry, task_id, sent, error = json.loads(note.value)
            return cls(str(entry), str(task_id), bool(sent), str(error), note.version)
        except (ValueError, TypeError):
            return None


class Requests:
    """The requests on their shelf. All methods raise `StoreError` as the store does."""

    def __init__(self, notes: Notes, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the store's notes."""
        self._notes, self._clock = notes, clock
        self._looked = float("-inf")

    def ask(self, entry: str) -> Request:
        """Put a request down."""
        request = Request(entry, str(uuid.uuid4()))
        self._notes.write(SHELF, [Write(name=request.task_id, value=request.to_bytes(), ttl=_KEPT, expected=0)])
        return request

    def read(self, request: Request) -> Request:
        """Return the request as it is now; one that has gone counts as not answered."""
        note = self._notes.read(SHELF, [request.task_id]).get(request.task_id)
        return (Request.from_note(note) if note else None) or request

    def withdraw(self, request: Request) -> None:
        """Take a request back."""
        self._notes.write(SHELF, [Write(name=request.task_id, value=None, ttl=0.0)])

    def waiting(self) -> list[Request]:
        """Return what nobody has answered; asks the store once a second."""
        if self._clock() - self._looked < _POLL:
            return []
        self._looked = self._clock()
        found = [Request.from_note(note) for note in every(self._notes, SHELF).values()]
        return [request for request in found if request is not None and not request.sent and not request.error]

    def answer(self, request: Request, *, task_id: str = "", error: str = "") -> None:
        """Say what became of it. A leader that dies before this leaves it to the next one, under the same id."""
        done = replace(request, sent=bool(task_id), error=error)
        self._notes.write(
            SHELF, [Write(name=request.task_id, value=done.to_bytes(), ttl=_KEPT, expected=request.version)]
        )
