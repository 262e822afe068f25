"""Make the table of the inbox."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from celery_reliable.stores.sql import ddl
from celery_reliable.stores.sql.django import server_of


def create(_: Any, editor: Any) -> None:
    """Run the statements for the kind of server; on other kinds nothing can use the table."""
    if kind := server_of(editor.connection):
        for statement in ddl.statements(kind, version="inbox_0001"):
            editor.execute(statement)


def drop(_: Any, editor: Any) -> None:
    """Remove the table: jobs that are delivered again have their effect again."""
    editor.execute("DROP TABLE IF EXISTS celery_reliable_inbox")


class Migration(migrations.Migration):
    """See above."""

    dependencies = (("celery_reliable", "0001_initial"),)
    operations = (migrations.RunPython(create, drop, atomic=False),)
