"""A project that knows nothing of the kit: its servers are elsewhere."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from celery import Celery

from celery_reliable import ReliableTask

logger = logging.getLogger(__name__)

NOWHERE = "redis://127.0.0.1:1/0"  # no server answers there
app = Celery("kit-shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
app.config_from_object("celery_reliable.presets")
app.conf.reliable_store_url = NOWHERE


@app.task(base=ReliableTask, bind=True)
def count(self: Any, pages: int, seconds: float = 0.1) -> int:
    """Count, a page after the other, and go on where another worker left off."""
    for page in self.checkpoint.iterate(range(pages)):
        logger.info("counts page %d.", page)
        time.sleep(seconds)
    return pages


@app.task(base=ReliableTask)
def whoami() -> int:
    """Return the process that runs this."""
    return os.getpid()


@app.task(base=ReliableTask)
def tick() -> None:
    """Say so."""
    logger.info("ticks.")
