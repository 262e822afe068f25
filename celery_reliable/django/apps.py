"""Name the app."""

from __future__ import annotations

from functools import cached_property

from django.apps import AppConfig

from celery_reliable.django.project import Project


class ReliableConfig(AppConfig):
    """The app, with its short label for ``manage.py migrate``."""

    name = "celery_reliable.django"
    label = "celery_reliable"
    verbose_name = "Celery Reliable"
    default_auto_field = "django.db.models.BigAutoField"

    @cached_property
    def project(self) -> Project:
        """What the pages and commands know of the project's Celery app."""
        return Project()

    def ready(self) -> None:
        """Register the checks. Nothing connects, and the Celery app is not asked for."""
        from celery_reliable.django.checks import register  # noqa: PLC0415  # models exist from here on

        register()
