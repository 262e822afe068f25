"""Tasks behind breakers, limits and budgets, and the app of a worker that runs them.

``celery -A tests.integration.apps.flow_jobs worker``
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from celery_reliable import ReliableTask, Transient
from tests.integration.apps.jobs import make_app, note, stage_of, variant
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery

CONF: dict[str, Any] = {
    "reliable_breakers": {"bank": {"failures": 3, "open_for": 2, "probes": 1}, "shop": {"open_for": 2}},
}


def calling(self: Any, label: str, name: str) -> str:
    """Call a dependency, which is well once the test says so."""
    note(self, label, name=name)
    if not stage_of(self).is_open(f"{label}:well"):
        raise Transient("down")
    return name


TASKS: tuple[Any, ...] = (
    (variant(calling, "calling_bank"), {"breaker": "bank", "max_retries": 50}),
    (variant(calling, "calling_shop"), {"breaker": "shop"}),
)


def add_tasks(app: Celery) -> Celery:
    """Register the tasks above."""
    for body, options in TASKS:
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if VARIABLE in os.environ:
    app = add_tasks(make_app(Stage.from_environment()))
