"""A scheduler whose loop hangs once for each time that a test asks for it."""

from __future__ import annotations

import time
from typing import Any

from celery.beat import Scheduler

HANGS = 4.5  # seconds: longer than the least lease


class SlowScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Celery's, but for an entry that takes its time to be moved on when the gate ``slow`` is open."""

    def reserve(self, entry: Any) -> Any:
        """Hang between the claim of a slot and its publish."""
        if self.app.stage.take("slow"):
            time.sleep(HANGS)
        return super().reserve(entry)
