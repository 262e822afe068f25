"""Tasks whose key has a window, waits for a burst to end, or takes newer arguments, and the app of a worker that runs them.

``celery -A tests.integration.apps.window_jobs worker``
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from celery_reliable import ReliableTask
from tests.integration.apps.jobs import make_app, note, variant
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery

HOUR = 3600.0
BURST, BOUND = 0.3, 0.6


def once(self: Any, label: str, name: str) -> str:
    """Note that it ran."""
    note(self, label, name=name)
    return name


TASKS: tuple[Any, ...] = (
    (once, {"idempotency_key": "once:{label}", "fingerprint_args": ("label",), "dedup_for": HOUR}),
    (variant(once, "last"), {"idempotency_key": "last:{label}", "debounce": BURST, "debounce_max": BOUND}),
    (variant(once, "newer"), {"idempotency_key": "newer:{label}", "on_conflict": "replace"}),
    (variant(once, "queued"), {"idempotency_key": "queued:{label}", "on_conflict": "queue_one"}),
)


def add_tasks(app: Celery) -> Celery:
    """Register the tasks above."""
    for body, options in TASKS:
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if VARIABLE in os.environ:
    app = add_tasks(make_app(Stage.from_environment()))
