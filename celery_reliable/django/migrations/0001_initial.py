"""Make the tables of the SQL store."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from celery_reliable.stores.sql import ddl
from celery_reliable.stores.sql.django import server_of

TABLES = ("record", "progress", "ledger", "letter", "note", "fleet")


def create(_: Any, editor: Any) -> None:
    """Run the statements for the kind of server; on other kinds nothing can use the tables."""
    if kind := server_of(editor.connection):
        for statement in ddl.statements(kind, version="0001"):
            editor.execute(statement)


def drop(_: Any, editor: Any) -> None:
    """Remove the tables and all they hold."""
    for table in TABLES:
        editor.execute(f"DROP TABLE IF EXISTS celery_reliable_{table}")


class Migration(migrations.Migration):
    """See above."""

    initial = True
    operations = (migrations.RunPython(create, drop, atomic=False),)
