"""taskiq on a Redis stream, the broker of taskiq-redis that acknowledges."""

from __future__ import annotations

import asyncio
import os

from taskiq_redis import RedisStreamBroker

from benchmarks.peers.body import SERVER, work

broker = RedisStreamBroker(os.environ[SERVER])


@broker.task(task_name="job")
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


async def _send(kind: str, label: str) -> None:
    await broker.startup()
    await job.kiq(kind, label)
    await broker.shutdown()


def send(kind: str, label: str) -> None:
    """Submit one."""
    asyncio.run(_send(kind, label))
