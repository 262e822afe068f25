"""Keep the records in a database: PostgreSQL, MariaDB or SQLite, by URL or through Django's connection.

Every verb is one statement or one short transaction. The row of the key is locked while its verb decides, and never
between verbs: no lock is held while a task runs. Of two that find no row, the unique index lets one write it; the other
begins its verb again and finds it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

from celery_reliable.errors import StoreError, StoreUnavailable
from celery_reliable.stores.base import Job
from celery_reliable.stores.sql import ddl
from celery_reliable.stores.sql.errors import TryAgain, is_again, is_away, translated
from celery_reliable.stores.sql.link import Link, Session
from celery_reliable.stores.sql.lives import SqlLives
from celery_reliable.stores.sql.notes import SqlNotes
from celery_reliable.stores.sql.outbox import SqlOutbox
from celery_reliable.stores.sql.statements import Statements, load
from celery_reliable.stores.sql.tables import BATCH, SqlTables, filled
from celery_reliable.stores.verbs import SharedVerbs, Tables

T = TypeVar("T")

_PAUSE = 0.01  # seconds: the first pause before a step that met another one, doubling up to
_LONGEST_PAUSE = 0.25
_TIDY_EVERY = 5.0  # seconds between two rounds of retention in one process
_BATCHES = 10  # of one round, some 20 ms each: whoever renews must not be late; the next round goes on
_OFFSET_AGE = 60.0  # seconds: how long a measured offset between our clock and the server's serves
_LAST_OUTCOMES = "a crash of the server forgets the last outcomes, and their tasks run again"
_FORGETFUL = {
    "postgresql": {
        "fsync": "a crash of the server may destroy every record; set it to on",
        "synchronous_commit": f"{_LAST_OUTCOMES}; set it to on",
    },
    "mariadb": {"innodb_flush_log_at_trx_commit": f"{_LAST_OUTCOMES}; set it to 1"},
}
_ASK = {"postgresql": "SELECT current_setting('{}')", "mariadb": "SELECT CAST(@@{} AS char)"}
_FORGETFUL_VALUES = ("off", "0", "2")


class SqlStore(SharedVerbs):
    """The store in a database. See `open_sql_store`.

    .. versionadded:: 0.1
    """

    def __init__(self, link: Link, *, key_prefix: str, timeout: float) -> None:
        """Take a link; nothing connects before the first verb."""
        self._link = link
        self._prefix = key_prefix
        self._timeout = timeout
        self.notes = SqlNotes(self._step, lambda: self._statements, prefix=key_prefix)
        self.outbox = SqlOutbox(self._step, lambda: self._statements, link, prefix=key_prefix)
        self.lives = SqlLives(link, self._step)
        self._tidied = float("-inf")
        self._knows_schema = False
        self._offset: tuple[float, float] | None = None

    @cached_property
    def _statements(self) -> Statements:
        """Load them at the first verb: Django's settings, which name the kind of server, are not read before."""
        return load(self._link.dialect)

    # --- one step

    def _atomically(self, work: Callable[[Tables], T]) -> T:
        return self._step(lambda session: self._committed(session, work))

    def _committed(self, session: Session, work: Callable[[Tables], T]) -> T:
        tables = SqlTables(session, self._statements, prefix=self._prefix)
        answer = work(tables)
        tables.commit()
        return answer

    def _step(self, work: Callable[[Session], T]) -> T:
        """Do it on a session, once it is known that this code understands the tables."""
        if not self._knows_schema:
            self._expect_known_schema()
        return self._insisted(work)

    def _expect_known_schema(self) -> None:
        """Look once: code that is older than the tables would write rows that newer code takes for broken ones."""
        rows = self._insisted(lambda session: session.rows(self._statements.texts["read_schema"], {}))
        if rows and rows[0][0] > ddl.NUMBER:
            found = f"found tables with the schema {rows[0][0]}, which a newer one has made"
            raise StoreError(
                f"store (reliable_store_url): expected tables that this celery_reliable knows (schema {ddl.NUMBER}), {found}; "
                "upgrade celery-reliable here: nothing was read or changed"
            )
        self._knows_schema = True

    def _insisted(self, work: Callable[[Session], T]) -> T:
        """Do it on a session; again when it met another step, and once more when a kept connection was lost."""
        deadline, pause, lost_one = time.monotonic() + self._timeout, _PAUSE, False
        expected: tuple[type[Exception], ...] = (TryAgain, *self._link.errors)
        while True:
            kept = False
            try:
                with self._link.session() as session:
                    kept = session.kept
                    return work(session)
            except expected as exc:
                if is_again(exc) and time.monotonic() < deadline:
                    time.sleep(random.uniform(0, pause))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                elif kept and not lost_one and is_away(exc):
                    lost_one = True
                else:
                    raise self._translated(exc) from exc

    def _translated(self, exc: Exception) -> Exception:
        if isinstance(exc, TryAgain):
            return StoreUnavailable("store (reliable_store_url): too many changes of one key; the call is tried again")
        return translated(exc, tables=self._link.remedy)

    # --- verbs that need no lock

    def entry(self, job: Job, *, task_id: str) -> bytes | None:
        """See `Store.entry`."""
        values = {"prefix": self._prefix, "task_id": task_id}
        rows = self._step(lambda session: session.rows(self._statements.texts["read_entry"], values))
        return bytes(rows[0][0]) if rows else None

    def ledger(self, *, limit: int = BATCH) -> Iterator[tuple[str, bytes]]:
        """See `Store.ledger`: in the order of ids, a page at a time."""
        cursor = ""
        while page := self._page(cursor, limit=limit):
            yield from page
            cursor = page[-1][0]

    def _page(self, cursor: str, *, limit: int) -> list[tuple[str, bytes]]:
        values = {"prefix": self._prefix, "cursor": cursor, "limit": limit}
        rows = self._step(lambda session: session.rows(self._statements.texts["page_of_ledger"], values))
        return [(task_id, bytes(envelope)) for task_id, envelope in rows]

    def now(self) -> int:
        """See `Store.now`."""
        known = self._offset
        if known is None or time.monotonic() - known[1] > _OFFSET_AGE:
            self._offset = known = self._measured()
        return int((time.monotonic() + known[0]) * 1e6)

    def known_now(self) -> int | None:
        """See `Store.known_now`."""
        known = self._offset
        return None if known is None else int((time.monotonic() + known[0]) * 1e6)

    def _measured(self) -> tuple[float, float]:
        before = time.monotonic()
        ((now,),) = self._step(lambda session: session.rows(self._statements.texts["read_clock"], {}))
        after = time.monotonic()
        return now / 1e6 - (before + after) / 2, after

    # --- retention

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """See `Store.renew`. Every worker calls it again and again, so it also removes what is old, in batches."""
        lost = super().renew(claims, pulse_ttl=pulse_ttl)
        if time.monotonic() - self._tidied > _TIDY_EVERY:
            self._tidied = time.monotonic()
            with suppress(StoreError):  # the leases are renewed; what is old can wait
                self.tidy(batches=_BATCHES)
        return lost

    def tidy(self, *, batches: int) -> int:
        """Remove records and notes whose time is over, at most so many batches of a thousand; return how many.

        Several workers may do it at once: each takes what no other has locked.
        """
        removed = 0
        for _ in range(batches):
            count = self._step(self._tidied_batch)
            removed += count
            if count < BATCH:
                break
        return removed

    def _tidied_batch(self, session: Session) -> int:
        session.run(self._statements.begin)
        values = {"prefix": self._prefix, "limit": BATCH}
        digests = [row[0] for row in session.rows(self._statements.texts["ended_records"], values)]
        for name in ("delete_progresses", "delete_records") if digests else ():
            statement, listed = filled(self._statements.texts[name], {"digests": digests})
            session.change(statement, {"prefix": self._prefix, **listed})
        notes = session.change(self._statements.texts["delete_old_notes"], values)
        session.run("COMMIT")
        return max(len(digests), notes)

    # --- the server

    def schema(self) -> list[str]:
        """Return the statements that make the tables which are not there yet, and note what they are."""
        return [*ddl.statements(self._link.dialect.name), ddl.stamp(dialect=self._link.dialect.name)]

    def create_tables(self) -> None:
        """Make the tables that are not there yet, all or none; on MariaDB one by one, for each makes itself so."""
        self._insisted(self._created)
        self._expect_known_schema()

    def _created(self, session: Session) -> None:
        session.run(self._statements.begin)
        for statement in self.schema():
            session.run(statement)
        session.run("COMMIT")

    def findings(self) -> list[str]:
        """See `Store.findings`: tables that are not there, and a server that may forget what it confirmed."""
        try:
            found = self._step(self._settings)
        except StoreUnavailable:
            raise
        except StoreError as exc:
            return [str(exc)]
        return [f"{name} is {value}: {why}" for name, value, why in found if value in _FORGETFUL_VALUES]

    def _settings(self, session: Session) -> list[tuple[str, str, str]]:
        session.rows(self._statements.texts["read_fleet"], {"prefix": self._prefix})
        kind = self._link.dialect.name
        return [
            (name, str(session.rows(_ASK[kind].format(name), {})[0][0]), why)
            for name, why in _FORGETFUL.get(kind, {}).items()
        ]

    def newer_layout(self) -> str:
        """See `Store.newer_layout`: every verb refuses newer tables by itself."""
        return ""

    def close(self) -> None:
        """See `Store.close`."""
        self.lives.close()
        self._link.close()
