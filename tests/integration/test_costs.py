"""What one task costs the store, in counts that hold on every machine; `python -m benchmarks` measures times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import costs, memory
from benchmarks.cases import DECLARED, OWN, OWN_WITHOUT_LEDGER, Case
from benchmarks.costs import Costs
from celery_reliable.testing import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing.servers import RedisServer

pytestmark = pytest.mark.integration

# A look at the server's clock, once a minute in each process, comes between.
CLOCK = 0.05
# What the fleet's leader does once a second, a task's share of it: less than half a call, also where tasks are slow.
ASIDE = 0.5


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    """A broker whose traffic is not counted."""
    with servers.start_redis(config={"appendonly": "no"}) as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    """A Redis that only the store uses."""
    with servers.start_redis(config={"appendonly": "no"}) as server:
        yield server


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (OWN, Costs(calls=3, commands=8, bytes_in=950, bytes_out=40)),
        (OWN_WITHOUT_LEDGER, Costs(calls=2, commands=7, bytes_in=600, bytes_out=40)),
        (DECLARED, Costs(calls=3, commands=12, bytes_in=1600, bytes_out=120)),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_a_task_costs_few_calls(broker: RedisServer, store: RedisServer, case: Case, most: Costs) -> None:
    """Submit, claim and complete are one round trip each, lean inside; without a ledger there is no submit."""
    found = costs.per_task(case, broker=broker, store=store)
    assert most.calls <= found.calls <= most.calls + ASIDE
    assert found.commands <= most.commands + ASIDE
    assert found.bytes_in <= most.bytes_in
    assert found.bytes_out <= most.bytes_out


def test_a_submission_without_ledger_or_declared_key_calls_no_store(broker: RedisServer, store: RedisServer) -> None:
    """There is nothing to dedup and nothing to keep."""
    assert costs.calls_to_submit(OWN_WITHOUT_LEDGER, broker=broker, store=store) == 0


@pytest.mark.parametrize("case", [OWN, DECLARED], ids=lambda case: case.name)
def test_a_submission_is_one_store_call(broker: RedisServer, store: RedisServer, case: Case) -> None:
    """The ledger entry, and the key with it when one is declared."""
    assert costs.calls_to_submit(case, broker=broker, store=store) == pytest.approx(1, abs=CLOCK)


def test_a_finished_own_key_shares_a_bucket(store: RedisServer) -> None:
    """T12: 16 to 45 bytes at 400,000 keys an hour."""
    assert 10 < memory.own_key(store) <= 45


def test_a_finished_declared_key_is_one_short_string(store: RedisServer) -> None:
    """T12: at most 170 bytes, what the allocator of some distributions rounds up left out."""
    assert memory.declared_key(store) - memory.rounding(store) <= 170
