"""Run the store contract on real databases: PostgreSQL and SQLite."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.store_contract")

from celery_reliable.stores import open_store  # noqa: E402  # the contract's asserts must be rewritten first
from celery_reliable.stores.sql import open_sql_store  # noqa: E402
from tests.store_contract import StoreContract, StoreUnderTest  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

TICK = 0.2  # seconds: a lease must end within a test, on a server that nobody can hurry


def create_tables(url: str) -> None:
    """Make the tables, as ``celery reliable schema`` does."""
    with contextlib.closing(open_sql_store(url)) as store:
        store.create_tables()


@contextlib.contextmanager
def under_test(url: str) -> Iterator[StoreUnderTest]:
    """Give a store whose rows nobody else uses; its time is the server's, so passing it means waiting."""
    with contextlib.closing(open_store(url, key_prefix=uuid.uuid4().hex)) as store:
        yield StoreUnderTest(store=store, elapse=time.sleep, tick=TICK)


@pytest.fixture(scope="module")
def postgres_url(postgres_server: servers.Server | servers.ExternalServer) -> str:
    """A PostgreSQL with our tables."""
    create_tables(postgres_server.url)
    return postgres_server.url


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with our tables."""
    url = f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/store.db"
    create_tables(url)
    return url


class TestPostgresStore(StoreContract):
    """The contract on PostgreSQL."""

    @pytest.fixture
    def harness(self, postgres_url: str) -> Iterator[StoreUnderTest]:
        """A store on the shared PostgreSQL."""
        with under_test(postgres_url) as harness:
            yield harness


class TestSqliteStore(StoreContract):
    """The contract on SQLite."""

    @pytest.fixture
    def harness(self, sqlite_url: str) -> Iterator[StoreUnderTest]:
        """A store in a shared file."""
        with under_test(sqlite_url) as harness:
            yield harness
