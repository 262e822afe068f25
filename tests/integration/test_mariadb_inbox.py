"""The inbox on MariaDB, whose transactions are REPEATABLE READ as a rule."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from celery_reliable.contrib.sqlalchemy import metadata, transaction
from celery_reliable.contrib.sqlalchemy.inbox import Database
from celery_reliable.errors import AlreadyCommitted, ConfigurationError
from celery_reliable.inbox import Claim, once_committed, tidy
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Engine

    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

LONG = 60.0


@pytest.fixture(scope="module", params=["mariadb+pymysql", "mysql+pymysql"])
def engine(request: pytest.FixtureRequest, mariadb_server: servers.Server | servers.ExternalServer) -> Iterator[Engine]:
    """A database with an inbox and payments, by both spellings of its URL."""
    engine = sqlalchemy.create_engine(mariadb_server.url.replace("mariadb://", f"{request.param}://", 1))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS payment (label VARCHAR(32)) ENGINE=InnoDB")
    yield engine
    metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def label() -> str:
    """A prefix and a name that nobody else uses."""
    return uuid.uuid4().hex


def once(session: Any, label: str, *, ttl: float = LONG) -> Any:
    """Open an inbox, as a worker does."""
    return once_committed(partial(transaction, session), Claim(Job("job", "own"), 1, label, ttl, MemoryStore()))


def pay(engine: Engine, label: str, *, result: Any = None, ttl: float = LONG) -> None:
    """Commit an effect with its marker."""
    with Session(engine) as session, once(session, label, ttl=ttl) as done:
        session.execute(sqlalchemy.text("INSERT INTO payment VALUES (:label)"), {"label": label})
        done.result = result


def payments(engine: Engine, label: str) -> int:
    """Count the effects."""
    with engine.connect() as connection:
        asked = sqlalchemy.text("SELECT count(*) FROM payment WHERE label = :label")
        return int(connection.execute(asked, {"label": label}).scalar_one())


def test_a_second_run_reports_what_was_committed(engine: Engine, label: str) -> None:
    """And does nothing."""
    pay(engine, label, result={"paid": 7})
    with pytest.raises(AlreadyCommitted) as caught:
        pay(engine, label)
    assert caught.value.result == {"paid": 7}
    assert payments(engine, label) == 1


def test_a_rollback_leaves_neither_effect_nor_marker(engine: Engine, label: str) -> None:
    """The next run pays."""
    with pytest.raises(ConfigurationError, match="expected a result of plain data"):
        pay(engine, label, result=object())
    pay(engine, label)
    assert payments(engine, label) == 1


def test_a_run_that_comes_during_another_waits_and_reports_its_result(engine: Engine, label: str) -> None:
    """Also when it had read something before, so that its transaction shows it the past."""
    with ThreadPoolExecutor(1) as pool, Session(engine) as first, Session(engine) as second:
        second.execute(sqlalchemy.text("SELECT count(*) FROM celery_reliable_inbox")).all()
        with once(first, label) as done:
            later = pool.submit(lambda: once(second, label).__enter__())
            wait_until(lambda: waits(engine), what="the second run waiting")
            done.result = "first"
        with pytest.raises(AlreadyCommitted) as caught:
            later.result(timeout=LONG)
    assert caught.value.result == "first"


def waits(engine: Engine) -> bool:
    """Tell whether somebody waits for a lock."""
    with engine.connect() as connection:
        ((_, count),) = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").all()
        return int(count) > 0


def test_a_marker_whose_time_is_over_counts_as_none(engine: Engine, label: str) -> None:
    """The job may run again; what is old is removed, and what lives stays."""
    pay(engine, label, ttl=0.0)
    pay(engine, label, ttl=0.0)
    assert payments(engine, label) == 2
    with Session(engine) as session:
        assert tidy(Database(session), prefix=label) == 1
        session.commit()
    pay(engine, label)
    with Session(engine) as session:
        assert tidy(Database(session), prefix=label) == 0
    with pytest.raises(AlreadyCommitted):
        pay(engine, label)


def test_a_missing_table_is_named(engine: Engine, label: str) -> None:
    """With what makes it."""
    metadata.drop_all(engine)
    try:
        with pytest.raises(ConfigurationError, match=r"expected the table celery_reliable_inbox.*create_all"):
            pay(engine, label)
    finally:
        metadata.create_all(engine)
