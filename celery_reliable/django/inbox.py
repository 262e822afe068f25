"""Effects in a database of a Django project: the inbox in an ``atomic`` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db import transaction as django_transaction

from celery_reliable.inbox import refuse_another_database
from celery_reliable.stores.sql.link import percent
from celery_reliable.stores.sql.statements import kind_of


class _Database:
    """See `celery_reliable.inbox.Database`."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self.kind = kind_of(self._connection.vendor)
        self.name = f"DATABASES[{using!r}]"
        self.remedy = f"python manage.py migrate celery_reliable --database={using}"

    def change(self, statement: str, values: dict[str, Any]) -> int:
        """See `Database.change`."""
        with self._connection.cursor() as cursor:
            cursor.execute(percent(statement), values)
            return int(cursor.rowcount)

    def rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """See `Database.rows`."""
        with self._connection.cursor() as cursor:
            cursor.execute(percent(statement), values)
            return list(cursor.fetchall())


@contextmanager
def transaction(using: str) -> Iterator[_Database]:
    """Run the block in ``atomic``; inside another atomic block the marker is committed with that one's effects.

    A write to another alias raises `ConfigurationError` before it is done; reads may go anywhere.
    """
    with django_transaction.atomic(using=using), ExitStack() as stack:
        for other in (connections[alias] for alias in connections if alias != using):
            stack.enter_context(other.execute_wrapper(_NoWrites(using, other.alias)))
        yield _Database(using)


@dataclass(frozen=True, slots=True)
class _NoWrites:
    """What Django calls in place of ``execute`` on another alias."""

    using: str
    alias: str

    def __call__(self, execute: Callable[..., Any], sql: Any, *given: Any) -> Any:
        """Refuse a write, pass everything else on."""
        refuse_another_database(str(sql), marker=f"DATABASES[{self.using!r}]", found=f"DATABASES[{self.alias!r}]")
        return execute(sql, *given)
