"""huey with its defaults."""

from __future__ import annotations

import os

from huey import RedisHuey

from benchmarks.peers.body import SERVER, work

huey = RedisHuey("peers", url=os.environ[SERVER])


@huey.task(name="job")
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job(kind, label)
