"""End a worker that was told to stop: hand over at once, let tasks end, interrupt them in time.

Celery's own warm shutdown begins only when nothing is left to do. Until then the worker's loop goes on as ever, so acks,
heartbeats, revokes and time limits work through the whole drain. See `Drain` for the order of events.
"""

from celery_reliable.worker.drain.handover import HandOver
from celery_reliable.worker.drain.step import Drain

__all__ = ["Drain", "HandOver"]
