"""What holds on every pool, and on both brokers.

First of all: a message whose key is taken waits in its worker, without a hot loop, in no pool slot, nothing published.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from celery import Celery, chain, group

from celery_reliable import Permanent
from celery_reliable.heartbeats import read_sign
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run, Settled
from tests.integration.apps.jobs import QUICK, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.stores.base import Store
    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 20.0
LEASE = 0.6  # seconds: shorter than the shortest wait, renewed all the time
RENEWED_EVERY = 0.05
WAITING = 3
PATIENCE = 2.0  # seconds that a consumer's loop may stand still without an excuse: two intervals


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


PLACES = ["prefork", "threads", "solo", "gevent", "eventlet", "prefork-rabbitmq"]


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """The pool, and the broker where it is not Redis."""
    return str(request.param)


@pytest.fixture(scope="module")
def stage(
    place: str, request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    """A stage of its own for each place."""
    module_redis.flush()
    folder = tmp_path_factory.mktemp(place)
    conf = {"reliable_heartbeat_file": f"{folder}/heartbeat", "reliable_heartbeat_interval": 1.0}
    stage = Stage.on(module_redis.url, directory=folder, conf=conf)
    if place.endswith("rabbitmq"):
        url, queue = request.getfixturevalue("rabbitmq_server").url, f"every-pool-{uuid.uuid4().hex}"
        return dataclasses.replace(stage, broker=url, conf={**conf, "task_default_queue": queue})
    return stage


@pytest.fixture(scope="module", autouse=True)
def worker(place: str, stage: Stage, module_workers: Workers) -> Iterator[Worker]:
    """A worker with one slot."""
    pool = place.split("-", maxsplit=1)[0]
    worker = module_workers.start("tests.integration.apps.worker", pool=pool, env=stage.environment(), arguments=QUICK)
    yield worker
    worker.kill()


@pytest.fixture
def bare(stage: Stage) -> Iterator[Celery]:
    """A process without celery_reliable: its messages meet the key at the claim."""
    with Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False) as bare:
        bare.conf.task_default_queue = stage.conf.get("task_default_queue", "celery")
        yield bare
        bare.backend.result_consumer.subscribed_to.clear()


def gaps(stage: Stage, task_id: str) -> list[float]:
    """Return the seconds between claims of one message."""
    times = [event["at"] for event in stage.events("busy", task_id)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_messages_wait_for_a_key(app: Celery, bare: Celery, stage: Stage, place: str, label: str) -> None:
    """Three messages wait for three seconds: at most one claim a second for each, the only slot free for others.

    They stay where they are: nothing is published. When the holder completes, each ends with its outcome.
    """
    on_redis = "rabbitmq" not in place
    with holding(app, f"order:{label}") as holder:
        results = [bare.send_task("order", (label, label)) for _ in range(WAITING)]
        for result in results:
            stage.wait_event("busy", result.id)
        assert app.tasks["add"].delay(1, f"{label}:other").get(timeout=DEADLINE) == 2
        for result in results:
            stage.wait_event("busy", result.id, count=4)
        assert not on_redis or stage.messages() == (0, WAITING)
        assert app.tasks["add"].delay(2, f"{label}:other").get(timeout=DEADLINE) == 3
        holder.complete(b'"kept"')

        assert [result.get(timeout=DEADLINE) for result in results] == ["kept"] * WAITING
    assert stage.entries(label) == []
    for result in results:
        assert min(gaps(stage, result.id)) > 0.95
    if on_redis:
        stage.wait_no_message()


def test_children_share_what_the_main_process_loaded(app: Celery, place: str, label: str) -> None:
    """No collection of garbage in a child visits, and so copies, the objects that were there before the fork."""
    frozen = app.tasks["returning"].delay(label, "frozen objects").get(timeout=DEADLINE)

    assert (frozen > 10_000) == place.startswith("prefork")


def test_verdicts_are_acted_on(app: Celery, stage: Stage, label: str) -> None:
    """Retry, snooze, dead letter with its errback, chain: as on prefork."""
    tasks = app.tasks
    retried = chain(tasks["flaky"].s(label, fails=2), tasks["add"].s(f"{label}:next", 10)).apply_async()
    snoozed = tasks["later"].delay(f"{label}:later", 2)
    failed = tasks["hopeless"].apply_async((f"{label}:dead",), link_error=tasks["told"].s())

    assert [retried.get(timeout=DEADLINE), snoozed.get(timeout=DEADLINE)] == [13, 1]
    with pytest.raises(Permanent, match="never"):
        failed.get(timeout=DEADLINE)
    assert letter(app, stage, failed.id).reason == "permanent"
    assert [len(stage.entries(name)) for name in (label, f"{label}:next", f"{label}:later")] == [3, 1, 3]
    assert len(stage.wait_entries(f"told:{failed.id}", 1)) == 1


def test_canvas_goes_on(app: Celery, stage: Stage, label: str) -> None:
    """A chain through a chord, with a group of callbacks at its end: every member runs once, with what came before."""
    add, gather = app.tasks["add"], app.tasks["gather"]
    links = group(add.s(f"{label}:link", number) for number in (10, 20))
    result = chain(add.s(1, label), group(add.s(label, 10), add.s(label, 20)), gather.s(label)).apply_async(link=links)

    assert result.get(timeout=DEADLINE) == 34
    assert sorted((entry["x"], entry["y"]) for entry in stage.wait_entries(f"{label}:link", 2)) == [(34, 10), (34, 20)]
    assert len(stage.entries(label)) == 4


@pytest.mark.parametrize("moment", ["done", "postrun"])
def test_chain_of_a_child_that_died_after_its_outcome_goes_on(
    app: Celery, stage: Stage, place: str, label: str, moment: str
) -> None:
    """The next delivery has the outcome, and the next step runs once. In other pools the whole worker would be gone."""
    if not place.startswith("prefork"):
        return
    add = app.tasks["add"]
    stage.plan(moment, label, "kill")
    result = chain(add.si(1, label).set(task_id=label), add.s(f"{label}:next", 10)).apply_async()

    assert result.get(timeout=DEADLINE) == 12
    assert len(stage.wait_event("replayed_outcome", label, timeout=DEADLINE)) == 1
    assert [len(stage.entries(name)) for name in (label, f"{label}:next")] == [1, 1]


def test_the_heartbeat_follows_the_worker(app: Celery, stage: Stage, label: str) -> None:
    """Idle, then busy for as long as a task runs: on solo it runs in the very thread of the consumer's loop."""
    file = stage.directory / "heartbeat"
    wait_until(lambda: file.exists() and read_sign(file).state == "idle", DEADLINE, "idle")
    result = app.tasks["held"].apply_async((label, label, "kept"))
    stage.wait_entries(label, 1)
    wait_until(lambda: read_sign(file).state == "busy", DEADLINE, "busy")
    began = read_sign(file)
    wait_until(lambda: read_sign(file).clock - began.clock > PATIENCE + 0.5, DEADLINE, "signs while the task runs")
    assert (read_sign(file).state, read_sign(file).running) == ("busy", 1)
    stage.open(label)
    assert result.get(timeout=DEADLINE) == "kept"
    wait_until(lambda: read_sign(file).state == "idle", DEADLINE, "idle again")


@pytest.mark.parametrize("name", ["MemoryError", "SystemExit", "GeneratorExit"])
def test_no_error_of_a_task_ends_a_process(app: Celery, stage: Stage, worker: Worker, label: str, name: str) -> None:
    """MemoryError ends a worker by Celery itself, SystemExit a child, or leaves the request open for ever on threads."""
    processes = {worker.pid, *worker.children}
    result = app.tasks["raising"].apply_async((label, name), task_id=label)

    with pytest.raises(Permanent, match=name):
        result.get(timeout=DEADLINE)
    assert letter(app, stage, label).error_type == name
    assert app.tasks["add"].delay(1, f"{label}:other").get(timeout=DEADLINE) == 2
    assert {worker.pid, *worker.children} == processes
