"""Say at ``manage.py check`` what is wrong with the configuration of Celery and of celery_reliable."""

from __future__ import annotations


def register() -> None:
    """Register the checks with Django."""
