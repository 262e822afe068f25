"""The Django project of `django_settings`, with parcels."""

from __future__ import annotations

from tests.integration.apps.django_settings import *  # noqa: F403
from tests.integration.apps.django_settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.integration.apps.parcels"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
