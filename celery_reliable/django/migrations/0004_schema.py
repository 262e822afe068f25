"""Note which schema the tables of the SQL store have, so that older code refuses newer tables."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from celery_reliable.stores.sql import ddl
from celery_reliable.stores.sql.django import server_of


def stamp(_: Any, editor: Any) -> None:
    """Write the number; on kinds of server that cannot have the store there is nowhere to write it."""
    if kind := server_of(editor.connection):
        editor.execute(ddl.stamp(1, dialect=kind))


class Migration(migrations.Migration):
    """See above."""

    dependencies = (("celery_reliable", "0003_admin"),)
    operations = (migrations.RunPython(stamp, migrations.RunPython.noop, atomic=False),)
