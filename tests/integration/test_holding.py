"""A message whose key is taken waits in its worker: no hot loop, no pool slot, nothing published."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run, Settled
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.stores.base import Store
    from celery_reliable.testing.servers import RedisServer, Server
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

DEADLINE = 20.0
LEASE = 0.6  # seconds: shorter than the shortest wait, renewed all the time
RENEWED_EVERY = 0.05
WAITING = 3


class Holder:
    """Somebody who has the right to a key: not a worker, so that no pool is busy with it."""

    def __init__(self, store: Store, job: Job) -> None:
        """Claim it."""
        self._store, self._job, self._token = store, job, uuid.uuid4().hex[:12]
        claim = store.claim(
            job, task_id="holder", life=0, token=self._token, ttl=LEASE, max_deliveries=5, record_ttl=3600
        )
        assert isinstance(claim, Run)
        self._fence = claim.fence
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(RENEWED_EVERY):
            self._store.renew([(self._job, self._token, LEASE)], pulse_ttl=3.0)

    def complete(self, outcome: bytes) -> None:
        """End the job."""
        self.stop()
        answer = self._store.complete(
            self._job, task_id="holder", fence=self._fence, token=self._token, outcome=outcome, marker_ttl=3600
        )
        assert isinstance(answer, Settled)

    def stop(self) -> None:
        """Renew no more. May be called twice."""
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def holding(app: Celery, key: str) -> Iterator[Holder]:
    """Hold a declared key."""
    holder = Holder(runtime_of(app).store, Job(key, "declared"))
    try:
        yield holder
    finally:
        holder.stop()


def run_scenario(stage: Stage, label: str, *, broker_is_redis: bool) -> None:
    """Let three messages wait for one key for four seconds, run another task meanwhile, then end the job."""
    bare = Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False)
    bare.conf.task_default_queue = stage.conf.get("task_default_queue", "celery")
    with client(stage) as app, holding(app, f"order:{label}") as holder:
        results = [bare.send_task("order", (label, label)) for _ in range(WAITING)]
        for result in results:
            stage.wait_event("busy", result.id)
        assert app.tasks["add"].delay(1, f"{label}:other").get(timeout=DEADLINE) == 2
        for result in results:
            stage.wait_event("busy", result.id, count=4)
        if broker_is_redis:
            assert stage.messages() == (0, WAITING)
        assert app.tasks["add"].delay(2, f"{label}:other").get(timeout=DEADLINE) == 3
        holder.complete(b'"kept"')

        assert [result.get(timeout=DEADLINE) for result in results] == ["kept"] * WAITING
        assert stage.entries(label) == []
        for result in results:
            assert min(gaps(stage, result.id)) > 0.95
        if broker_is_redis:
            stage.wait_no_message()
    bare.close()


def gaps(stage: Stage, task_id: str) -> list[float]:
    """Return the seconds between claims of one message."""
    times = [event["at"] for event in stage.events("busy", task_id)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_messages_wait_for_a_key_on_redis(
    module_redis: RedisServer, workers: Workers, tmp_path: Path, pool: str, label: str
) -> None:
    """At most one claim a second for each, the only slot free for others, the messages where they were."""
    module_redis.flush()
    stage = Stage.on(module_redis.url, directory=tmp_path)
    workers.start("tests.integration.apps.worker", pool=pool, env=stage.environment(), arguments=QUICK)

    run_scenario(stage, label, broker_is_redis=True)


def test_messages_wait_for_a_key_on_rabbitmq(
    module_redis: RedisServer, rabbitmq_server: Server, workers: Workers, tmp_path: Path, label: str
) -> None:
    """At most one claim a second for each, the only slot free for others."""
    module_redis.flush()
    stage = Stage(
        tmp_path,
        broker=rabbitmq_server.url,
        backend=module_redis.url,
        store=module_redis.url,
        conf={"task_default_queue": f"holding-{label}"},
    )
    workers.start("tests.integration.apps.worker", env=stage.environment(), arguments=QUICK)

    run_scenario(stage, label, broker_is_redis=False)
