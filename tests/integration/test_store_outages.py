"""The store is away, or full, while the broker is not."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest
import redis
from celery import Celery

from celery_reliable import QueueFull, StoreUnavailable
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Busy, Job
from celery_reliable.testing import servers
from tests.integration.apps.jobs import LEASE, QUICK, client
from tests.integration.apps.stage import Entry, Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer, Server
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
HASTY = "tests.integration.apps.hasty"
OTHER_PLACES = ("threads", "gevent", "eventlet", "solo", "prefork-rabbitmq")
DEADLINE = 30.0  # a message whose claim cannot be asked for waits up to 15 s


@pytest.fixture
def stage(module_redis: RedisServer, private_redis: RedisServer, tmp_path: Path) -> Stage:
    """The store on a Redis of its own, which the test may break."""
    module_redis.flush()
    return dataclasses.replace(Stage.on(module_redis.url, directory=tmp_path), store=private_redis.url)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage) as app:
        yield app


@pytest.fixture
def bare(stage: Stage) -> Iterator[Celery]:
    """A process without celery_reliable, which can send while the store is away."""
    with Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False) as bare:
        yield bare
        bare.backend.result_consumer.subscribed_to.clear()


# --- running


def test_a_worker_started_without_its_store_runs_tasks_when_the_store_is_back(
    bare: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """It becomes ready, takes a message and keeps it; no body runs, no attempt is spent."""
    private_redis.stop()
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    result = bare.send_task("add", (1, label), task_id=label)
    (away, *_) = stage.wait_event("store_unavailable", label)
    assert away["verb"] == "claim"
    assert stage.messages() == (0, 1)
    assert stage.entries(label) == []
    private_redis.start()

    assert result.get(timeout=DEADLINE) == 2
    (claim,) = stage.events("claimed", label)
    assert [claim["attempt"], claim["delivery"]] == [1, 1]
    stage.wait_no_message()


def test_messages_wait_while_the_store_is_away(
    bare: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """A worker that has claimed before keeps one message a slot and takes no more; all run once, as first attempts."""
    workers.start(APP, env=stage.environment(), arguments=QUICK)
    bare.send_task("add", (1, f"{label}:before")).get(timeout=DEADLINE)
    private_redis.stop()
    results = [bare.send_task("add", (number, label), task_id=f"{label}-{number}") for number in range(2)]
    stage.wait_event("store_unavailable", f"{label}-0")
    beats = len(stage.events("renew_failed"))
    wait_until(lambda: len(stage.events("renew_failed")) > beats + 1, DEADLINE, "time for the other message to come")
    assert stage.messages() == (1, 1)
    assert stage.entries(label) == []
    private_redis.start()

    assert [result.get(timeout=2 * DEADLINE) for result in results] == [1, 2]
    assert stage.events("store_unavailable", f"{label}-1") == []
    assert [entry["attempt"] for entry in stage.entries(label)] == [1, 1]


def test_messages_are_given_back_while_the_store_is_away(
    bare: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """``reliable_on_store_down`` "reject": at most one claim a second for each message, then it is for any worker."""
    stage = dataclasses.replace(stage, conf={"reliable_on_store_down": "reject"})
    private_redis.stop()
    workers.start(APP, pool="threads", env=stage.environment(), arguments=QUICK)
    result = bare.send_task("add", (1, label), task_id=label)
    times = [event["at"] for event in stage.wait_event("store_unavailable", label, count=3, timeout=DEADLINE)]
    private_redis.start()

    assert result.get(timeout=DEADLINE) == 2
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.95
    stage.wait_no_message()


def test_an_outcome_is_written_when_the_store_is_back(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """It comes back after the lease is over, with a second copy of the message around: the body does not run again."""
    result = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    with redis.Redis.from_url(stage.broker) as broker:
        (message,) = broker.lrange("celery", 0, -1)
        workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)
        stage.wait_entries(label, 1)
        private_redis.stop()
        broker.rpush("celery", message)
    stage.open(label)
    stage.wait_entries(label, 2)
    # The pauses double from 0.1 s, each drawn from its upper half: the seventh begins 3.15 s after the first at least.
    wait_until(lambda: len(refused(stage, label, "complete")) >= 7, DEADLINE, "the lease over")
    assert refused(stage, label, "claim")
    assert not result.ready()
    private_redis.start()

    assert result.get(timeout=DEADLINE) == "kept"
    stage.wait_event("replayed_outcome", label, timeout=DEADLINE)
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert len(stage.events("done", label)) == 1


def refused(stage: Stage, label: str, verb: str) -> list[Entry]:
    """Return the calls of one verb that found no store."""
    return [event for event in stage.events("store_unavailable", label) if event["verb"] == verb]


def test_an_outage_ends_nobody_s_lease(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """The store was away for longer than a lease. Who claims first when it is back waits: the holder may still run."""
    worker = workers.start(APP, env=stage.environment(), arguments=QUICK)
    result = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    stage.wait_entries(label, 1)
    private_redis.stop()
    wait_until(lambda: len(stage.events("renew_failed")) > LEASE + 1, DEADLINE, "no renewal for longer than a lease")
    worker.freeze()
    private_redis.start()
    claim = runtime_of(app).store.claim(
        Job(label, "given"), task_id=label, life=1, token="another", ttl=LEASE, max_deliveries=5, record_ttl=3600
    )
    worker.thaw()
    stage.open(label)

    assert isinstance(claim, Busy)
    assert 0 < claim.expires_in <= LEASE
    assert result.get(timeout=DEADLINE) == "kept"
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]


# --- on the other pools, and on RabbitMQ


@pytest.fixture(scope="module")
def module_store() -> Iterator[RedisServer]:
    """A Redis for the store of a module's workers, which their tests stop and start."""
    with servers.start_redis() as server:
        yield server


