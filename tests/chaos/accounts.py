"""Keep the users' data that tasks change: one row for each job, guarded by the fence.

A *committed effect* is a change that this database accepted under the fence of the run whose outcome the store
committed. A run that was cut off between the two leaves an accepted change without an outcome; the run that takes over
has a larger fence, so its change replaces that one, and a stale holder that comes after it is refused. Hence for each
finished job exactly one accepted change has the fence of the outcome, and none has a larger one: that is what the judge
asks for. Every attempt is kept in a table of its own.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
PRAGMA journal_mode=WAL;
CREATE TABLE IF NOT EXISTS effects (label TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS writes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, label TEXT NOT NULL, fence INTEGER NOT NULL, accepted INTEGER NOT NULL,
    pid INTEGER NOT NULL, at REAL NOT NULL);
"""
_FENCED = """
INSERT INTO effects (label, fence) VALUES (?, ?)
ON CONFLICT (label) DO UPDATE SET fence = excluded.fence WHERE fence < excluded.fence
"""
_BUSY = 5.0  # seconds; then the change raises, and the task is tried again


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to change a job's row."""

    label: str
    fence: int
    accepted: bool
    pid: int = 0
    at: float = 0.0


class Accounts:
    """The database of one run. A connection for each call: nothing is carried over a fork."""

    def __init__(self, directory: Path) -> None:
        """Use the file; `create` makes it."""
        self._path = directory / "accounts.sqlite"

    def create(self) -> Accounts:
        """Make the tables."""
        with closing(self._connect()) as database:
            database.executescript(_SCHEMA)
        return self

    def change(self, label: str, *, fence: int) -> bool:
        """Change the row of a job unless somebody with a larger fence, or this very run, has; in one transaction."""
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            accepted = database.execute(_FENCED, (label, fence)).rowcount == 1
            facts = (label, fence, accepted, os.getpid(), time.monotonic())
            database.execute("INSERT INTO writes (label, fence, accepted, pid, at) VALUES (?, ?, ?, ?, ?)", facts)
            database.execute("COMMIT")
        return accepted

    def writes(self) -> list[Write]:
        """Return every attempt, in order."""
        with closing(self._connect()) as database:
            found = database.execute("SELECT label, fence, accepted, pid, at FROM writes ORDER BY number")
            return [Write(label, fence, bool(accepted), pid, at) for label, fence, accepted, pid, at in found]

    def _connect(self) -> sqlite3.Connection:
        # On green pools this wait stops the whole process, perhaps with it the greenlet that has the lock: not for long.
        connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None)
        connection.execute("PRAGMA synchronous=OFF")  # processes are killed here, never the machine
        return connection
