"""A short chaos run: real workers, producers and servers, faults from a fixed seed, judged by an independent ledger.

The long runs are `make chaos`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import report
from tests.chaos.judge import judge
from tests.chaos.run import CELLS, Run, perform

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]

SECONDS = 15.0
LEAST_FAULTS = 6  # of those that were drawn some find nothing to break


@pytest.mark.parametrize(("cell", "seed"), [("redis-prefork-redis", 5), ("rabbitmq-threads-redis", 5)])
def test_promises_hold_under_faults(cell: str, seed: int, tmp_path: Path) -> None:
    """Nothing is lost, doubled or run twice at once, and every repeated run is explained by a fault."""
    run = Run(cell=CELLS[cell], seed=seed, seconds=SECONDS, every=1.4, rate=12.0, workers=2, concurrency=2)
    evidence = perform(run, tmp_path)
    violations = judge(evidence)
    page = report.write(run, evidence, violations, directory=tmp_path)
    assert not violations, f"see {tmp_path}\n{page}"
    assert len(evidence.faults) >= LEAST_FAULTS
