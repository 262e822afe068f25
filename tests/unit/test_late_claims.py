"""A claim whose answer comes when its lease may be over: the worker was frozen in between, or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_reliable import ReliableTask
from celery_reliable.execution import delivery
from celery_reliable.runtime import runtime_of
from celery_reliable.testing import in_memory
from celery_reliable.testing.bench import Bench, Message


class Frozen:
    """A store that answers the first claim late: two leases have passed, and ``meanwhile`` has happened."""

    def __init__(self, store: Any) -> None:
        """Take the store."""
        self._store = store
        self.monotonic = 0.0
        self.bench: Bench | None = None
        self.copies: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        """Be the store in everything else."""
        return getattr(self._store, name)

    def claim(self, job: Any, **given: Any) -> Any:
        """Claim; then let time pass, and others have the copies of the message."""
        answer = self._store.claim(job, **given)
        bench, self.bench = self.bench, None
        if bench is not None:
            pause = 2 * runtime_of(bench.app).settings.lease_ttl
            self.monotonic += pause
            bench.elapse(pause)
            for copy in self.copies:
                bench.deliver(copy)
        return answer


@pytest.fixture
def app() -> Celery:
    """An app on nothing but memory."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://")
    return app


@pytest.fixture
def frozen(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    """The bench's store, and a monotonic clock that goes along with it."""
    made: list[Frozen] = []

    def around(store: Any) -> Any:
        made.append(Frozen(store))
        return made[0]

    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: made[0].monotonic))
    with in_memory(app, around=around) as bench:
        made[0].bench = bench
        yield made[0]


@pytest.mark.parametrize("others", [0, 1], ids=["nobody else came", "another has done it"])
def test_a_claim_that_comes_too_late_starts_no_body(app: Celery, frozen: Frozen, others: int) -> None:
    """G3: its job runs once, by whoever holds the lease; the attempt that did not begin is not counted."""
    began: list[int] = []
    bench = frozen.bench
    assert bench is not None

    def charge(self: ReliableTask) -> str:
        began.append(self.attempt)
        return "charged"

    task = app.task(bind=True, base=ReliableTask, shared=False)(charge)
    result = task.delay()
    (message,) = bench.submitted
    frozen.copies = [message] * others
    bench.drain_all()

    assert (began, result.get(timeout=1)) == ([1], "charged")
