"""Speak to the caller's open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


class Database:
    """See `celery_reliable.inbox.Database`."""

    def __init__(self, session: Session | Connection) -> None:
        """Take what the caller works with."""
        self.session = session
        engine = session.get_bind() if isinstance(session, Session) else session
        self.kind = str(engine.dialect.name)
        self.place = engine.engine

    def change(self, statement: str, values: dict[str, Any]) -> int:
        """See `Database.change`."""
        result: Any = self.session.execute(text(statement), values)
        return int(result.rowcount)

    def rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """See `Database.rows`."""
        return list(self.session.execute(text(statement), values).all())


@contextmanager
def transaction(session: Session | Connection) -> Iterator[Database]:
    """Commit at the end of the block what the session did, also before the block; roll it back after an exception."""
    try:
        yield Database(session)
        session.commit()
    except BaseException:
        session.rollback()
        raise
