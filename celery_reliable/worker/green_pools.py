"""Keep a worker on gevent or eventlet from standing still."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.worker.forks import AFTER_FORKS


class GreenPools(bootsteps.StartStopStep):
    """On green pools, where one wait in the wrong place stops all: mend those of Celery and kombu.

    It subscribes to a result only when somebody waits for it (`internals.subscribe_only_to_wait`; other pools do not subscribe in a
    worker at all), and waits for a broker that is away without holding up its tasks and their leases
    (`internals.sleep_cooperatively`).
    """

    requires = AFTER_FORKS

    def include_if(self, parent: Any) -> bool:
        """Take part on gevent and eventlet."""
        return bool(getattr(parent.pool, "is_green", False))

    def start(self, parent: Any) -> None:
        """Prepare the app's result backends and its connections, before the first message."""
        internals.subscribe_only_to_wait(parent.app)
        internals.sleep_cooperatively()
