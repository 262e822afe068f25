"""Celery with the settings that its documentation names against lost work."""

from __future__ import annotations

from benchmarks.peers.apps.plain import app, send

app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)

__all__ = ["app", "send"]
