"""Tasks that must not overlap, and the app of a worker that runs them.

``celery -A tests.integration.apps.overlap_jobs worker``
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from celery_reliable import ReliableTask, Transient
from tests.integration.apps.jobs import LEASE, make_app, note, stage_of, variant
from tests.integration.apps.stage import LONGEST_WAIT, VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery


def alone(self: Any, label: str, name: str, fails: int = 0) -> str:
    """Note the start, wait at the gate of this run or until told to stop, note the end.

    While the gate ``deaf`` is open it does not look whether it was told.
    """
    note(self, label, step="start", name=name)
    stage = stage_of(self)
    deadline = time.monotonic() + LONGEST_WAIT
    while not stage.is_open(f"{label}:{name}") and time.monotonic() < deadline:
        if self.draining and not stage.is_open(f"{label}:deaf"):
            note(self, label, step="stopped", name=name)
            if fails:
                raise Transient("again")
            self.stop_if_draining()
        time.sleep(0.02)
    note(self, label, step="end", name=name)
    if self.attempt <= fails:
        raise Transient("again", retry_after=LEASE + 2)
    return name


KEY = {"overlap_key": "alone:{label}"}
TASKS: tuple[Any, ...] = tuple(
    (variant(alone, f"alone_{policy}"), {"overlap": policy, **KEY})
    for policy in ("forbid", "queue", "replace", "allow")
)


def add_tasks(app: Celery) -> Celery:
    """Register the tasks above."""
    for body, options in TASKS:
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if VARIABLE in os.environ:
    app = add_tasks(make_app(Stage.from_environment()))
