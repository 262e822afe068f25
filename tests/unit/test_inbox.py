"""The inbox on a database that is not the right one, or not in the right state: refused with the reason."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from celery_reliable.contrib.sqlalchemy import metadata, transaction
from celery_reliable.errors import ConfigurationError
from celery_reliable.inbox import WRITES, Claim, once_committed
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.sql import schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.engine import Engine

TABLES = MetaData()
ORDER = Table("orders", TABLES, Column("id", Integer, primary_key=True))
PAYMENT = Table("payment", TABLES, Column("id", Integer, primary_key=True))


class Base(DeclarativeBase):
    """What SQLAlchemy needs."""


class Order(Base):
    """A row that belongs to a session."""

    __table__ = ORDER


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Engine]:
    """A database with an inbox."""
    yield from _database(tmp_path, "shop")


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Engine]:
    """Another one, with an inbox, too."""
    yield from _database(tmp_path, "bank")


def _database(tmp_path: Path, name: str) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/{name}.db")
    metadata.create_all(engine)
    TABLES.create_all(engine)
    yield engine
    engine.dispose()


def once(session: Any) -> Any:
    """Open an inbox, as a worker does."""
    return once_committed(partial(transaction, session), Claim(Job("job", "own"), 1, "cr:", 60.0, MemoryStore()))


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Expect a refusal that says so."""
    with pytest.raises(ConfigurationError, match=match):
        yield


def rows(engine: Engine, *tables: Table) -> int:
    """Count what is committed there."""
    with engine.connect() as connection:
        return sum(len(connection.execute(select(table)).all()) for table in tables)


def test_a_write_to_another_database_is_refused_before_it_is_done(shop: Engine, bank: Engine) -> None:
    """Of a session with a bind for each table; nothing is committed on either side, no marker, too."""
    with Session(shop, binds={PAYMENT: bank}) as session:
        with refused(r"marker, sqlite:.*shop\.db, found a write to .*bank\.db.*INSERT"), once(session):
            session.execute(insert(ORDER))
            session.execute(insert(PAYMENT))
        with once(session):  # the marker was not kept: this runs
            session.execute(insert(ORDER))
    assert (rows(shop, ORDER), rows(bank, PAYMENT)) == (1, 0)


def test_another_database_may_be_read(shop: Engine, bank: Engine) -> None:
    """And what is written there after the block is no concern of the inbox."""
    with Session(shop, binds={PAYMENT: bank}) as session:
        with once(session):
            session.execute(insert(ORDER).values(id=len(session.execute(select(PAYMENT)).all()) + 1))
        session.execute(insert(PAYMENT))
        session.commit()
    assert (rows(shop, ORDER), rows(bank, PAYMENT)) == (1, 1)


def test_a_session_that_knows_no_database_of_its_own_is_refused(bank: Engine) -> None:
    """Nobody can tell where its marker belongs."""
    with Session(binds={PAYMENT: bank}) as session, refused(r"Session\(engine\)"), once(session):
        pytest.fail("the block was entered")


def test_the_store_s_database_in_place_of_the_effect_s_is_refused(tmp_path: Path) -> None:
    """Two URLs were swapped: the text names the one that was found, without its password, and how the table is made."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/store.db")
    schema.metadata.create_all(engine)
    with engine.connect() as connection, refused(r"store\.db.*metadata\.create_all"), once(connection):
        pytest.fail("the block was entered")
    engine.dispose()


def test_a_read_only_database_takes_no_effect(tmp_path: Path, shop: Engine) -> None:
    """The driver's own error: what it means for the task, its rules for errors say."""
    shop.dispose()
    url = f"sqlite:///file:{tmp_path}/shop.db?mode=ro&uri=true"
    engine = sqlalchemy.create_engine(url)
    with (
        engine.connect() as connection,
        pytest.raises(sqlalchemy.exc.OperationalError, match="readonly"),
        once(connection),
    ):
        pytest.fail("the block was entered")
    engine.dispose()


def test_a_transaction_that_has_failed_before_is_refused(shop: Engine) -> None:
    """Instead of losing the marker with it: an error of the database was swallowed before the block."""
    with Session(shop) as session:
        session.add_all([Order(id=1), Order(id=1)])
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        with pytest.raises(ConfigurationError, match="has failed before"), once(session):
            pytest.fail("the block was entered")


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("INSERT INTO a VALUES (1)", True),
        ("  update a set b = 1", True),
        ("WITH old AS (SELECT 1) DELETE FROM a", True),
        ("WITH gone AS (DELETE FROM a RETURNING b) SELECT * FROM gone", True),
        ("SELECT * FROM a FOR UPDATE", False),
        ("SELECT updated FROM inserts", False),
        ("SAVEPOINT s1", False),
        ("WITH a AS (SELECT updated_at FROM b) SELECT * FROM a", False),
    ],
)
def test_a_write_is_known_by_its_words(statement: str, writes: bool) -> None:  # noqa: FBT001
    """And not by names that look like one."""
    assert bool(WRITES.match(statement)) is writes


def test_text_statements_are_looked_at_too(shop: Engine, bank: Engine) -> None:
    """By the bind that is named with them."""
    with Session(shop) as session, pytest.raises(ConfigurationError, match="UPDATE payment SET id"), once(session):
        session.execute(text("UPDATE payment SET id = 2"), bind_arguments={"bind": bank})
