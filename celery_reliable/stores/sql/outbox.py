"""Keep submissions in the caller's transaction: rows of the ledger that say since when they wait for their publish."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from celery_reliable.errors import ConfigurationError, StoreError
from celery_reliable.stores.base import Job
from celery_reliable.stores.outbox import Promise, Transaction, named_transaction
from celery_reliable.stores.sql.errors import is_broken, is_read_only, translated
from celery_reliable.stores.sql.link import Link, Session
from celery_reliable.stores.sql.rows import microseconds
from celery_reliable.stores.sql.statements import Statements
from celery_reliable.stores.sql.tables import changed_rows, filled

_OWN_TIME = 1.0  # seconds in which the process that committed publishes it, before a relay takes it
# Of one server's life, the same through every address and pool; a restart between two answers is asked for again.
_WHICH = {
    "postgresql": (
        "SELECT current_database(), (SELECT CAST(oid AS bigint) FROM pg_database WHERE datname = current_database()), "
        "'started at ' || CAST(pg_postmaster_start_time() AS text)"
    ),
    "mariadb": "SELECT DATABASE(), @@datadir, concat('on ', @@hostname, ':', @@port)",
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
}


class SqlOutbox:
    """See `Outbox`."""

    def __init__(
        self,
        step: Callable[[Callable[[Session], Any]], Any],
        statements: Callable[[], Statements],
        link: Link,
        *,
        prefix: str,
    ) -> None:
        """Take what does a piece of work on a session as one step, and where the statements come from."""
        self._step, self._statements, self._link = step, statements, link
        self._prefix = prefix
        self._ours: set[Hashable] = set()

    # --- in the caller's transaction

    def transaction(self) -> Transaction | None:
        """See `Outbox.transaction`: the one that was named, else the one that the link finds open."""
        named = named_transaction()
        if named is None:
            return self._link.open_transaction()
        if named.place not in self._ours:
            self._refuse_another_database(named)
            self._ours.add(named.place)
        return named

    def elsewhere(self) -> str:
        """See `Outbox.elsewhere`."""
        return self._link.open_elsewhere()

    def promise(self, transaction: Transaction, job: Job, *, task_id: str, envelope: bytes) -> None:
        """See `Outbox.promise`."""
        values = {"task_id": task_id, "envelope": envelope, "digest": job.digest, "hold": microseconds(_OWN_TIME)}
        try:
            transaction.change(self._text("promise"), {"prefix": self._prefix, **values})
        except transaction.errors as exc:
            raise self._refusal(exc) from exc

    def holder(self, transaction: Transaction, job: Job) -> tuple[str, str] | None:
        """See `Outbox.holder`."""
        try:
            found = transaction.rows(self._text("holder"), {"prefix": self._prefix, "digest": job.digest})
        except transaction.errors as exc:
            raise self._refusal(exc) from exc
        return (found[0][0], found[0][1]) if found else None

    def _refusal(self, exc: Exception) -> StoreError:
        if is_broken(exc):
            return StoreError(
                "outbox: this transaction has failed before, nothing was submitted; leave its block first"
            )
        if is_read_only(exc):
            return StoreError(
                "outbox: this transaction is read-only, nothing was submitted; submit in one that may write"
            )
        return translated(exc, tables=self._link.remedy)

    def _refuse_another_database(self, named: Transaction) -> None:
        kind = self._link.dialect.name
        try:
            there = _place(named.rows(_WHICH[kind], {})) if named.kind == kind else named.kind
        except named.errors as exc:
            raise self._refusal(exc) from exc
        here = self._step(lambda session: _place(session.rows(_WHICH[kind], {})))
        if there != here:
            found = (
                f"outbox: expected a session on the database of the store (reliable_store_url), {here}, found {there}"
            )
            raise ConfigurationError(
                f"{found}: nobody would publish from there; name the session of the store's database, or submit after "
                "the commit"
            )

    # --- in a relay

    def take(self, *, limit: int, hold: float, task_ids: Sequence[str] = ()) -> list[Promise]:
        """See `Outbox.take`."""
        if task_ids:
            wanted = filled(self._text("these_promises"), {"task_ids": task_ids})
        elif self._step(self._some):
            wanted = self._text("due_promises"), {"limit": limit}
        else:
            return []
        taken: list[Promise] = self._step(partial(self._taken, *wanted, hold=hold))
        return taken

    def _some(self, session: Session) -> bool:
        return bool(session.rows(self._text("some_promise"), {"prefix": self._prefix}))

    def _taken(self, statement: str, values: Mapping[str, Any], session: Session, *, hold: float) -> list[Promise]:
        """Choose and hold in one transaction: rows that another relay has chosen are locked until it holds them."""
        session.run(self._statements().begin)
        rows = session.rows(statement, {"prefix": self._prefix, **values})
        taken = [Promise(task_id, bytes(envelope), made_at) for task_id, envelope, made_at in rows]
        if taken:
            self._delayed(session, taken, delay=hold, failed=False)
        session.run("COMMIT")
        return taken

    def published(self, promise: Promise, *, envelope: bytes | None) -> None:
        """See `Outbox.published`."""
        values = {"prefix": self._prefix, "task_id": promise.task_id, "made_at": promise.made_at}
        if envelope is None:
            self._step(lambda session: session.change(self._text("drop_published"), values))
        else:
            kept = {**values, "envelope": envelope}
            self._step(lambda session: session.change(self._text("keep_published"), kept))

    def put_off(self, promises: Sequence[Promise], *, delay: float, failed: bool) -> int:
        """See `Outbox.put_off`."""
        times: int = self._step(lambda session: self._delayed(session, promises, delay=delay, failed=failed))
        return times

    def _delayed(self, session: Session, promises: Sequence[Promise], *, delay: float, failed: bool) -> int:
        lists = {"task_ids": [one.task_id for one in promises]}
        values = {"prefix": self._prefix, "delay": microseconds(delay), "failed": int(failed)}
        found = changed_rows(session, self._statements().texts, "put_off_promises", lists, values)
        return max((times for (times,) in found), default=0)

    def _text(self, name: str) -> str:
        return self._statements().texts[name]


def _place(rows: list[Any]) -> str:
    """Return what names a database, for comparing and for people."""
    found = [str(part) for part in rows[0]]
    if len(found) > 1:
        return f"{found[0]} ({found[1]}) of the server {found[2]}"
    return str(Path(found[0]).resolve()) if found[0] else "a database in memory"
