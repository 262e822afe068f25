"""Say at start how long a supervisor has to wait for this worker."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from celery_reliable.worker.drain.course import LATEST

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)


def grace_period(drain_timeout: float) -> int:
    """Return the whole seconds that must pass between SIGTERM and SIGKILL."""
    return math.ceil(drain_timeout + LATEST)


def longest_time_limit(app: Celery) -> float | None:
    """Return the longest hard time limit of the registered tasks, None when one of them has none."""
    limits = [_time_limit(app, task) for name, task in app.tasks.items() if not name.startswith("celery.")]
    if None in limits:
        return None
    return max((limit for limit in limits if limit is not None), default=None)


def _time_limit(app: Celery, task: Any) -> float | None:
    limit: float | None = task.time_limit or app.conf.task_time_limit
    return limit


def announce(app: Celery, *, drain_timeout: float) -> None:
    """Log one line: what a stop of this worker may take, under the names that supervisors give it."""
    longest, grace = longest_time_limit(app), grace_period(drain_timeout)
    running = "tasks have no time limit" if longest is None else f"longest time limit {longest:g} s"
    fits = longest is not None and longest <= drain_timeout
    logger.info(
        "shutdown budget: drain timeout %g s, %s, %s; needs terminationGracePeriodSeconds / stop_grace_period / "
        "TimeoutStopSec of at least %d s",
        drain_timeout,
        running,
        "every task may end" if fits else f"a task that runs longer than {drain_timeout:g} s is interrupted",
        grace,
        extra={
            "reliable_event": "shutdown_budget",
            "reliable_drain_timeout": drain_timeout,
            "reliable_longest_time_limit": longest,
            "reliable_grace_period": grace,
        },
    )
