"""Reach the database of a Django project by its alias, over connections of our own.

Not over ``connections[alias]``: what the store writes would be undone with the caller's transaction, and its rows would
stay locked for as long as that transaction takes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, IntegrityError, connections, transaction
from django.db.utils import ConnectionDoesNotExist

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores.outbox import Delivering
from celery_reliable.stores.sql.errors import is_away, is_duplicate
from celery_reliable.stores.sql.link import (
    Lone,
    Row,
    Values,
    bound_waits,
    mariadb_arguments,
    mariadb_refusal,
    percent,
    postgres_arguments,
    prepare_mariadb,
)
from celery_reliable.stores.sql.statements import DIALECTS, Dialect, kind_of

_BOUNDS: Mapping[str, Callable[[float], dict[str, Any]]] = {
    "postgresql": postgres_arguments,
    "mariadb": mariadb_arguments,
    "sqlite": lambda timeout: {"timeout": timeout},
}
_KEPT = 20  # idle connections kept open at most


class DjangoLink:
    """See `Link`."""

    errors: tuple[type[Exception], ...] = (Error, OSError)
    remedy = (
        "create them with: python manage.py migrate celery_reliable (and 'celery_reliable.django' in INSTALLED_APPS)"
    )

    def __init__(self, url: str, *, timeout: float) -> None:
        """Take ``django://ALIAS``; Django's settings are read at the first use."""
        self._alias = url.partition("://")[2].strip("/") or "default"
        self._timeout = timeout
        self._idle: deque[Any] = deque(maxlen=_KEPT)
        self._inherited: list[deque[Any]] = []
        self._pid = os.getpid()

    @cached_property
    def dialect(self) -> Dialect:
        """Return the kind of server that the alias names."""
        vendor = self._new().vendor
        if kind_of(vendor) not in DIALECTS:
            found = f"reliable_store_url: expected an alias on {' or '.join(DIALECTS)}, found {vendor}"
            raise ConfigurationError(f"{found} under {self._alias!r} in DATABASES; name another alias, or use Redis")
        return DIALECTS[kind_of(vendor)]

    @contextmanager
    def session(self) -> Iterator[DjangoSession]:
        """See `Link.session`."""
        connection, kept = self._taken()
        try:
            yield DjangoSession(connection, kept=kept)
        except BaseException as exc:
            if is_away(exc) or not isinstance(exc, Exception) or not _rolled_back(connection):
                _closed(connection)
            else:
                self._idle.append(connection)
            raise
        self._idle.append(connection)

    def _taken(self) -> tuple[Any, bool]:
        if self._pid != os.getpid():
            self._inherited.append(self._idle)  # never collected: that would end the parent's sessions
            self._idle, self._pid = deque(maxlen=_KEPT), os.getpid()
        with suppress(IndexError):
            return self._idle.pop(), True
        return self._connected(), False

    def _connected(self) -> Any:
        connection = self._new()
        connection.connect()
        if self.dialect.name == "mariadb":
            prepare_mariadb(connection.connection, timeout=self._timeout)
        else:
            bound_waits(connection.connection, timeout=self._timeout)
        return connection

    def lone(self) -> Lone:
        """See `Link.lone`."""
        connection = self._connected()
        return Lone(DjangoSession(connection, kept=False), connection.connection, partial(_closed, connection))

    def _new(self) -> Any:
        """Make a connection that is not Django's own for this thread, and that another thread may use later."""
        try:
            connection = connections.create_connection(self._alias)
        except (KeyError, ConnectionDoesNotExist, ImproperlyConfigured) as exc:
            found = f"reliable_store_url: expected an alias of DATABASES, found django://{self._alias} ({exc})"
            raise ConfigurationError(f"{found}; name one that is there, and set DJANGO_SETTINGS_MODULE") from exc
        connection.inc_thread_sharing()
        connection.settings_dict = _bounded(connection, timeout=self._timeout)
        return connection

    def open_transaction(self) -> DjangoTransaction | None:
        """See `Link.open_transaction`: Django's own connection of this thread, inside ``atomic``."""
        connection = self._callers()
        return DjangoTransaction(connection) if connection.in_atomic_block else None

    def open_elsewhere(self) -> str:
        """See `Link.open_elsewhere`; one that was begun by hand counts, since nothing tells when it commits."""
        return next((one.alias for one in connections.all(initialized_only=True) if _is_in_transaction(one)), "")

    def _callers(self) -> Any:
        try:
            return connections[self._alias]
        except (ConnectionDoesNotExist, ImproperlyConfigured):
            return self._new()  # which says what is wrong

    def close(self) -> None:
        """See `Link.close`."""
        while self._idle and self._pid == os.getpid():
            _closed(self._idle.pop())


class DjangoSession:
    """See `Session`."""

    def __init__(self, connection: Any, *, kept: bool) -> None:
        """Take a connection."""
        self._connection = connection
        self.kept = kept

    def rows(self, statement: str, values: Values) -> list[Row]:
        """See `Session.rows`."""
        with self._connection.cursor() as cursor:
            cursor.execute(percent(statement), dict(values))
            return [tuple(row) for row in cursor.fetchall()]

    def change(self, statement: str, values: Values) -> int:
        """See `Session.change`."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(percent(statement), dict(values))
            except IntegrityError as exc:
                if is_duplicate(exc):
                    return 0
                raise
            return int(cursor.rowcount)

    def run(self, statement: str) -> None:
        """See `Session.run`."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


class DjangoTransaction(DjangoSession):
    """See `Transaction`."""

    errors: tuple[type[Exception], ...] = (Error, OSError)

    def __init__(self, connection: Any) -> None:
        """Take Django's connection, inside ``atomic``."""
        super().__init__(connection, kept=True)
        self.kind = kind_of(connection.vendor)
        self.place = str(connection.alias)

    def after_commit(self, relay: Delivering, task_id: str) -> None:
        """See `Transaction.after_commit`: Django drops it with a savepoint that is rolled back."""
        transaction.on_commit(partial(relay.deliver, [task_id]), using=self.place)


def server_of(connection: Any) -> str:
    """Return the kind of server behind one of Django's connections, "" for one that cannot have our tables."""
    kind = kind_of(connection.vendor)
    if kind == "mariadb":
        connection.ensure_connection()
        kind = kind if mariadb_refusal(connection.connection) is None else ""
    return kind if kind in DIALECTS else ""


def _bounded(connection: Any, *, timeout: float) -> Mapping[str, Any]:
    """Return the connection's settings with bounds on its waits; the project's own options win."""
    settings = connection.settings_dict
    bounds = _BOUNDS.get(kind_of(connection.vendor))
    options = {**(bounds(timeout) if bounds else {}), **settings["OPTIONS"]}
    options.pop("pool", None)  # a pool of Django's would be another one beside ours
    return {**settings, "OPTIONS": options, "AUTOCOMMIT": True, "ATOMIC_REQUESTS": False}


def _is_in_transaction(connection: Any) -> bool:
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def _rolled_back(connection: Any) -> bool:
    """End what was begun, if anything was; say whether the connection can be used again."""
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
    return bool(connection.is_usable())


def _closed(connection: Any) -> None:
    with suppress(Error):
        connection.close()
