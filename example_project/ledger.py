"""Keep an append-only record of what really happened.

Every start, checkpoint, effect and end of a task is one row, written by the task itself, and so is what was done to the
shop from outside (submissions, signals, processes seen gone). Nothing here knows celery_reliable: the rows are
the evidence by which it is judged, so they must not come from the accused.

A row is committed before `Ledger.append` returns, and the database refuses to change or delete one. Each row is written on a
connection of its own: nothing is shared between threads, or carried over a fork.

``sqlite:///file`` (WAL, so that readers never stop writers) or ``postgresql://...`` (needs psycopg).
``python -m example_project.ledger URL`` makes a ledger if there is none, and prints its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Event = Literal["submit", "start", "checkpoint", "effect", "end", "signal", "gone", "letter", "replay"]

_COLUMNS = ("event", "task", "key", "fence", "attempt", "worker", "pid", "host", "monotonic", "wall", "detail")
_REFUSAL = "the ledger is append-only"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that happened.

    ``monotonic`` is the machine's clock since boot: comparable between processes of one host, and the one to measure
    with. ``wall`` is seconds since 1970. ``number`` is the row's place in the ledger, 0 while it has none.
    """

    event: Event
    task: str = ""
    key: str = ""
    fence: int = 0
    attempt: int = 0
    worker: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    monotonic: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
    detail: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


class Database(Protocol):
    """What the ledger needs of a database: two drivers speak it."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:  # a cursor: each driver has its own type
        """Run one statement."""
        ...


class Ledger:
    """The record, by its URL. Opens no connection before it is used."""

    def __init__(self, url: str) -> None:
        """Keep the address."""
        self.url = url

    def create(self) -> Ledger:
        """Make the table and its guards if they are not there. Safe to repeat, also at the same time."""
        statements = _POSTGRESQL_SCHEMA if self._is_postgresql else _SQLITE_SCHEMA
        with self._connected() as database:
            for statement in statements:
                database.execute(statement)
        return self

    def append(self, row: Row) -> None:
        """Write one row; it is on disk when this returns."""
        values = [getattr(row, column) for column in _COLUMNS[:-1]] + [json.dumps(dict(row.detail))]
        marks = ", ".join([self._mark] * len(_COLUMNS))
        with self._connected() as database:
            database.execute(f"INSERT INTO ledger ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608  constants only

    def rows(self, *, after: int = 0) -> list[Row]:
        """Return the rows in the order in which they were written, those after row number ``after``."""
        select = f"SELECT {', '.join(_COLUMNS)}, number FROM ledger WHERE number > {self._mark} ORDER BY number"  # noqa: S608  constants only
        with self._connected() as database:
            return [_row(values) for values in database.execute(select, [after])]

    @property
    def _is_postgresql(self) -> bool:
        return self.url.startswith(("postgresql://", "postgres://"))

    @property
    def _mark(self) -> str:
        return "%s" if self._is_postgresql else "?"

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        opened = _open_postgresql(self.url) if self._is_postgresql else _open_sqlite(self.url)
        with closing(opened) as connection:
            yield connection


def _open_sqlite(url: str) -> sqlite3.Connection:
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        msg = f"expected sqlite:///FILE or postgresql://..., found {url!r} as ledger URL: set SHOP_LEDGER_URL"
        raise ValueError(msg)
    return sqlite3.connect(path, timeout=30, isolation_level=None)


def _open_postgresql(url: str) -> Any:  # psycopg is optional: its types are not here
    import psycopg  # noqa: PLC0415  only for those who use PostgreSQL

    return psycopg.connect(url, autocommit=True)


def _row(values: Sequence[Any]) -> Row:
    known = dict(zip((*_COLUMNS, "number"), values, strict=True))
    return Row(**{**known, "detail": json.loads(known["detail"])})


_TABLE = """
CREATE TABLE IF NOT EXISTS ledger (
    number {serial}, event TEXT NOT NULL, task TEXT NOT NULL, key TEXT NOT NULL, fence BIGINT NOT NULL,
    attempt INTEGER NOT NULL, worker TEXT NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL,
    monotonic DOUBLE PRECISION NOT NULL, wall DOUBLE PRECISION NOT NULL, detail TEXT NOT NULL
)"""

_SQLITE_SCHEMA = (
    "PRAGMA journal_mode=WAL",
    _TABLE.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT"),
    *(
        f"CREATE TRIGGER IF NOT EXISTS ledger_no_{verb} BEFORE {verb} ON ledger "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        for verb in ("update", "delete")
    ),
)

_POSTGRESQL_SCHEMA = (
    "BEGIN",
    "SELECT pg_advisory_xact_lock(8402)",  # two processes that create at once would fail on the catalogue
    _TABLE.format(serial="BIGSERIAL PRIMARY KEY"),
    f"""CREATE OR REPLACE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$""",
    """CREATE OR REPLACE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
        FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
    "COMMIT",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every row on a line of its own."""
    parser = argparse.ArgumentParser(prog="python -m example_project.ledger", description="Make and print a ledger.")
    parser.add_argument("url", help="sqlite:///FILE or postgresql://...")
    rows = Ledger(parser.parse_args(arguments).url).create().rows()
    for row in rows:
        when, who = row.monotonic - rows[0].monotonic, f"{row.worker} {row.pid}"
        print(f"{when:8.3f}  {row.event:<10}  {who:<14}  {row.key:<36}  {row.fence:>16}  {json.dumps(row.detail)}")


if __name__ == "__main__":
    main()
