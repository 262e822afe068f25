"""Run the store contract on the memory store, under a clock that tests move."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.store_contract")

from celery_reliable.stores.base import ClaimAnswer, Existing, Job, Run, Store  # noqa: E402  # the contract's asserts come rewritten
from celery_reliable.stores.memory import MemoryStore  # noqa: E402
from tests.store_contract import StoreContract, StoreUnderTest, expect, kinds, together  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        """Start somewhere in 2027."""
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.seconds

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds


@pytest.fixture
def harness() -> StoreUnderTest:
    """Return an empty store and its clock."""
    clock = Clock()
    store: Store = MemoryStore(clock=clock)
    return StoreUnderTest(store=store, elapse=clock.move, tick=1.0)


class TestMemoryStore(StoreContract):
    """The contract."""


def test_silent_job_without_ledger_is_published_again_after_ten_minutes(harness: StoreUnderTest) -> None:
    """T3 (2b): then after twenty, and so on; too long to wait for on a real server."""
    harness.submit("A", ttl=86400.0)
    harness.store.published(harness.job, task_id="A")
    harness.elapse(599.0)
    assert expect(Existing, harness.submit("B")).publish == "no"
    harness.elapse(2.0)
    assert expect(Existing, harness.submit("B")).publish == "same"
    harness.elapse(1199.0)
    assert expect(Existing, harness.submit("B")).publish == "no"
    harness.elapse(2.0)
    assert expect(Existing, harness.submit("B")).publish == "same"


def test_clock_that_stands_still_gives_growing_fences(harness: StoreUnderTest) -> None:
    """P9: the fence does not depend on the clock's resolution."""
    harness.submit("A")
    first = harness.run("A")
    harness.release("A", first)
    assert expect(Run, harness.claim("A")).fence > first.fence


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can, so that a verb without its lock is caught."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


def test_claims_that_interleave_give_one_run(harness: StoreUnderTest, eager_threads: None) -> None:
    """P9: every verb is atomic under the store's lock."""
    for number in range(30):
        job = Job(f"order:{number}", kind="declared")
        answers = together(8, partial(_claim_as, harness, job))
        assert len(kinds(answers, Run)) == 1


def _claim_as(harness: StoreUnderTest, job: Job, number: int) -> ClaimAnswer:
    return harness.claim("A", job=job, token=f"token {number}")


def test_two_stores_share_nothing() -> None:
    """STYLE 7: no global behind the store."""
    one, two = MemoryStore(), MemoryStore()
    one.keep_letter("M1", letter=b"kept", letter_ttl=60.0, letter_max=10)
    assert two.letter("M1") is None
