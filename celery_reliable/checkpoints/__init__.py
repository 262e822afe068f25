"""Keep the progress of a long task, so that the next run goes on where this one stopped."""

from __future__ import annotations

from celery_reliable.checkpoints.checkpoint import Checkpoint
from celery_reliable.checkpoints.entries import Room, kept_aside, put_aside, taken_back
from celery_reliable.checkpoints.progress import Holder, Progress

__all__ = ["Checkpoint", "Holder", "Progress", "Room", "kept_aside", "put_aside", "taken_back"]
