"""celery-once on crash-safe Celery with the fast sweep."""

from __future__ import annotations

import os

from celery_once import QueueOnce

from benchmarks.peers.apps.fast import app
from benchmarks.peers.body import SERVER, work

app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ[SERVER], "default_timeout": 3600},
}


@app.task(base=QueueOnce, name="once", once={"keys": ["label"]})
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job.delay(kind, label)
