"""Guarded writes through Django. Run by `test_sinks` in a process of its own, once for each database."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from celery_reliable.django import fenced_update, insert_once, transition
from celery_reliable.errors import ConfigurationError, LeaseLost
from tests.integration.apps.parcels.models import Parcel, Receipt

ALIAS = os.environ["CR_TEST_ALIAS"]
CALLERS = 8
parcels: Any = Parcel.objects.using(ALIAS)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    Receipt.objects.using(ALIAS).delete()
    parcels.delete()


@pytest.fixture
def parcel() -> Any:
    """A parcel that no run has written."""
    return parcels.create()


def at_once(call: Callable[[], bool]) -> list[bool]:
    """Return what callers in threads of their own are told at the same time."""
    barrier = threading.Barrier(CALLERS)

    def one(_: int) -> bool:
        barrier.wait(timeout=20.0)
        try:
            return call()
        finally:
            connections[ALIAS].close()

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(one, range(CALLERS)))


def test_a_row_of_a_later_claim_is_not_overwritten(parcel: Any) -> None:
    """Nor is anything else of the update, or of the block around it, kept."""
    other = parcels.create()
    assert fenced_update(parcels.filter(pk=parcel.pk), fence=20, status="later") == 1

    def write_late() -> None:
        with transaction.atomic(using=ALIAS):
            parcels.filter(pk=other.pk).update(carrier="late")
            fenced_update(parcels.filter(pk__in=[parcel.pk, other.pk]), fence=10, status="late")

    with pytest.raises(LeaseLost, match="Parcel"):
        write_late()

    assert [(one.status, one.carrier, one.fence) for one in parcels.order_by("pk")] == [
        ("later", "", 20),
        ("pending", "", 0),
    ]


@pytest.mark.skipif(ALIAS == "default", reason="readers of SQLite keep writers from committing")
def test_a_transaction_that_shows_the_past_is_no_way_around(parcel: Any) -> None:
    """It read before others wrote, and would read the same again on MariaDB where transactions are REPEATABLE READ."""

    def write_late() -> None:
        with transaction.atomic(using=ALIAS):
            assert not Receipt.objects.using(ALIAS).exists()
            elsewhere(lambda: fenced_update(parcels.filter(pk=parcel.pk), fence=20, status="later"))
            elsewhere(lambda: insert_once(Receipt, unique="parcel", parcel=parcel, number=1, using=ALIAS))
            assert not insert_once(Receipt, unique="parcel", parcel=parcel, number=2, using=ALIAS)
            fenced_update(parcels.filter(pk=parcel.pk), fence=10, status="late")

    with pytest.raises(LeaseLost):
        write_late()
    assert parcels.get(pk=parcel.pk).status == "later"


def elsewhere(call: Callable[[], Any]) -> None:
    """Do it on another connection."""

    def done() -> None:
        try:
            call()
        finally:
            connections[ALIAS].close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(done).result()


def test_a_run_may_write_again_and_what_has_no_fence_yet(parcel: Any) -> None:
    """Equal is not higher; NULL is lower than all."""
    parcels.filter(pk=parcel.pk).update(fence=None)
    for status in ("one", "two"):
        assert fenced_update(parcels.filter(pk=parcel.pk), fence=10, status=status) == 1
    assert fenced_update(parcels.filter(pk=-1), fence=10, status="none") == 0
    assert parcels.get(pk=parcel.pk).status == "two"


@pytest.mark.parametrize("fence", [None, "7", True, -1, 1.5])
def test_what_is_no_fence_is_refused(parcel: Any, fence: Any) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigurationError, match=r"self\.fence"):
        fenced_update(parcels.filter(pk=parcel.pk), fence=fence, status="x")


def test_one_of_many_moves_a_row(parcel: Any) -> None:
    """The others are told that they did not; further changes go with the move."""

    def move() -> bool:
        return transition(Parcel, parcel.pk, from_="pending", to="sent", carrier="mail", using=ALIAS)

    assert sorted(at_once(move)) == [False] * (CALLERS - 1) + [True]
    moved = parcels.get(pk=parcel.pk)
    assert (moved.status, moved.carrier) == ("sent", "mail")


def test_a_row_is_moved_from_any_of_the_named_states(parcel: Any) -> None:
    """NULL among them; not from another one, and not one that is not there."""
    parcels.filter(pk=parcel.pk).update(status=None)
    assert not transition(Parcel, parcel.pk, from_=("pending", "held"), to="sent", using=ALIAS)
    assert transition(Parcel, parcel.pk, field="status", from_=("pending", None), to="sent", using=ALIAS)
    assert not transition(Parcel, -1, from_="sent", to="lost", using=ALIAS)
    with pytest.raises(ConfigurationError, match="without 'sent'"):
        transition(Parcel, parcel.pk, from_=("pending", "sent"), to="sent", using=ALIAS)


def test_one_of_many_inserts_a_row(parcel: Any) -> None:
    """Also inside a transaction, which goes on."""

    def insert() -> bool:
        with transaction.atomic(using=ALIAS):
            inserted = insert_once(Receipt, unique="parcel", parcel=parcel, number=1, using=ALIAS)
            assert Receipt.objects.using(ALIAS).count() == 1
        return inserted

    assert sorted(at_once(insert)) == [False] * (CALLERS - 1) + [True]


def test_another_violation_is_an_error(parcel: Any) -> None:
    """What is not there yet was not inserted by anybody."""
    assert insert_once(Receipt, unique=["parcel_id"], parcel_id=parcel.pk, number=1, using=ALIAS) is True
    other = parcels.create()
    with pytest.raises(IntegrityError):
        insert_once(Receipt, unique="parcel", parcel=other, number=1, using=ALIAS)


@pytest.mark.parametrize("unique", ["note", ["parcel", "number"], []])
def test_what_no_constraint_decides_is_refused(parcel: Any, unique: Any) -> None:
    """Without one every caller would insert; with a condition some would. And NULLs never collide."""
    values = {"parcel": parcel, "number": 1, "note": "fragile"}
    with pytest.raises(ConfigurationError, match="insert_once"):
        insert_once(Receipt, unique=unique, **values, using=ALIAS)
    assert not Receipt.objects.using(ALIAS).exists()
