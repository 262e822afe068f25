"""What the thread that renews leases asks of the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery.worker import state

from celery_reliable.events import Events
from celery_reliable.runtime import replaced_runtime
from celery_reliable.stores.base import Run
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.worker.lease_keeper import LeaseKeeper
from celery_reliable.worker.request import ReliableRequest
from tests.unit.test_task import job_task, make_app

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.stores.base import Job

LEASE = 15.0


class Asked(MemoryStore):
    """A store that notes what it was asked to renew."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.renewed: list[list[str]] = []

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """Note the keys, then renew."""
        asked = list(claims)
        self.renewed.append(sorted(job.key for job, *_ in asked))
        return super().renew(asked, pulse_ttl=pulse_ttl)


@pytest.fixture
def app() -> Celery:
    """An app whose queue is empty."""
    made = make_app(reliable_lease_ttl=LEASE)
    with made.connection_for_write() as connection:
        queue = made.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.purge()
    return made


@pytest.fixture
def running(app: Celery) -> Iterator[list[ReliableRequest]]:
    """Four requests that a worker has begun: three have run for a lease, the last one has just begun."""
    task = job_task(app)
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        requests = []
        for number in range(4):
            task.apply_async((number,), task_id=f"job-{number}")
            message = queue.get(no_ack=True)
            requests.append(ReliableRequest(message, app=app, task=task, on_ack=lambda *_: None, eventer=None))
    for request in requests[:3]:
        request.accepted_at = time.monotonic() - LEASE
    requests[3].accepted_at = time.monotonic()
    state.active_requests.update(requests)
    yield requests
    state.active_requests.difference_update(requests)


@pytest.mark.usefixtures("running")
def test_all_leases_are_renewed_in_one_call_a_beat(app: Celery) -> None:
    """However many tasks run; one that has just begun is not in it."""
    store = Asked()
    with replaced_runtime(app, store=store, events=Events()):
        keeper = LeaseKeeper(SimpleNamespace(app=app))
        for _ in range(2):
            keeper.beat()

    assert store.renewed == [["job-0", "job-1", "job-2"]] * 2


def test_a_lease_is_told_lost_once_and_only_while_its_job_runs(app: Celery, running: list[ReliableRequest]) -> None:
    """One whose job has ended may still send what follows it, or wait for a broker that is away; its lease is not missed."""
    store, told = MemoryStore(), list[tuple[str, Any]]()
    lost, done, held, _ = running
    begun = {
        one.id: _claimed(store, one, token="another's" if one is lost else one.token) for one in (lost, done, held)
    }
    store.complete(
        done.job, task_id=done.id, fence=begun[done.id].fence, token=done.token, outcome=b"", marker_ttl=60.0
    )
    hook = Events([lambda name, fields: told.append((name, fields["task_id"]))])
    with replaced_runtime(app, store=store, events=hook):
        keeper = LeaseKeeper(SimpleNamespace(app=app))
        for _ in range(4):
            keeper.beat()

    assert told == [("lease_lost", lost.id)]


def _claimed(store: MemoryStore, request: ReliableRequest, *, token: str) -> Run:
    answer = store.claim(
        request.job, task_id=request.id, life=1, token=token, ttl=LEASE, max_deliveries=5, record_ttl=60.0
    )
    assert isinstance(answer, Run)
    return answer
