"""celery-singleton on crash-safe Celery with the fast sweep."""

from __future__ import annotations

import os

from celery_singleton import Singleton

from benchmarks.peers.apps.fast import app
from benchmarks.peers.body import SERVER, work

app.conf.singleton_backend_url = os.environ[SERVER]


@app.task(base=Singleton, name="singleton", unique_on=["label"])
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job.delay(kind, label)
