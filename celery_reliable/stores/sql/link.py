"""Reach a database: connections of this process, and what was said on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from typing import Any, Protocol

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores.outbox import Transaction
from celery_reliable.stores.sql.statements import Dialect

Row = tuple[Any, ...]
Values = Mapping[str, Any]

# A process that is frozen between two statements must not keep the others from its rows.
IDLE_IN_TRANSACTION = 10.0
_OLDEST_MARIADB = (10, 6)  # the first that has SKIP LOCKED


class Session(Protocol):
    """One connection, for one step of one thread."""

    kept: bool
    """Whether the connection was made for an earlier step, so that the server may have closed it meanwhile."""

    def rows(self, statement: str, values: Values) -> list[Row]:
        """Run a statement that answers rows."""
        ...

    def change(self, statement: str, values: Values) -> int:
        """Run a statement; return how many rows it changed, 0 for a row that is there where the dialect's INSERT only fails."""
        ...

    def run(self, statement: str) -> None:
        """Run a statement without values: BEGIN, COMMIT, ROLLBACK."""
        ...


@dataclass(frozen=True, slots=True)
class Lone:
    """A connection that no pool has and nobody else uses: a session for any number of steps, and the driver's object."""

    session: Session
    driver: Any
    close: Callable[[], None]
    """May be called twice."""


class Link(Protocol):
    """How the store reaches its database.

    Survives a fork: a child opens connections of its own, and never touches its parent's. Safe for threads and
    greenlets, since a connection is taken out for the time of a step.
    """

    errors: tuple[type[Exception], ...]
    """What a session raises when the driver did."""
    remedy: str
    """How the tables are made."""

    @property
    def dialect(self) -> Dialect:
        """The kind of server."""
        ...

    def session(self) -> AbstractContextManager[Session]:
        """Take a connection; after an exception it is rolled back, or given up if it was lost."""
        ...

    def lone(self) -> Lone:
        """Open a connection for what belongs to a session of the server, outside of any transaction."""
        ...

    def open_transaction(self) -> Transaction | None:
        """Return the transaction of the calling thread on this database, if there is one and the link can know."""
        ...

    def open_elsewhere(self) -> str:
        """Return the name of a database on which it has one open that submissions cannot belong to, "" for none."""
        ...

    def close(self) -> None:
        """Close every connection. May be called twice."""
        ...


def postgres_options(timeout: float) -> str:
    """Return what a server is told at the start of a session, in milliseconds."""
    settings = {
        "statement_timeout": timeout,
        "lock_timeout": timeout,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION,
    }
    return " ".join(f"-c {name}={int(value * 1000)}" for name, value in settings.items())


def postgres_arguments(timeout: float) -> dict[str, Any]:
    """Return libpq's arguments that bound every wait for a server: connecting, a lost packet, a silent network."""
    seconds = max(int(timeout), 2)  # libpq takes whole seconds, and no less than two
    return {
        "connect_timeout": seconds,
        "options": postgres_options(timeout),
        "keepalives_idle": seconds,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": int(timeout * 1000),
        "application_name": "celery_reliable",
    }


def mariadb_arguments(timeout: float) -> dict[str, Any]:
    """Return what bounds every wait, in whole seconds, of PyMySQL and mysqlclient; the server's own word comes first."""
    longer = int(timeout) + 1
    return {"connect_timeout": max(int(timeout), 1), "read_timeout": longer, "write_timeout": longer}


def mariadb_refusal(driver: Any) -> str | None:
    """Say what is wrong with a server that goes by MySQL's name, None for a MariaDB that has SKIP LOCKED."""
    found = str(driver.get_server_info())
    version = re.search(r"(\d+)\.(\d+)\.\d+-MariaDB", found)
    if version is not None and (int(version[1]), int(version[2])) >= _OLDEST_MARIADB:
        return None
    return f"expected MariaDB 10.6 or newer, found {found}"


def prepare_mariadb(driver: Any, *, timeout: float) -> None:
    """Say what the store expects of a session, whatever the server's own defaults are.

    Raises `ConfigurationError` for a MariaDB without SKIP LOCKED, and for a MySQL.
    """
    if refusal := mariadb_refusal(driver):
        raise ConfigurationError(f"reliable_store_url: {refusal}; name another server, PostgreSQL or Redis")
    settings = {
        "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",  # what is too long is refused, not cut
        "time_zone": "'+00:00'",
        "max_statement_time": timeout,
        "innodb_lock_wait_timeout": max(int(timeout), 1),
        "idle_transaction_timeout": int(IDLE_IN_TRANSACTION),
    }
    with driver.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in settings.items()))


def bound_waits(driver: Any, *, timeout: float) -> None:
    """Give up an answer that does not come, from a server that is frozen: psycopg 3.3 can, other drivers wait.

    A second later than the server itself would end the statement, so that its word comes first.
    """
    wait = getattr(driver, "wait", None)
    if wait is not None and "timeout" in signature(wait).parameters:
        driver.wait = partial(wait, timeout=timeout + 1.0)


@lru_cache(maxsize=1024)
def percent(statement: str) -> str:
    """Return a statement with ``%(name)s`` for ``:name``."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)


def style(dialect: Dialect) -> Callable[[str], str]:
    """Return what turns ``:name`` into the way in which the dialect's drivers name values."""
    return str if dialect.name == "sqlite" else percent
