"""Celery with celery_reliable; a job's label is its key. It knows how long its supervisor waits, as its guide asks."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.peers.body import SERVER, work
from celery_reliable import ReliableTask

app = Celery("reliable", broker=os.environ[SERVER])
app.config_from_object("celery_reliable.presets")
app.conf.reliable_drain_timeout = 8


@app.task(base=ReliableTask, bind=True, name="job", idempotency_key="{label}")
def job(self: Any, kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label, self.fence)


@app.task(base=ReliableTask, name="noop")
def noop(kind: str, label: str) -> None:
    """Do the work of a job without a declared key."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    (noop if kind == "noop" else job).delay(kind, label)
