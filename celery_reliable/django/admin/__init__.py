"""Pages in Django's admin: dead letters, keys with their leases, and the entries of the schedule.

They read and change the store through the same service as ``celery reliable``, so they work whatever the store is.
"""

from __future__ import annotations

from django.contrib import admin

from celery_reliable.django.admin.entries import BeatEntryAdmin
from celery_reliable.django.admin.keys import KeyAdmin
from celery_reliable.django.admin.letters import DeadLetterAdmin
from celery_reliable.django.models import BeatEntry, DeadLetter, Key

__all__ = ["BeatEntryAdmin", "DeadLetterAdmin", "KeyAdmin"]

# Django's autodiscovery imports this module for its effect, and only where the admin is installed.
admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(Key, KeyAdmin)
admin.site.register(BeatEntry, BeatEntryAdmin)
