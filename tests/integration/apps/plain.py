"""A worker without celery_reliable, to show that a fault exists: ``celery -A tests.integration.apps.plain worker``."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from tests.integration.apps.stage import VARIABLE, Stage


def make_plain(stage: Stage) -> Celery:
    """Return an app of Celery's own, with late acks, and two tasks."""
    app = Celery("plain", broker=stage.broker, backend=stage.backend, set_as_current=False)
    app.conf.update({"task_acks_late": True, **stage.conf})

    @app.task(name="held", shared=False)
    def held(label: str, gate: str) -> Any:
        """Note the start, wait at a gate, note the end."""
        stage.note(label, step="start")
        stage.pass_gate(gate)
        stage.note(label, step="end")

    return app


if VARIABLE in os.environ:
    app = make_plain(Stage.from_environment())
