"""Name the app."""

from __future__ import annotations

from django.apps import AppConfig


class ReliableConfig(AppConfig):  # type: ignore[misc]  # Django is not typed
    """The app, with its short label for ``manage.py migrate``."""

    name = "celery_reliable.django"
    label = "celery_reliable"
    verbose_name = "Celery Reliable"
    default_auto_field = "django.db.models.BigAutoField"
