"""The tables of the SQL store, as SQLAlchemy metadata: for ``celery -A proj reliable schema`` and for Alembic.

Times are microseconds of the server's clock. Every table begins with ``prefix`` (``reliable_key_prefix``), so that
projects may share a database. In Alembic's ``env.py``: ``target_metadata = [Base.metadata, schema.metadata]``, on MariaDB
``schema.mariadb_metadata``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL
from sqlalchemy.schema import CreateIndex, CreateTable

metadata = MetaData()


def _prefix() -> Column[str]:
    return Column("prefix", String(32), nullable=False)


record = Table(
    "celery_reliable_record",
    metadata,
    _prefix(),
    Column("digest", LargeBinary(16), nullable=False),
    Column("state", String(8), nullable=False),
    Column("task_id", String(255), nullable=False),
    Column("life", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("token", String(255), nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("freed", Boolean, nullable=False),
    Column("ends", BigInteger, nullable=False),
    Column("details", Text, nullable=False),
    Column("envelope", LargeBinary),
    Column("outcome", LargeBinary),
    PrimaryKeyConstraint("prefix", "digest", name="celery_reliable_record_pk"),
    Index("celery_reliable_record_ends", "ends"),
    comment="One row for each idempotency key: who runs it, or how it ended.",
)

progress = Table(
    "celery_reliable_progress",
    metadata,
    _prefix(),
    Column("digest", LargeBinary(16), nullable=False),
    Column("name", String(255), nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("prefix", "digest", "name", name="celery_reliable_progress_pk"),
    comment="Checkpoints and once-steps of a record; they go with it.",
)

ledger = Table(
    "celery_reliable_ledger",
    metadata,
    _prefix(),
    Column("task_id", String(255), nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("resent", Integer, nullable=False),
    Column("resent_at", BigInteger, nullable=False),
    Column("digest", LargeBinary(16)),
    Column("made_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("prefix", "task_id", name="celery_reliable_ledger_pk"),
    comment="Submissions that have not ended yet; those with made_at above 0 wait for their publish.",
)
_waits = ledger.c.made_at > 0
Index(
    "celery_reliable_ledger_waits",
    ledger.c.prefix,
    ledger.c.resent_at,
    postgresql_where=_waits,
    sqlite_where=_waits,
)
Index(
    "celery_reliable_ledger_order",
    ledger.c.prefix,
    ledger.c.digest,
    ledger.c.made_at,
    postgresql_where=_waits,
    sqlite_where=_waits,
)

letter = Table(
    "celery_reliable_letter",
    metadata,
    _prefix(),
    Column("letter_id", String(255), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("status", String(8), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("ends", BigInteger, nullable=False),
    Column("life", Integer, nullable=False),
    Column("new_id", String(255), nullable=False),
    Column("new_life", Integer, nullable=False),
    Column("label", String(512), nullable=False),
    PrimaryKeyConstraint("prefix", "letter_id", name="celery_reliable_letter_pk"),
    Index("celery_reliable_letter_label", "prefix", "label", "number"),
    Index("celery_reliable_letter_number", "prefix", "number", unique=True),
    Index("celery_reliable_letter_ends", "prefix", "ends"),
    comment="Dead letters, numbered in the order of their burial.",
)

note = Table(
    "celery_reliable_note",
    metadata,
    _prefix(),
    Column("shelf", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("ends", BigInteger, nullable=False),
    PrimaryKeyConstraint("prefix", "shelf", "name", name="celery_reliable_note_pk"),
    Index("celery_reliable_note_ends", "ends"),
    comment="Small records that the fleet shares: roles, workers, slots.",
)

fleet = Table(
    "celery_reliable_fleet",
    metadata,
    _prefix(),
    Column("pulse", BigInteger, nullable=False),
    Column("gap_from", BigInteger, nullable=False),
    Column("gap_until", BigInteger, nullable=False),
    Column("buried", BigInteger, nullable=False),
    Column("replayed", BigInteger, nullable=False),
    Column("discarded", BigInteger, nullable=False),
    Column("trimmed", BigInteger, nullable=False),
    PrimaryKeyConstraint("prefix", name="celery_reliable_fleet_pk"),
    comment="When the fleet was last heard, and counts of dead letters.",
)


def _for_mariadb(tables: MetaData) -> MetaData:
    """Return the tables in types that compare every character, and hold what the other servers' hold.

    There is no index over some rows only: a column that is NULL in the others stands for it.
    """
    made = MetaData()
    for table in tables.sorted_tables:
        copy = table.to_metadata(made)
        copy.comment = None
        for name in ("mysql", "mariadb"):
            copy.dialect_kwargs.update({f"{name}_engine": "InnoDB", f"{name}_row_format": "DYNAMIC"})
        for column in copy.columns:
            column.type = _MARIADB_TYPES[type(column.type)](column.type)
    waiting = made.tables[ledger.name]
    waits_at = Column("waits_at", BigInteger, Computed("CASE WHEN made_at > 0 THEN resent_at END", persisted=True))
    waiting.append_column(waits_at)
    waiting.indexes.remove(next(index for index in waiting.indexes if index.name == "celery_reliable_ledger_waits"))
    Index("celery_reliable_ledger_waits", waiting.c.prefix, waits_at, waiting.c.made_at)
    return made


_EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_nopad_bin"}
_MARIADB_TYPES: Mapping[type[Any], Callable[[Any], Any]] = {
    String: lambda text: mysql.VARCHAR(text.length, **_EXACT),
    Text: lambda _: mysql.LONGTEXT(**_EXACT),
    LargeBinary: lambda binary: mysql.VARBINARY(binary.length) if binary.length else mysql.LONGBLOB(),
    BigInteger: lambda same: same,
    Integer: lambda same: same,
    Boolean: lambda same: same,
}
mariadb_metadata = _for_mariadb(metadata)


def _on_mariadb(common: Any) -> Any:
    """Return the type, with what MariaDB needs in its place: users make this table from the one metadata."""
    return common.with_variant(_MARIADB_TYPES[type(common)](common), "mysql", "mariadb")


inbox_metadata = MetaData()

inbox = Table(
    "celery_reliable_inbox",
    inbox_metadata,
    Column("prefix", _on_mariadb(String(32)), nullable=False),
    Column("digest", _on_mariadb(LargeBinary(16)), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("outcome", _on_mariadb(LargeBinary()), nullable=False),
    Column("ends", BigInteger, nullable=False),
    PrimaryKeyConstraint("prefix", "digest", name="celery_reliable_inbox_pk"),
    Index("celery_reliable_inbox_ends", "prefix", "ends"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
    comment="Jobs whose effect is committed, in the database of the effect, wherever the store is.",
)


def statements(dialect: str, *, of: MetaData | None = None) -> list[str]:
    """Return what makes the tables that are not there yet, in the words of a dialect."""
    of = of or (mariadb_metadata if dialect == "mariadb" else metadata)
    words = URL.create(dialect).get_dialect()()
    made: list[CreateTable | CreateIndex] = []
    for table in of.sorted_tables:
        made.append(CreateTable(table, if_not_exists=True))
        made += [CreateIndex(index, if_not_exists=True) for index in sorted(table.indexes, key=_name)]
    texts = [str(item.compile(dialect=words)) for item in made]
    return ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in texts]


def _name(index: Index) -> str:
    return str(index.name)
