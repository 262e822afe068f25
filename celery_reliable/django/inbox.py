"""Effects in a database of a Django project: the inbox in an ``atomic`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db import transaction as django_transaction

from celery_reliable.stores.sql.link import percent


class _Database:
    """See `celery_reliable.inbox.Database`."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self.kind = str(self._connection.vendor)

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
    """Run the block in ``atomic``; inside another atomic block the marker is committed with that one's effects."""
    with django_transaction.atomic(using=using):
        yield _Database(using)
