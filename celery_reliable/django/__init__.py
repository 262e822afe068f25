"""The Django app: put ``"celery_reliable.django"`` into ``INSTALLED_APPS``. Its names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_reliable.django.sinks import fenced_update, insert_once, transition

__all__ = ["fenced_update", "insert_once", "transition"]


def __getattr__(name: str) -> object:
    """Import a public name on first use: ``manage.py`` imports this package, and needs no Celery."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module("celery_reliable.django.sinks"), name)
