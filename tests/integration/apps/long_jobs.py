"""Tasks that save their progress, and the app of a worker that runs them.

``celery -A tests.integration.apps.long_jobs worker``
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from celery_reliable import Permanent, ReliableTask, Transient
from tests.integration.apps.jobs import make_app, note, stage_of
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery

LARGE = 4000  # bytes: above the tests' claim_check_threshold


def walk(self: Any, label: str, size: int, every: int = 1, fails_at: int | None = None) -> int:
    """Note each item, and come to a moment in the middle of it; the first attempt may fail there."""
    note(self, label, step="start")
    for item in self.checkpoint.iterate(range(size), every=every):
        note(self, label, step="item", item=item)
        stage_of(self).meet("item", f"{label}:{item}")
        if item == fails_at and self.attempt == 1:
            raise Transient("again")
    return int(self.attempt)


def stepped(self: Any, label: str) -> list[str]:
    """Take two steps, each once, and come to a moment between them."""
    note(self, label, step="start")
    first = self.once("first", _step, self, label, "first")
    stage_of(self).meet("between", label)
    return [first, self.once("second", _step, self, label, "second")]


def _step(task: Any, label: str, name: str) -> str:
    note(task, label, step=name)
    return f"{name} of {task.fence}"


def load_large(self: Any, label: str) -> int:
    """Save something large, then die; the next life goes on from it."""
    state = self.checkpoint.load()
    note(self, label, found=len(state or ""))
    if state is None:
        self.checkpoint.save("x" * LARGE)
        raise Permanent("half done")
    return len(state)


def informative(self: Any, label: str, gate: str) -> str:
    """Tell of progress Celery's way, beside a checkpoint."""
    self.update_state(state="PROGRESS", meta={"done": 1})
    self.checkpoint.save({"done": 1})
    note(self, label)
    stage_of(self).pass_gate(gate)
    return label


TASKS: tuple[Any, ...] = ((walk, {}), (stepped, {}), (load_large, {}), (informative, {}))


def add_tasks(app: Celery) -> Celery:
    """Register the tasks above."""
    for body, options in TASKS:
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if VARIABLE in os.environ:
    app = add_tasks(make_app(Stage.from_environment()))
