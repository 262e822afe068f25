"""Read the statements: ``-- name: NAME`` begins each, in the file of its table; lines of remarks are left out.

What a kind of server says differently stands in a file of its name, statement by statement.

``{now}`` is the server's clock in microseconds, ``{for_update}`` and ``{skip_locked}`` are the row locks, where the
server has them. What else stands in braces is filled in at each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

_FILES = ("fleet", "ledger", "letter", "note", "record")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of server says what the others say differently."""

    name: str
    begin: str
    now: str
    for_update: str = ""
    skip_locked: str = ""


POSTGRESQL = Dialect(
    "postgresql",
    begin="BEGIN ISOLATION LEVEL READ COMMITTED",
    now="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    for_update="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
)
MARIADB = Dialect(
    "mariadb",
    begin="START TRANSACTION",  # each session is READ COMMITTED, see `link.prepare_mariadb`
    # Of the beginning of the statement: SYSDATE() would keep the indexes from being used.
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    for_update="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
)
SQLITE = Dialect(
    "sqlite",
    # A reader that became a writer would fail at once instead of waiting for its turn.
    begin="BEGIN IMMEDIATE",
    now="CAST(round((julianday('now') - 2440587.5) * 86400000) AS integer) * 1000",
)
DIALECTS = {dialect.name: dialect for dialect in (POSTGRESQL, SQLITE, MARIADB)}


def kind_of(name: str) -> str:
    """Return the kind of server for what SQLAlchemy or Django calls it; MySQL's name, too, may mean a MariaDB."""
    return {"mysql": "mariadb"}.get(name, name)


@dataclass(frozen=True, slots=True)
class Statements:
    """What begins a transaction, and every statement by its name."""

    begin: str
    texts: Mapping[str, str]


def load(dialect: Dialect) -> Statements:
    """Return the statements in the words of a dialect."""
    folder = resources.files(__name__)
    files = [folder.joinpath(f"{file}.sql") for file in (*_FILES, dialect.name)]
    texts = [file.read_text() for file in files if file.is_file()]
    named = {name: spoken(body, dialect) for text in texts for name, body in _sections(text)}
    return Statements(dialect.begin, named)


def _sections(text: str) -> list[tuple[str, str]]:
    pieces = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))


@lru_cache(maxsize=256)
def spoken(body: str, dialect: Dialect) -> str:
    """Return one statement in the words of a dialect."""
    text = re.sub(r"^--.*\n", "", body, flags=re.MULTILINE)
    for name in ("now", "for_update", "skip_locked"):
        text = text.replace("{" + name + "}", getattr(dialect, name))
    return " ".join(text.split())
