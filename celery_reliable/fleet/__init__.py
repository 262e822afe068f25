"""See the whole fleet from outside: what waits, who works, who leads, what died. Nothing is asked of any worker."""

from __future__ import annotations

from celery_reliable.fleet.lookout import Lookout
from celery_reliable.fleet.queues import QueueSight, QueueState, sight_of
from celery_reliable.fleet.state import Deaths, Fleet, Upcoming, WorkerState, look

__all__ = ["Deaths", "Fleet", "Lookout", "QueueSight", "QueueState", "Upcoming", "WorkerState", "look", "sight_of"]
