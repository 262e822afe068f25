"""Let submissions wait in the caller's own transaction: what an outbox does, and what it needs of a transaction."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from celery_reliable.stores.base import Job


class Delivering(Protocol):
    """Who publishes what was committed."""

    def deliver(self, task_ids: Sequence[str]) -> None:
        """Publish these submissions, or leave them to a relay. Never raises."""
        ...


class Transaction(Protocol):
    """The caller's open transaction, in the words that `celery_reliable.inbox.Database` has too."""

    @property
    def kind(self) -> str:
        """The kind of server: ``postgresql``, ``mariadb`` or ``sqlite``."""
        ...

    @property
    def place(self) -> Hashable:
        """What has the same database for ever: an engine, an alias."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What `change` and `rows` raise when the driver did."""
        ...

    def change(self, statement: str, values: dict[str, Any]) -> int:
        """Run a statement with ``:name`` values; return how many rows it changed."""
        ...

    def rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Run a statement that answers rows."""
        ...

    def after_commit(self, relay: Delivering, task_id: str) -> None:
        """Have the submission delivered once the transaction has committed, if that can be told."""
        ...


@dataclass(frozen=True, slots=True)
class Promise:
    """A submission that was committed and, as far as is known, not published. ``made_at``: microseconds."""

    task_id: str
    envelope: bytes
    made_at: int


class Outbox(Protocol):
    """Submissions that wait for their publish in the database of the store."""

    def transaction(self) -> Transaction | None:
        """Return the transaction to which submissions made now belong; None when they belong to none.

        Raises `ConfigurationError` for one in another database: nobody would look there.
        """
        ...

    def elsewhere(self) -> str:
        """Return the name of a database on which a transaction is open that submissions cannot belong to; "" for none."""
        ...

    def promise(self, transaction: Transaction, job: Job, *, task_id: str, envelope: bytes) -> None:
        """Write a submission into the caller's transaction, by one INSERT.

        Raises `StoreError` when the database refuses it: a broken or read-only transaction, tables that are missing.
        """
        ...

    def holder(self, transaction: Transaction, job: Job) -> tuple[str, str] | None:
        """Return (task id, state) of the job that has the key, as the caller's transaction sees it, if it has not failed."""
        ...

    def take(self, *, limit: int, hold: float, task_ids: Sequence[str] = ()) -> list[Promise]:
        """Take committed submissions for ``hold`` seconds, the oldest first, of one key only the oldest.

        Whoever takes at the same time gets others. ``task_ids``: only these, at once.
        """
        ...

    def published(self, promise: Promise, *, envelope: bytes | None) -> None:
        """Note that a submission was published; its entry is the ledger's from now on, or goes (None)."""
        ...

    def put_off(self, promises: Sequence[Promise], *, delay: float, failed: bool) -> int:
        """Let submissions be taken again in ``delay`` seconds; return how often, at most, one of them has ``failed``."""
        ...


_named: ContextVar[Transaction | None] = ContextVar("celery_reliable_transaction", default=None)


def named_transaction() -> Transaction | None:
    """Return the transaction that the caller has named, if any."""
    return _named.get()


@contextmanager
def naming(transaction: Transaction) -> Iterator[None]:
    """Let the submissions of a block belong to a transaction."""
    before = _named.set(transaction)
    try:
        yield
    finally:
        _named.reset(before)
