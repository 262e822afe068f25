"""Turn the ``reliable_*`` settings of a project into one valid, frozen `Settings`.

`celery_reliable.presets` repeats the defaults as literals, because Celery reads a module; a test keeps the two equal.
"""

from __future__ import annotations

from celery_reliable.settings.messages import mask_secrets
from celery_reliable.settings.model import PER_TASK, Settings
from celery_reliable.settings.names import TASK_ONLY, has_reliable_settings
from celery_reliable.settings.store_url import refuse_unclear, resolve_store_url
from celery_reliable.settings.table import Setting, describe

__all__ = [
    "PER_TASK",
    "TASK_ONLY",
    "Setting",
    "Settings",
    "describe",
    "has_reliable_settings",
    "mask_secrets",
    "refuse_unclear",
    "resolve_store_url",
]
