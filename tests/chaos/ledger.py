"""Write down what really happened, in a file that nothing of celery_reliable touches.

One row is one line, written by one ``write`` to a file opened for appending: rows of many processes do not mix, and
what a killed process had written stays. The rows are the evidence by which celery_reliable is judged.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

What = Literal[
    "start",  # a body began
    "effect",  # it asked its user's database for a change; see `accounts`
    "told",  # it was handed the outcome of another job
    "end",  # it left, `how` says by what
    "intent",  # a producer is about to submit
    "accepted",  # apply_async returned
    "refused",  # apply_async raised
    "revoked",  # somebody asked for a revoke
    "fault",  # something was broken
    "healed",  # and is whole again
    "gone",  # a main process of a worker or beat was seen to have ended
    "elected",  # a beat says that it leads
]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that happened. ``at`` is the machine's monotonic clock, the same for all its processes."""

    what: What
    label: str = ""
    at: float = 0.0
    wall: float = 0.0
    pid: int = 0
    parent: int = 0
    thread: int = 0
    worker: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """The file of one run, as one party sees it."""

    def __init__(self, directory: Path, *, worker: str = "") -> None:
        """Write as ``worker``; the file is made with the first row."""
        self._path = directory / "ledger.jsonl"
        self._worker = worker

    def note(self, what: What, label: str = "", **facts: Any) -> None:
        """Append a row: it outlives the process when this returns."""
        who = (os.getpid(), os.getppid(), threading.get_ident(), self._worker)
        line = json.dumps([what, label, time.monotonic(), time.time(), *who, facts], default=repr) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def rows(self) -> Iterator[Row]:
        """Read all whole rows, oldest first. A row that cannot be read is an error: evidence is not thrown away."""
        yield from self.follow().read()

    def follow(self) -> Follower:
        """Return what reads each row once, and goes on where it has ended."""
        return Follower(self._path)


class Follower:
    """Reads a ledger while it grows."""

    def __init__(self, path: Path) -> None:
        """Begin at the first row; the file need not be there yet."""
        self._path, self._offset = path, 0

    def read(self) -> Iterator[Row]:
        """Yield the whole rows that were written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield Row(*json.loads(line))
