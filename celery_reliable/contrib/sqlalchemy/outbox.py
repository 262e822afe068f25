"""Let submissions belong to the transaction of a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_reliable.contrib.sqlalchemy.inbox import Database
from celery_reliable.stores.outbox import Delivering, naming

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_PROMISED = "celery_reliable_promised"


@contextmanager
def outbox(session: Session | Connection, /) -> Iterator[None]:
    """Let what is submitted in the block belong to the open transaction of a session: no commit, no task.

        with Session(engine) as session, session.begin():
            session.add(order)
            with outbox(session):
                send_invoice.delay(order.id)

    Guarantee: ``delay`` and ``apply_async`` of reliable tasks, also through chains and groups, write one row in the
    transaction and publish nothing. A rollback, also one to a savepoint, drops the submission. After the commit this
    process publishes it; if it dies, or the broker is away, a worker or ``celery reliable relay`` does. A broker that is
    away is no error here.

    Limits: the store is the session's own database, else `ConfigurationError`; the first block of an engine asks once
    whether it is. A key is decided when the submission is published: the handle has an id of its own, and a duplicate
    ends with the outcome of the job that has the key. What is submitted through a plain `Connection`, which does not
    tell when it has committed, is published by a relay, within a second or two.

    .. versionadded:: 0.1
    """
    with naming(_Transaction(session)):
        yield


class _Transaction(Database):
    """See `celery_reliable.stores.outbox.Transaction`."""

    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)

    def after_commit(self, relay: Delivering, task_id: str) -> None:
        """See `Transaction.after_commit`; what a savepoint took back is no longer found when it is looked for."""
        session = self.session
        if not isinstance(session, Session):
            return
        if not event.contains(session, "after_commit", _deliver):
            event.listen(session, "after_commit", _deliver)
        session.info.setdefault(_PROMISED, {}).setdefault(relay, []).append(task_id)


def _deliver(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint was released: nobody else sees the rows yet
    promised: dict[Delivering, list[str]] = session.info.pop(_PROMISED, {})
    for relay, task_ids in promised.items():
        relay.deliver(task_ids)
