"""A long task goes on where it stopped: after a kill, a drain, a freeze; and what it keeps aside is verified."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_reliable.errors import BlobLost, Permanent
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.blob_sweep import sweep
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.long_jobs import LARGE, add_tasks
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer, Server
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.long_jobs"
DEADLINE = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where blobs go."""
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def stage(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Stage:
    """A broker that gives the messages of a silent worker away soon, and a folder for blobs."""
    conf = {**RESTORING, "reliable_blob_url": f"file://{folder}", "reliable_claim_check_threshold": LARGE // 2}
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=conf)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage, with the long tasks."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """A worker for tests that end none."""
    return module_workers.start(APP, env=stage.environment(), arguments=(*QUICK, "-Q", "steady"))


def items(stage: Stage, label: str) -> list[int]:
    """Return the items that were begun, in order."""
    return [entry["item"] for entry in stage.entries(label) if entry["step"] == "item"]


def blobs_in(folder: Path) -> list[Path]:
    """Return all blobs."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("worker")
def test_a_killed_child_goes_on_after_the_last_saved_item(app: Celery, stage: Stage, label: str) -> None:
    """Killed in the middle of items 12 and 16, saved after each five: what follows the fifth is done again, no other is.

    A run that went on sets the deliveries back: a long task may be killed more often than ``max_deliveries``.
    """
    stage.plan("item", f"{label}:12", "kill")
    stage.plan("item", f"{label}:16", "kill")
    result = app.tasks["walk"].apply_async((label, 18, 5), task_id=label, queue="steady")

    assert result.get(timeout=DEADLINE) == 1
    assert items(stage, label) == [*range(13), *range(10, 17), *range(15, 18)]
    assert [claim["delivery"] for claim in stage.events("claimed", label)] == [1, 2, 2]


@pytest.mark.usefixtures("worker")
def test_a_step_is_taken_once_although_its_task_is_killed(app: Celery, stage: Stage, label: str) -> None:
    """Killed between two steps: the next run has the first one's result, and takes the second."""
    stage.plan("between", label, "kill")
    result = app.tasks["stepped"].apply_async((label,), task_id=label, queue="steady")

    first, second = result.get(timeout=DEADLINE)
    starts = [entry["fence"] for entry in stage.entries(label) if entry["step"] == "start"]
    assert [first, second] == [f"first of {starts[0]}", f"second of {starts[1]}"]
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "first", "start", "second"]


@pytest.mark.usefixtures("worker")
def test_a_retry_goes_on_with_the_item_that_failed(app: Celery, stage: Stage, label: str) -> None:
    """What was finished is saved when the body raises, however seldom the loop saves by itself."""
    result = app.tasks["walk"].apply_async((label, 7, 100, 4), task_id=label, queue="steady")

    assert result.get(timeout=DEADLINE) == 2
    assert items(stage, label) == [0, 1, 2, 3, 4, 4, 5, 6]


