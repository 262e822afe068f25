"""Run the store contract on real databases: PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.store_contract")

from celery_reliable.stores.sql import SqlStore, open_sql_store  # noqa: E402  # the contract's asserts come rewritten
from tests.store_contract import StoreContract, StoreUnderTest  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

TICK = 0.15  # seconds: a lease must end within a test, on a server that nobody can hurry


def under_test(store: SqlStore) -> StoreUnderTest:
    """Give a store on the same connections, whose rows nobody else uses; passing time means waiting."""
    fresh = SqlStore(store._link, key_prefix=uuid.uuid4().hex, timeout=5.0)
    return StoreUnderTest(store=fresh, elapse=time.sleep, tick=TICK)


@pytest.fixture(scope="module")
def postgres(postgres_server: servers.Server | servers.ExternalServer) -> Iterator[SqlStore]:
    """Tables in PostgreSQL, and connections for all tests."""
    with contextlib.closing(open_sql_store(postgres_server.url)) as store:
        store.create_tables()
        yield store


@pytest.fixture(scope="module")
def mariadb(mariadb_server: servers.Server | servers.ExternalServer) -> Iterator[SqlStore]:
    """Tables in MariaDB, and connections for all tests."""
    with contextlib.closing(open_sql_store(mariadb_server.url)) as store:
        store.create_tables()
        yield store


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    """Tables in a file."""
    with contextlib.closing(open_sql_store(f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/store.db")) as store:
        store.create_tables()
        yield store


class TestPostgresStore(StoreContract):
    """The contract on PostgreSQL."""

    @pytest.fixture
    def harness(self, postgres: SqlStore) -> StoreUnderTest:
        """A store on the shared PostgreSQL."""
        return under_test(postgres)


class TestMariadbStore(StoreContract):
    """The contract on MariaDB."""

    @pytest.fixture
    def harness(self, mariadb: SqlStore) -> StoreUnderTest:
        """A store on the shared MariaDB."""
        return under_test(mariadb)


class TestSqliteStore(StoreContract):
    """The contract on SQLite."""

    @pytest.fixture
    def harness(self, sqlite: SqlStore) -> StoreUnderTest:
        """A store in the shared file."""
        return under_test(sqlite)
