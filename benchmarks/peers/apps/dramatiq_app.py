"""dramatiq with its defaults."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.body import SERVER, work

dramatiq.set_broker(RedisBroker(url=os.environ[SERVER]))


@dramatiq.actor(actor_name="job")
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job.send(kind, label)
