"""PostgreSQL is killed and Redis is emptied while orders are charged: each is charged once.

The long run is `python -m tests.chaos.databases`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.databases import Run, page, perform

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]


def test_an_order_is_charged_once_whatever_the_databases_forget(tmp_path: Path) -> None:
    """Broker, backend and store lose all they know, again and again; the database of the effect is cut off in between."""
    run = Run(store="redis", seed=3, seconds=7.0, every=1.2, rate=10.0)
    found = perform(run, tmp_path)
    said = page(run, found)
    assert found.violations() == [], said
    assert set(found.faults) == {"Redis emptied", "PostgreSQL killed", "PostgreSQL stopped at once"}, said
    assert found.orders > 20, said