def test_a_killed_and_a_drained_worker_hand_over_on_threads(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """The whole worker is gone in item 3; the next one is told to stop in item 5. Saved after each item."""
    stage.plan("item", f"{label}:3", "kill")
    stage.plan("item", f"{label}:5", "block")
    result = app.tasks["walk"].apply_async((label, 8), task_id=label, queue=label)
    assert begin(workers, stage, label, pool="threads").wait(timeout=DEADLINE) != 0
    second = begin(workers, stage, label, pool="threads")
    with stage.blocked("item", f"{label}:5"):
        begin(workers, stage, label, pool="threads")
        drain(second)

    assert result.get(timeout=DEADLINE) == 1
    assert second.wait(timeout=DEADLINE) == 0
    assert items(stage, label) == [0, 1, 2, 3, 3, 4, 5, 6, 7]
    assert len(stage.events("interrupted", label)) == 1


@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_a_drained_worker_hands_over_between_two_items(
    app: Celery, stage: Stage, workers: Workers, label: str, pool: str
) -> None:
    """SIGTERM in the middle of item 4 of a loop that saves after each hundred: nothing is done twice, nothing is spent."""
    stage.plan("item", f"{label}:4", "block")
    draining = begin(workers, stage, label, pool=pool)
    result = app.tasks["walk"].apply_async((label, 8, 100), task_id=label, queue=label)
    with stage.blocked("item", f"{label}:4"):
        begin(workers, stage, label, pool=pool)
        drain(draining)

    assert result.get(timeout=DEADLINE) == 1
    assert draining.wait(timeout=DEADLINE) == 0
    assert items(stage, label) == list(range(8))
    assert len(stage.events("interrupted", label)) == 1
    assert [claim["delivery"] for claim in stage.events("claimed", label)] == [1, 1]


def begin(workers: Workers, stage: Stage, queue: str, *, pool: str = "prefork") -> Worker:
    """Start a worker for one queue, and do not wait for it."""
    return workers.start(APP, pool=pool, env=stage.environment(), arguments=(*QUICK, "-Q", queue), ready=False)


def drain(worker: Worker) -> None:
    """Tell a worker to stop, and return when it knows."""
    worker.terminate()
    worker.wait_log("Warm shutdown")


def test_a_holder_frozen_beyond_its_lease_saves_nothing(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """Another worker took over and ended the job. The thawed one is stopped by its next save."""
    stage.plan("item", f"{label}:3", "block")
    frozen = begin(workers, stage, label)
    result = app.tasks["walk"].apply_async((label, 6), task_id=label, queue=label)
    stage.wait_met("item", f"{label}:3")
    frozen.freeze()
    begin(workers, stage, label)
    assert result.get(timeout=DEADLINE) == 1
    assert items(stage, label) == [0, 1, 2, 3, 3, 4, 5]

    stage.release("item", f"{label}:3")
    frozen.thaw()
    (stale,) = stage.wait_event("stale", label, timeout=DEADLINE)
    assert stale["verb"] == "run"
    assert items(stage, label) == [0, 1, 2, 3, 3, 4, 5]
    assert len(stage.events("done", label)) == 1


@pytest.mark.usefixtures("worker")
def test_a_large_checkpoint_outlives_the_dead_letter_and_goes_with_the_job(
    app: Celery, stage: Stage, folder: Path, label: str
) -> None:
    """Kept aside while the key is dead, found by the next life, removed when that is done."""
    task, options = app.tasks["load_large"], {"idempotency_key": label, "queue": "steady"}
    before = set(blobs_in(folder))
    with pytest.raises(Permanent, match="half done"):
        task.apply_async((label,), **options).get(timeout=DEADLINE)
    (blob,) = set(blobs_in(folder)) - before
    assert sweep(runtime_of(app), token="test") == 0

    assert task.apply_async((label,), **options).get(timeout=DEADLINE) == LARGE
    wait_until(lambda: not blob.exists(), DEADLINE, "the blob removed")
    assert [entry["found"] for entry in stage.entries(label)] == [0, LARGE]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("altered", [True, False])
def test_a_checkpoint_that_is_not_what_was_saved_is_a_dead_letter(
    app: Celery,
    stage: Stage,
    folder: Path,
    label: str,
    altered: bool,  # noqa: FBT001
) -> None:
    """Altered or missing: the task does not begin again in silence."""
    task, options = app.tasks["load_large"], {"idempotency_key": label, "queue": "steady"}
    before = set(blobs_in(folder))
    with pytest.raises(Permanent, match="half done"):
        task.apply_async((label,), **options).get(timeout=DEADLINE)
    (blob,) = set(blobs_in(folder)) - before
    blob.write_bytes(b"something else") if altered else blob.unlink()

    again = task.apply_async((label,), task_id=f"{label}:2", **options)
    with pytest.raises(BlobLost, match="SHA-256" if altered else "found nothing"):
        again.get(timeout=DEADLINE)
    assert [event["reason"] for event in stage.wait_event("buried", label, count=2)] == ["permanent", "permanent"]
    assert len(stage.entries(label)) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_large_result_is_kept_aside_and_given_again(  # noqa: PLR0917  # fixtures
    app: Celery,
    stage: Stage,
    worker: Worker,
    folder: Path,
    label: str,
    kept: bool,  # noqa: FBT001
) -> None:
    """Killed after the outcome was stored: the next delivery reads it from the folder; one that is gone is told."""
    before = set(blobs_in(folder))
    stage.plan("done", label, "kill" if kept else "block")
    result = app.tasks["returning"].apply_async((label, "text", LARGE), task_id=label, queue="steady")
    if kept:
        assert result.get(timeout=DEADLINE) == "x" * LARGE
        assert len(set(blobs_in(folder)) - before) == 1
    else:
        stage.wait_met("done", label)
        (blob,) = set(blobs_in(folder)) - before
        blob.unlink()
        worker.kill_child()
        with pytest.raises(BlobLost):
            result.get(timeout=DEADLINE)
        assert len(stage.events("blob_failed", label)) == 1
    assert len(stage.entries(label)) == 1
    assert stage.events("result_oversized", label) == []


@pytest.mark.usefixtures("worker")
def test_progress_told_by_update_state_is_seen(app: Celery, stage: Stage, label: str) -> None:
    """Celery's own way goes on working beside checkpoints."""
    result = app.tasks["informative"].apply_async((label, label), task_id=label, queue="steady")
    stage.wait_entries(label, 1)
    assert (result.state, result.info) == ("PROGRESS", {"done": 1})
    stage.open(label)
    assert result.get(timeout=DEADLINE) == label


def test_a_long_task_goes_on_on_rabbitmq(stage: Stage, rabbitmq_server: Server, workers: Workers, label: str) -> None:
    """Its child is killed in item 3, its worker drained in item 5; a step is taken once. As on Redis, to which no message goes."""
    stage = dataclasses.replace(stage, broker=rabbitmq_server.url, conf={**stage.conf, "task_default_queue": label})
    for item, action in ((3, "kill"), (5, "block")):
        stage.plan("item", f"{label}:{item}", action)
    stage.plan("between", f"{label}:steps", "kill")
    with client(stage) as app:
        add_tasks(app)
        first = begin(workers, stage, label)
        stepped = app.tasks["stepped"].delay(f"{label}:steps")
        assert len(stepped.get(timeout=DEADLINE)) == 2
        result = app.tasks["walk"].apply_async((label, 8, 1), task_id=label)
        with stage.blocked("item", f"{label}:5"):
            begin(workers, stage, label)
            drain(first)

        assert result.get(timeout=DEADLINE) == 1
    assert first.wait(timeout=DEADLINE) == 0
    assert [entry["step"] for entry in stage.entries(f"{label}:steps")] == ["start", "first", "start", "second"]
    assert items(stage, label) == [0, 1, 2, 3, 3, 4, 5, 6, 7]
    assert [claim["delivery"] for claim in stage.events("claimed", label)] == [1, 2, 1]
