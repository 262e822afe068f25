"""Parts of the store contract over Django's connection, for a process in which Django is set up."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.store_contract")

from celery_reliable.stores.sql import SqlStore, open_sql_store  # noqa: E402  # the contract's asserts come rewritten
from tests import store_contract as contract  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TICK = 0.15


@pytest.fixture(scope="module")
def shared() -> Iterator[SqlStore]:
    """Connections for all tests."""
    store = open_sql_store(f"django://{os.environ['CR_TEST_ALIAS']}")
    yield store
    store.close()


@pytest.fixture
def harness(shared: SqlStore) -> contract.StoreUnderTest:
    """A store whose rows nobody else uses."""
    fresh = SqlStore(shared._link, key_prefix=uuid.uuid4().hex, timeout=5.0)
    return contract.StoreUnderTest(store=fresh, elapse=time.sleep, tick=TICK)


class TestClaiming(contract.Claiming):
    """Of many claims one wins."""


class TestKeepingNotes(contract.KeepingNotes):
    """Lists of values."""
