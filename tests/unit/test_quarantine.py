"""A suspect that is revoked in the moment in which it would move."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_reliable import ReliableTask
from celery_reliable.errors import ProcessKilled
from celery_reliable.testing import in_memory


class RevokedAtRelease:
    """A store in which a job is revoked just before its claim is given back."""

    def __init__(self, store: Any) -> None:
        """Take the store."""
        self._store = store

    def __getattr__(self, name: str) -> Any:
        """Be the store in everything else."""
        return getattr(self._store, name)

    def release(self, job: Any, **given: Any) -> Any:
        """Revoke, then release."""
        self._store.revoke(job, task_id=job.key, ttl=60.0)
        return self._store.release(job, **given)


def test_a_suspect_that_is_revoked_ends_and_says_so() -> None:
    """Neither moved nor run again, and no silence about it."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://", reliable_quarantine_queue="quarantine")

    def dies() -> None:
        raise ProcessKilled

    task = app.task(dies, base=ReliableTask, shared=False, max_deliveries=2)
    told: list[tuple[str, dict[str, Any]]] = []
    with in_memory(app, hooks=(lambda name, fields: told.append((name, fields)),), around=RevokedAtRelease) as bench:
        task.delay()
        while bench.waiting and len(told) < 20:
            bench.elapse(60.0)
            bench.deliver(bench.waiting[0])

    assert bench.waiting == []
    assert [fields["state"] for name, fields in told if name == "over"] == ["revoked"]
    assert "quarantined" not in [name for name, _ in told]
