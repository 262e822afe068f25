"""Reach a database by its URL, through SQLAlchemy's engine and pool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores.sql.errors import is_away, is_duplicate
from celery_reliable.stores.sql.link import (
    Lone,
    Row,
    Values,
    bound_waits,
    mariadb_arguments,
    postgres_arguments,
    prepare_mariadb,
    style,
)
from celery_reliable.stores.sql.statements import DIALECTS, Dialect

_KEPT = 5  # connections kept open between steps
_MOST = 20  # connections of one process at the same time; more threads wait for their turn


class AlchemyLink:
    """See `Link`."""

    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)
    remedy = "create them with: celery -A PROJECT reliable schema"

    def __init__(self, url: str, *, timeout: float) -> None:
        """Take the URL; nothing connects before the first step. ``timeout`` (seconds) bounds each wait."""
        self._url = _checked(url)
        self._timeout = timeout
        self.dialect: Dialect = DIALECTS[self._url.get_backend_name()]
        self._engine: Engine | None = None
        self._inherited: list[Engine] = []
        self._pid = 0

    @property
    def engine(self) -> Engine:
        """Return this process's engine."""
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                self._inherited.append(self._engine)  # never collected: that would end the parent's sessions
            self._engine, self._pid = self._made(), os.getpid()
        return self._engine

    def _made(self) -> Engine:
        engine = sqlalchemy.create_engine(
            self._url,
            isolation_level="AUTOCOMMIT",  # BEGIN and COMMIT are ours to say
            poolclass=QueuePool,
            pool_size=_KEPT,
            max_overflow=_MOST - _KEPT,
            pool_timeout=self._timeout,
            pool_use_lifo=True,
            connect_args=self._arguments(),
            hide_parameters=True,  # arguments and results of tasks stay out of errors
        )
        event.listen(engine, "connect", self._prepare, insert=True)  # before SQLAlchemy looks at the server
        return engine

    def _prepare(self, connection: Any, _: Any) -> None:
        if self.dialect.name == "sqlite":
            _prepare_sqlite(connection)
        elif self.dialect.name == "mariadb":
            prepare_mariadb(connection, timeout=self._timeout)
        else:
            bound_waits(connection, timeout=self._timeout)

    def _arguments(self) -> dict[str, Any]:
        if self.dialect.name == "sqlite":
            return {"timeout": self._timeout, "check_same_thread": False}
        bounds = mariadb_arguments if self.dialect.name == "mariadb" else postgres_arguments
        return {name: value for name, value in bounds(self._timeout).items() if name not in self._url.query}

    @contextmanager
    def session(self) -> Iterator[AlchemySession]:
        """See `Link.session`."""
        connection = self.engine.connect()
        try:
            yield AlchemySession(connection, dialect=self.dialect)
        except BaseException as exc:
            if is_away(exc) or not isinstance(exc, Exception):
                connection.invalidate()
            raise
        finally:
            connection.close()  # the pool rolls back what was begun and not ended

    def lone(self) -> Lone:
        """See `Link.lone`."""
        connection = self.engine.connect()
        driver: Any = connection.connection.driver_connection
        connection.detach()
        return Lone(AlchemySession(connection, dialect=self.dialect), driver, driver.close)

    def open_transaction(self) -> None:
        """See `Link.open_transaction`: SQLAlchemy's sessions belong to whoever made them, so they have to be named."""

    def open_elsewhere(self) -> str:
        """See `Link.open_elsewhere`."""
        return ""

    def close(self) -> None:
        """See `Link.close`."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()


class AlchemySession:
    """See `Session`."""

    def __init__(self, connection: Connection, *, dialect: Dialect) -> None:
        """Take a connection of the pool."""
        self._connection = connection
        self._spoken = style(dialect)
        self.kept = bool(connection.info.get("celery_reliable_kept"))
        connection.info["celery_reliable_kept"] = True

    def rows(self, statement: str, values: Values) -> list[Row]:
        """See `Session.rows`."""
        result = self._connection.exec_driver_sql(self._spoken(statement), dict(values))
        return [tuple(row) for row in result.all()]

    def change(self, statement: str, values: Values) -> int:
        """See `Session.change`."""
        try:
            return self._connection.exec_driver_sql(self._spoken(statement), dict(values)).rowcount
        except IntegrityError as exc:
            if is_duplicate(exc):
                return 0
            raise

    def run(self, statement: str) -> None:
        """See `Session.run`."""
        self._connection.exec_driver_sql(statement)


def _checked(url: str) -> URL:
    """Return the URL with the driver that we ask for. Raises `ConfigurationError`."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        found = "reliable_store_url: expected the path of a file, sqlite:///PATH, found a SQLite in memory"
        raise ConfigurationError(f"{found}, which no other process can see; name a file, or use memory:// in tests")
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        return parsed.set(drivername="mariadb+pymysql").update_query_dict({"charset": "utf8mb4"})
    return parsed


def _prepare_sqlite(connection: Any) -> None:
    """Let readers and one writer work at the same time; a commit is on the disk before it is told."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
