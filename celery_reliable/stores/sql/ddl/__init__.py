"""The statements that make the tables, as text: for a look before, for Django's migrations, and without SQLAlchemy.

The files are written from `stores.sql.schema`, and a test keeps them equal. Each makes only what is not there yet.
"""

from __future__ import annotations

from importlib import resources

VERSION = "0001"
NUMBER = 1
"""Counts up with each change of the tables that older code cannot work with."""

_STAMP = """INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends)
VALUES ('', '.schema', 'store', '', {number}, 9223372036854775807)
{otherwise}"""
_HIGHEST = """ON CONFLICT (prefix, shelf, name) DO UPDATE SET version = excluded.version
WHERE celery_reliable_note.version < excluded.version"""
_HIGHEST_ON = {"mariadb": "ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))"}


def statements(dialect: str, *, version: str = VERSION) -> list[str]:
    """Return the statements for ``postgresql``, ``mariadb`` or ``sqlite``, in order."""
    text = resources.files(__name__).joinpath(f"{version}.{dialect}.sql").read_text()
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def stamp(number: int = NUMBER, *, dialect: str = "") -> str:
    """Return the statement that notes, in the tables, which ``number`` they have; it never counts down."""
    return _STAMP.format(number=number, otherwise=_HIGHEST_ON.get(dialect, _HIGHEST))
