"""Celery with its defaults."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.peers.body import SERVER, work

app = Celery("plain", broker=os.environ[SERVER])


@app.task(name="job")
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job.delay(kind, label)
