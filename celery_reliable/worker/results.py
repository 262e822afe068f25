"""Keep the results of what a green worker sends from stopping it."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable import internals


class Results(bootsteps.StartStopStep):
    """On green pools, subscribe to a result only when somebody waits for it (`internals.subscribe_only_to_wait`).

    Other pools do not subscribe in a worker: there a task must not wait for another one's result.
    """

    requires = ("celery_reliable.worker.preflight:Preflight", "celery.worker.components:Pool")

    def include_if(self, parent: Any) -> bool:
        """Take part on gevent and eventlet."""
        return bool(getattr(parent.pool, "is_green", False))

    def start(self, parent: Any) -> None:
        """Prepare the app's result backends, before the first message."""
        internals.subscribe_only_to_wait(parent.app)
