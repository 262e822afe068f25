"""Wait for a condition instead of sleeping."""

from __future__ import annotations

from celery_reliable.testing.waiting import POLL_INTERVAL, wait_until

__all__ = ["POLL_INTERVAL", "wait_until"]
