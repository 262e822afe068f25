"""Speak to the caller's open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import event, text
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from celery_reliable.errors import ConfigurationError
from celery_reliable.inbox import refuse_another_database
from celery_reliable.stores.sql.statements import kind_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine


class Database:
    """See `celery_reliable.inbox.Database`."""

    remedy = "celery_reliable.contrib.sqlalchemy.metadata.create_all(engine), or Alembic"

    def __init__(self, session: Session | Connection) -> None:
        """Take what the caller works with."""
        self.session = session
        engine = _bind(session)
        self.kind = kind_of(engine.dialect.name)
        self.place = engine.engine
        self.name = str(self.place.url)  # without the password

    def change(self, statement: str, values: dict[str, Any]) -> int:
        """See `Database.change`."""
        result: Any = self.session.execute(text(statement), values)
        return int(result.rowcount)

    def rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """See `Database.rows`."""
        return list(self.session.execute(text(statement), values).all())


def _bind(session: Session | Connection) -> Engine | Connection:
    if not isinstance(session, Session):
        return session
    try:
        return session.get_bind()
    except UnboundExecutionError as exc:
        found = "found one with a bind for each table (binds=) and none for the marker"
        msg = f"inbox: expected a session with a bind of its own, {found}; make it with Session(engine)"
        raise ConfigurationError(msg) from exc


@contextmanager
def transaction(session: Session | Connection) -> Iterator[Database]:
    """Commit at the end of the block what the session did, also before the block; roll it back after an exception.

    A write through the session to another database raises `ConfigurationError` before it is done.
    """
    try:
        with _alone(session, database := Database(session)):
            yield database
            session.commit()
    except BaseException:
        session.rollback()
        raise


@contextmanager
def _alone(session: Session | Connection, database: Database) -> Iterator[None]:
    """Look at every other connection that the session takes; a plain connection has no other."""
    if not isinstance(session, Session):
        yield
        return

    def look(_: Session, __: Any, connection: Connection) -> None:
        if connection.engine is not database.place:
            found = str(connection.engine.url)
            event.listen(connection, "before_cursor_execute", partial(_refuse_writes, database.name, found))

    event.listen(session, "after_begin", look)
    try:
        yield
    finally:
        event.remove(session, "after_begin", look)


def _refuse_writes(marker: str, found: str, _: Any, __: Any, statement: str, *___: Any) -> None:
    refuse_another_database(statement, marker=marker, found=found)
