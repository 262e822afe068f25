"""Tasks that pytest-celery puts into its worker."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import shared_task

from celery_reliable import ReliableTask

logger = logging.getLogger(__name__)


@shared_task(name="count", base=ReliableTask, bind=True)
def count(self: Any, pages: int) -> int:
    """Count, a page after the other, and go on where another worker left off."""
    for page in self.checkpoint.iterate(range(pages)):
        logger.info("counts page %d.", page)
        time.sleep(0.1)
    return pages
