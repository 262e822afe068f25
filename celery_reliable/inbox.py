"""Commit the done marker of a job with its effect, in the database of the effect.

The store may lose everything: a run that comes again finds the marker and reports what was committed. What is decided
here; how a database is spoken to is given (`contrib.sqlalchemy`, `django.inbox`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from celery_reliable.errors import AlreadyCommitted, ConfigurationError, LeaseLost, StoreError
from celery_reliable.stores.base import Job, Store

# The unique index is the arbiter: a second run waits here until the first has committed or rolled back. A marker whose
# time is over counts as none.
_TAKE = """
INSERT INTO celery_reliable_inbox (prefix, digest, fence, outcome, ends)
VALUES (:prefix, :digest, :fence, :outcome, {now} + :ttl)
ON CONFLICT (prefix, digest) DO UPDATE SET fence = excluded.fence, outcome = excluded.outcome, ends = excluded.ends
WHERE celery_reliable_inbox.ends <= {now}
"""
# MariaDB's upsert does not tell whether it took. IGNORE tells, and each of these values fits its column.
_TAKE_NEW = """
INSERT IGNORE INTO celery_reliable_inbox (prefix, digest, fence, outcome, ends)
VALUES (:prefix, :digest, :fence, :outcome, {now} + :ttl)
"""
_IS_OVER = """
SELECT 1 FROM celery_reliable_inbox WHERE prefix = :prefix AND digest = :digest AND ends <= {now} LOCK IN SHARE MODE
"""
_TAKE_OVER = """
UPDATE celery_reliable_inbox SET fence = :fence, outcome = :outcome, ends = {now} + :ttl
WHERE prefix = :prefix AND digest = :digest AND ends <= {now}
"""
_OVER = """
SELECT digest FROM celery_reliable_inbox FORCE INDEX (celery_reliable_inbox_ends)
WHERE prefix = :prefix AND ends <= {now} ORDER BY ends LIMIT :limit {skip_locked}
"""
_DELETE = "DELETE FROM celery_reliable_inbox WHERE prefix = :prefix AND digest IN ({digests})"
_READ = "SELECT outcome FROM celery_reliable_inbox WHERE prefix = :prefix AND digest = :digest"
# What another run has committed since this transaction began, which is REPEATABLE READ on MariaDB.
_READ_ANEW = f"{_READ} LOCK IN SHARE MODE"
_WRITE = "UPDATE celery_reliable_inbox SET outcome = :outcome WHERE prefix = :prefix AND digest = :digest"
_TIDY = """
DELETE FROM celery_reliable_inbox WHERE prefix = :prefix AND digest IN (
    SELECT digest FROM celery_reliable_inbox WHERE prefix = :prefix AND ends <= {now} LIMIT :limit {skip_locked}
)
"""
_NOTHING = b"null"
_MARIADB = "mariadb"
_KINDS = ("postgresql", "sqlite", _MARIADB)


class Database(Protocol):
    """The caller's open transaction."""

    @property
    def kind(self) -> str:
        """The kind of server: ``postgresql``, ``mariadb`` or ``sqlite``."""
        ...

    @property
    def name(self) -> str:
        """Which database it is, for people."""
        ...

    @property
    def remedy(self) -> str:
        """How the table of the inbox is made there."""
        ...

    def change(self, statement: str, values: dict[str, Any]) -> int:
        """Run a statement with ``:name`` values; return how many rows it changed."""
        ...

    def rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Run a statement that answers rows."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim under which the effect happens."""

    job: Job
    fence: int
    prefix: str
    ttl: float
    """Seconds for which the marker lives: as long as that in the store."""
    store: Store


@dataclass(slots=True)
class Done:
    """What a run that finds the marker reports: set ``result`` before the block ends. It must be JSON."""

    result: Any = None


@contextmanager
def once_committed(transaction: Callable[[], AbstractContextManager[Database]], claim: Claim | None) -> Iterator[Done]:
    """Run the block in a transaction that also commits its marker; without a claim, in a plain one.

    Raises `AlreadyCommitted` instead of running the block when an earlier run committed, and `LeaseLost` at its end
    when another claim has been made meanwhile: then nothing is committed.
    """
    done = Done()
    with transaction() as database:
        if claim is None:
            yield done
            return
        _take(database, claim)
        yield done
        _finish(database, claim, done.result)


