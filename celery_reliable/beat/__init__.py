"""Run a schedule from several beats at once: one leads, the others stand by, and each slot fires once.

``celery -A proj beat -S celery_reliable.beat:ReliableScheduler`` wraps the scheduler that ``reliable_beat_scheduler``
names. The classes for Celery's own schedulers, django-celery-beat's and redbeat's can also be named directly; to put
leadership over a scheduler of your own, write ``class Mine(LeaderMixin, MyScheduler)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_reliable.beat.mixin import LeaderMixin
    from celery_reliable.beat.wrapping import (
        ReliableMemoryScheduler,
        ReliablePersistentScheduler,
        ReliableScheduler,
    )

__all__ = ["LeaderMixin", "ReliableMemoryScheduler", "ReliablePersistentScheduler", "ReliableScheduler"]

_HOMES = {
    "LeaderMixin": "celery_reliable.beat.mixin",
    "ReliableMemoryScheduler": "celery_reliable.beat.wrapping",
    "ReliablePersistentScheduler": "celery_reliable.beat.wrapping",
    "ReliableScheduler": "celery_reliable.beat.wrapping",
    # Only where django-celery-beat or redbeat is installed.
    "ReliableDatabaseScheduler": "celery_reliable.beat.database",
    "ReliableRedBeatScheduler": "celery_reliable.beat.redbeat",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: a worker, or the command line, needs none of them."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOMES[name]), name)
