"""The specification of claim, lease, fence and complete holds, needs each of its guards, and is what the store does."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from celery_reliable.stores.base import Settled
from celery_reliable.stores.memory import MemoryStore
from tests.model.conformance import Clock, walk_all
from tests.model.explorer import explore
from tests.model.specification import Guards, model

GUARDS = [one.name for one in fields(Guards)]


def test_every_order_of_steps_keeps_the_promises() -> None:
    """And from each state the job can come to its end without another fault."""
    found = explore(model())
    assert found.holds, found
    assert found.states > 1000


@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_is_missed(guard: str) -> None:
    """A guard that nothing misses would be none."""
    assert not explore(model(replace(Guards(), **{guard: False}))).holds


def test_the_store_in_memory_takes_every_step_as_it_is_specified() -> None:
    """Each from the state that it belongs to. The same walk on Redis: `tests/integration/test_store_twins.py`."""
    clock = Clock()
    assert walk_all(MemoryStore(clock=clock), clock) > 3000


class WithoutFence(MemoryStore):
    """A store that believes whoever completes."""

    def complete(self, *args: Any, **kwargs: Any) -> Any:
        """Accept it."""
        super().complete(*args, **kwargs)
        return Settled()


def test_a_store_that_does_otherwise_is_found_out() -> None:
    """With the steps that lead there."""
    clock = Clock()
    with pytest.raises(AssertionError, match=r"expected Stale; after .*W2 claim: Run.* the store said Settled"):
        walk_all(WithoutFence(clock=clock), clock)
