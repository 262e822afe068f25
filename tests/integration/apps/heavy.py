"""Tasks that take large arguments, or have large results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from celery_reliable import Permanent, ReliableTask, Transient
from tests.integration.apps.jobs import make_app, note, stage_of
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery


def add_heavy(app: Celery) -> Celery:
    """Register the tasks."""

    def weigh(self: Any, document: str, label: str, fail: str = "") -> int:
        note(self, label, size=len(document))
        stage_of(self).meet("weighing", label)
        if fail == "once" and self.attempt == 1:
            raise Transient("once more")
        if fail == "gate" and not stage_of(self).is_open(label):
            raise Permanent("not yet")
        return len(document)

    def total(self: Any, sizes: Any, document: str, label: str) -> int:
        note(self, label, size=len(document))
        return (sum(sizes) if isinstance(sizes, list) else sizes) + len(document)

    def grow(self: Any, size: int, label: str) -> str:
        note(self, label, size=size)
        return "r" * size

    def measure(self: Any, grown: Any, label: str) -> list[int]:
        note(self, label)
        return [len(one) for one in ([grown] if isinstance(grown, str) else grown)]

    for body in (weigh, total, grow, measure):
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False)(body)
    return app


if VARIABLE in os.environ:
    app = add_heavy(make_app(Stage.from_environment()))
