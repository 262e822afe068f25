"""No thread of ours runs while a worker that starts forks its pool's children and its embedded beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery.utils.imports import symbol_by_name
from celery.worker import WorkController

from celery_reliable.wiring import WORKER_STEPS

if TYPE_CHECKING:
    from celery.bootsteps import StartStopStep

FORKING = {"celery.worker.components.Pool", "celery.worker.components.Beat"}
_STEPS = [symbol_by_name(name) for name in WORKER_STEPS]
STARTING = [step for step in _STEPS if "start" in vars(step)]


@pytest.mark.parametrize("step", STARTING, ids=lambda step: step.__name__)
def test_what_starts_anything_starts_after_the_pool_and_the_embedded_beat(step: type[StartStopStep]) -> None:
    """Celery orders steps by their requirements, else by chance; a thread that forks too has its locks for ever."""
    assert {symbol_by_name(name).name for name in step.requires} >= FORKING


def test_celery_forks_in_these_steps() -> None:
    """Celery 5.7: of its worker's own steps, which start before ours, these make processes."""
    assert {symbol_by_name(name).name for name in WorkController.Blueprint.default_steps} >= FORKING
