"""Look at the fleet again and again, also through outages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.fleet.queues import QueueSight, sight_of
from celery_reliable.fleet.state import Fleet, look

if TYPE_CHECKING:
    from celery import Celery


class Lookout:
    """Look again and again, one look at a time, over connections that are kept. Connects at the first look."""

    def __init__(self, app: Celery) -> None:
        """Take the app."""
        self._app = app
        self._lock = threading.Lock()
        self._sight: QueueSight | None = None

    def look(self) -> Fleet | None:
        """Return the fleet; None when store or broker are away."""
        with self._lock:
            try:
                self._sight = self._sight or sight_of(self._app)
                return look(self._app, sight=self._sight)
            except _away():
                self.close()
                return None

    def close(self) -> None:
        """Close the connection to the broker. May be called twice; another look opens it anew."""
        sight, self._sight = self._sight, None
        if sight is not None:
            try:
                sight.close()
            except _away():
                return


def _away() -> tuple[type[Exception], ...]:
    return (StoreError, *internals.away())
