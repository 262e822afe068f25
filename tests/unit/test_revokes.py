"""What a worker does with a message that was revoked or has expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.backends.base import DisabledBackend
from celery.worker.state import revoked

from celery_reliable.keys import HEADER
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.waits import expiring
from celery_reliable.worker.request import ReliableRequest
from tests.unit.test_task import job_task, make_app

if TYPE_CHECKING:
    from celery import Celery

JOB = Job("job:1", "declared")


class Telling(DisabledBackend):  # type: ignore[misc]  # Celery has no types
    """A result backend that looks at the key in the moment in which it tells the caller."""

    def __init__(self, app: Celery) -> None:
        """Take the app."""
        super().__init__(app=app)
        self._store = runtime_of(app).store
        self.found: list[str] = []

    def mark_as_revoked(self, *args: Any, **kwargs: Any) -> None:
        """Look."""
        self.found.append(self._store.inspect(JOB)["state"])


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("expired", [False, True])
def test_the_key_is_free_before_the_caller_is_told(terminated: bool, expired: bool) -> None:  # noqa: FBT001
    """Whoever was told may submit it again at once: that is a job of its own."""
    app = make_app()
    task = job_task(app, idempotency_key="job:{x}")
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.purge()
        first = task.delay(1)
        message = queue.get(no_ack=True)
        task.backend = told = Telling(app)
        request = ReliableRequest(message, app=app, task=task, on_ack=lambda *_: None, eventer=None)
        reason = "expired" if expired else "revoked"
        request._announce_revoked(reason, terminated, None, expired)  # what Celery calls
    assert told.found == ["over" if expired else "revoked"]
    assert task.delay(1).id != first.id


AGO, AHEAD = "2000-01-01T00:00:00+00:00", "2900-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("seconds", "written", "expired"),
    [
        (60, AGO, False),  # a sender whose clock is behind, or a worker's that is ahead
        (-1, AHEAD, True),
        (None, AGO, True),  # a moment is what the caller's clock says it is
        (None, AHEAD, False),
    ],
)
def test_seconds_until_an_expiry_are_counted_by_the_store(seconds: float | None, written: str, expired: bool) -> None:  # noqa: FBT001
    """Celery writes a moment by the clock of the sender, and compares it with that of the worker."""
    app = make_app()
    task = job_task(app)
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.purge()
        task.apply_async((1,), expires=60)
        message = queue.get(no_ack=True)
        message.headers["expires"] = written
        if seconds is not None:  # told where the ledger is on
            now = runtime_of(app).store.now()
            message.headers[HEADER] = expiring(message.headers[HEADER], since=now, seconds=seconds)
        request = ReliableRequest(message, app=app, task=task, on_ack=lambda *_: None, eventer=None)
        assert bool(request.maybe_expire()) is expired
    revoked.discard(request.id)
