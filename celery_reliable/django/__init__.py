"""The Django app: put ``"celery_reliable.django"`` into ``INSTALLED_APPS``. Its names are imported when they are first used.

``celery -A proj beat -S celery_reliable.django:ReliableDatabaseScheduler`` runs the rows of django-celery-beat under
leadership.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_reliable.django.sinks import fenced_update, insert_once, transition

__all__ = ["fenced_update", "insert_once", "transition"]

_SCHEDULER = "ReliableDatabaseScheduler"  # only where django-celery-beat is installed


def __getattr__(name: str) -> Any:
    """Import a public name on first use: ``manage.py`` imports this package, and needs no Celery."""
    if name not in {*__all__, _SCHEDULER}:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = "celery_reliable.beat.database" if name == _SCHEDULER else "celery_reliable.django.sinks"
    return getattr(import_module(home), name)
