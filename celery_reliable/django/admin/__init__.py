"""Pages in Django's admin: dead letters, keys with their leases, and the entries of the schedule.

They read and change the store through the same service as ``celery reliable``, so they work whatever the store is.
"""

from __future__ import annotations

from django.contrib import admin

from celery_reliable.django.admin.letters import DeadLetterAdmin
from celery_reliable.django.models import DeadLetter

__all__ = ["DeadLetterAdmin"]

# Django's autodiscovery imports this module for its effect, and only where the admin is installed.
admin.site.register(DeadLetter, DeadLetterAdmin)