def tidy(database: Database, *, prefix: str, limit: int = 1000) -> int:
    """Remove markers whose time is over, at most ``limit``; return how many."""
    values = {"prefix": prefix, "limit": limit}
    if database.kind != _MARIADB:
        return database.change(_words(database, _TIDY), values)
    from celery_reliable.stores.sql.tables import filled  # noqa: PLC0415  # see `_words`

    digests = [digest for (digest,) in database.rows(_words(database, _OVER), values)]
    statement, listed = filled(_DELETE, {"digests": digests})
    return database.change(statement, {"prefix": prefix, **listed}) if digests else 0


WRITES = re.compile(r"\s*(with\b.*?\b)?(insert|update|delete|merge|replace|truncate)\b", re.IGNORECASE | re.DOTALL)
"""Begins a statement that changes something."""


def refuse_another_database(statement: str, *, marker: str, found: str) -> None:
    """Raise `ConfigurationError` for a write inside an inbox that would not be committed with its marker."""
    if WRITES.match(statement):
        words = " ".join(statement.split()[:4])
        msg = (
            f"inbox: expected the effect in the database of its marker, {marker}, found a write to {found} ({words} ...): they "
            "would not be committed together, so that the effect could happen twice, or never; open the inbox on the "
            "database of the effect, or write there before or after the block"
        )
        raise ConfigurationError(msg)


def is_superseded(claim: Claim) -> bool:
    """Ask the store whether another claim was made meanwhile; one that is away, or has forgotten the job, says no."""
    try:
        record = claim.store.inspect(claim.job)
    except StoreError:
        return False
    return int(record.get("fence", 0)) > claim.fence


def _take(database: Database, claim: Claim) -> None:
    place = {"prefix": claim.prefix, "digest": claim.job.digest}
    ttl = int(claim.ttl * 1e6)
    values = {**place, "fence": claim.fence, "outcome": _NOTHING, "ttl": ttl}
    if _changed(database, values):
        if claim.job.digest[0] == 0:  # one job in 256 removes up to a thousand
            tidy(database, prefix=claim.prefix)
        return
    found = database.rows(_READ_ANEW if database.kind == _MARIADB else _READ, place)
    raise AlreadyCommitted(json.loads(bytes(found[0][0])) if found else None)


def _changed(database: Database, values: dict[str, Any]) -> bool:
    from celery_reliable.stores.sql.errors import is_broken, is_missing_table  # noqa: PLC0415  # see `_words`

    _words(database, _TAKE)  # refuses other kinds of servers
    try:
        return _has_taken(database, values)
    except Exception as exc:
        if is_missing_table(exc):
            found = f"inbox: expected the table celery_reliable_inbox in {database.name}, found none"
            raise ConfigurationError(f"{found}; make it with: {database.remedy}") from exc
        if is_broken(exc):
            msg = f"inbox: expected a sound transaction on {database.name}, found one that has failed before; end it first"
            raise ConfigurationError(msg) from exc
        raise  # the server is away, or whatever else the task's own rules know


def _has_taken(database: Database, values: dict[str, Any]) -> bool:
    if database.kind != _MARIADB:
        return database.change(_words(database, _TAKE), values) > 0
    if database.change(_words(database, _TAKE_NEW), values):
        return True
    place = {name: values[name] for name in ("prefix", "digest")}
    over = database.rows(_words(database, _IS_OVER), place)  # else two that wait would both want to write
    return bool(over) and database.change(_words(database, _TAKE_OVER), values) > 0


def _finish(database: Database, claim: Claim, result: Any) -> None:
    if result is not None:
        outcome = _encoded(result)
        database.change(_WRITE, {"prefix": claim.prefix, "digest": claim.job.digest, "outcome": outcome})
    if is_superseded(claim):
        msg = f"another run took over {claim.job.key!r} (fence {claim.fence} is old); its transaction is rolled back"
        raise LeaseLost(msg)


def _encoded(result: Any) -> bytes:
    try:
        return json.dumps(result, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        found = f"inbox: expected a result of plain data, found {type(result).__qualname__} ({exc})"
        raise ConfigurationError(f"{found}; keep numbers, texts, lists and dicts") from exc


def _words(database: Database, statement: str) -> str:
    from celery_reliable.stores.sql.statements import DIALECTS, spoken  # noqa: PLC0415  # for tasks that have an inbox

    if database.kind not in _KINDS:
        found = f"inbox: expected a database on {' or '.join(_KINDS)}, found {database.kind}"
        raise ConfigurationError(f"{found}; keep the effect of this task in one of these, or send its key with it")
    return spoken(statement, DIALECTS[database.kind])
