"""The statements that make the tables, as text: for a look before, for Django's migrations, and without SQLAlchemy.

The files are written from `stores.sql.schema`, and a test keeps them equal. Each makes only what is not there yet.
"""

from __future__ import annotations

from importlib import resources

VERSION = "0001"


def statements(dialect: str, *, version: str = VERSION) -> list[str]:
    """Return the statements for ``postgresql`` or ``sqlite``, in order."""
    text = resources.files(__name__).joinpath(f"{version}.{dialect}.sql").read_text()
    return [statement.strip() for statement in text.split(";") if statement.strip()]