@pytest.fixture(scope="module")
def started_without(
    module_redis: RedisServer,
    module_store: RedisServer,
    rabbitmq_server: Server,
    module_workers: Workers,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Stage]:
    """The stage of each of the other places, where one worker has a queue by its name; its store was away when it started."""
    on_redis = dataclasses.replace(
        Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("pools"), first=3), store=module_store.url
    )
    on_rabbitmq = dataclasses.replace(on_redis, broker=rabbitmq_server.url)
    stages = {place: on_rabbitmq if "rabbitmq" in place else on_redis for place in OTHER_PLACES}
    module_store.stop()
    started = [
        module_workers.start(
            HASTY,
            pool=place.removesuffix("-rabbitmq"),
            name=place,
            queues=[place],
            env=stage.environment(),
            arguments=QUICK,
            ready=False,
        )
        for place, stage in stages.items()
    ]
    for worker in started:
        worker.wait_ready()
    return stages


@pytest.mark.parametrize("place", OTHER_PLACES)
def test_outages_at_claim_and_outcome_cost_no_run_in_other_places(
    started_without: dict[str, Stage], module_store: RedisServer, label: str, place: str
) -> None:
    """The message waits in no slot until the store is back, then runs; so does the outcome, and there is one of it."""
    stage = started_without[place]
    module_store.stop()
    with Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False) as bare:
        result = bare.send_task("held", (label, label, "kept"), task_id=label, queue=place)
        wait_until(lambda: refused(stage, label, "claim"), DEADLINE, "a claim that found no store")
        assert stage.entries(label) == []
        module_store.start()
        stage.wait_entries(label, 1, timeout=DEADLINE)
        module_store.stop()
        stage.open(label)
        wait_until(lambda: len(refused(stage, label, "complete")) > 1, DEADLINE, "an outcome that found no store")
        assert not result.ready()
        module_store.start()

        assert result.get(timeout=DEADLINE) == "kept"
        bare.backend.result_consumer.subscribed_to.clear()
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    (claim,) = stage.events("claimed", label)
    assert [claim["attempt"], claim["delivery"]] == [1, 1]
    assert len(stage.events("done", label)) == 1


# --- submitting


def test_a_submission_without_a_store_is_refused(
    app: Celery, stage: Stage, private_redis: RedisServer, label: str
) -> None:
    """`StoreUnavailable`, and nothing is published: with a key and without."""
    private_redis.stop()
    for task, args in (("add", (1, label)), ("order", (label, label))):
        with pytest.raises(StoreUnavailable):
            app.tasks[task].apply_async(args)

    assert stage.messages() == (0, 0)


def test_a_full_store_refuses_submissions_and_lets_tasks_finish(
    app: Celery, stage: Stage, private_redis: RedisServer, workers: Workers, label: str
) -> None:
    """At maxmemory: `QueueFull`, nothing published; the running task, its retry and its letter are written."""
    workers.start(APP, concurrency=3, env=stage.environment(), arguments=QUICK)
    failing_task = app.tasks["held_then_failing"]
    running = app.tasks["held"].apply_async((label, label, "kept"), task_id=label)
    retrying = failing_task.apply_async((label, label), {"fails": 1}, task_id=f"{label}-again")
    failing = failing_task.apply_async((label, label), task_id=f"{label}-failing")
    stage.wait_entries(label, 3)
    private_redis.command("CONFIG", "SET", "maxmemory", "1")

    for task, args in (("add", (1, label)), ("order", (label, label))):
        with pytest.raises(QueueFull, match="memory limit"):
            app.tasks[task].apply_async(args, queue="elsewhere")
    assert stage.messages("elsewhere") == (0, 3)  # the three that run

    stage.open(label)
    assert running.get(timeout=DEADLINE) == "kept"
    assert retrying.get(timeout=DEADLINE) == 2
    with pytest.raises(LookupError, match="mistake"):
        failing.get(timeout=DEADLINE)
    assert stage.events("buried", f"{label}-failing")
