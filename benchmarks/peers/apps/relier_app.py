"""relier on Celery: its own app, its own verb to submit, and the same call of an idempotent task is the same job."""

from __future__ import annotations

from relier import rl_task

from benchmarks.peers.body import work


@rl_task(queue="default", idempotent=True)
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    job.push(kind, label)
