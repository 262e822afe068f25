"""rq with its defaults; a job's label is its id."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

from benchmarks.peers.body import SERVER, work

queue = Queue(connection=Redis.from_url(os.environ[SERVER]))


def send(kind: str, label: str) -> None:
    """Submit one."""
    queue.enqueue(work, kind, label, job_id=label)
