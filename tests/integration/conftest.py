"""Real workers for the integration tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Start real workers with ``workers.start("module", ...)``; all are killed at the end, their logs shown on failure."""
    fleet = Workers(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()
