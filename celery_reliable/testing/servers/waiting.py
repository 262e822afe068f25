"""Wait for a condition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_reliable.testing.servers.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_INTERVAL = 0.05


def wait_for(condition: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Return once `condition` holds, or raise `ServerUnavailable` at the timeout; an OSError counts as not yet."""
    deadline = time.monotonic() + timeout
    while not _holds(condition):
        if time.monotonic() > deadline:
            message = f"{what} did not happen within {timeout:g} s"
            raise ServerUnavailable(message)
        time.sleep(POLL_INTERVAL)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:
        return False
