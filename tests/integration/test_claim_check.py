"""Large arguments through real brokers and workers: messages stay small, nothing is lost, and the folder empties."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_reliable import Transient
from celery_reliable.app_letters import letters_of
from celery_reliable.errors import BlobLost
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from tests.integration.apps.heavy import add_heavy
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 30.0
LARGE = 300_000
DOCUMENT = "d" * LARGE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where blobs go."""
    return tmp_path_factory.mktemp("blobs") / "folder"


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stage(
    request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Stage:
    """A stage with a queue of its own, and a folder for blobs."""
    module_redis.flush()
    conf = {"task_default_queue": f"heavy-{uuid.uuid4().hex}", "reliable_blob_url": f"file://{folder}"}
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=conf)
    if request.param == "rabbitmq":
        return dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    return stage


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app to submit with."""
    with client(stage) as app:
        yield add_heavy(app)


@pytest.fixture
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """The worker of all tests; started by the first that needs one."""
    running = [one for one in module_workers._started if one.running and one.name == stage.directory.name]
    return running[0] if running else start(module_workers, stage)


def start(workers: Workers, stage: Stage) -> Worker:
    """Start a worker."""
    app, name = "tests.integration.apps.heavy", stage.directory.name
    return workers.start(app, concurrency=2, env=stage.environment(), arguments=QUICK, name=name)


def blobs_in(folder: Path) -> list[Path]:
    """Return the files of blobs."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sizes_of_messages(app: Celery, queue: str, count: int) -> list[int]:
    """Return how large the next messages of a queue are; all go back."""
    with app.connection_for_read() as connection:
        bound = app.amqp.queues[queue](connection.default_channel)
        bound.declare()
        found: list[Any] = []
        wait_until(lambda: len(found) == count or _take(bound, found), DEADLINE, f"{count} messages")
        parts = [(one.body, one.headers, one.properties) for one in found]
        for message in found:
            message.reject(requeue=True)
    return [len(body) + len(json.dumps([headers, properties], default=str)) for body, headers, properties in parts]


def _take(queue: Any, found: list[Any]) -> bool:
    message = queue.get()
    if message is not None:
        found.append(message)
    return False


def test_every_way_a_large_argument_goes(  # fixtures
    app: Celery, stage: Stage, module_workers: Workers, folder: Path, label: str
) -> None:
    """Plain, retried, through chain, group, chord and callback: small messages and ledger entries, right sizes, no blob left."""
    before = set(blobs_in(folder))
    weigh, total = app.tasks["weigh"], app.tasks["total"]
    plain = weigh.delay(DOCUMENT, label)
    retried = weigh.delay(document=DOCUMENT, label=label, fail="once")
    chained = chain(weigh.s(DOCUMENT, label), total.s(DOCUMENT, label), total.s(DOCUMENT, label)).apply_async()
    grouped = group(weigh.s(DOCUMENT, label) for _ in range(2)).apply_async()
    counted = chord(group(weigh.s(DOCUMENT, label) for _ in range(2)), total.s(DOCUMENT, label)).apply_async()
    # one blob for each call that is on its way or will be: 2 plain, 3 of the chain, 2 of the group, 2 + 1 of the chord
    assert len(set(blobs_in(folder)) - before) == 10
    sizes = sizes_of_messages(app, stage.conf["task_default_queue"], 7)
    assert max(sizes) < 3000  # a chain carries two more references
    assert sorted(sizes)[-4] < 2048
    assert "ddd" not in str(runtime_of(app).store.inspect(Job(plain.id, "own")))

    start(module_workers, stage)
    assert [one.get(timeout=DEADLINE) for one in (plain, retried, chained, counted)] == [
        LARGE,
        LARGE,
        3 * LARGE,
        3 * LARGE,
    ]
    assert grouped.get(timeout=DEADLINE) == [LARGE, LARGE]
    assert {one["size"] for one in stage.entries(label)} == {LARGE}
    wait_until(lambda: not set(blobs_in(folder)) - before, DEADLINE, "no blob left")


def test_a_killed_child_s_job_finds_its_arguments_again(
    app: Celery, stage: Stage, worker: Worker, folder: Path, label: str
) -> None:
    """The blob lives until the job has ended."""
    stage.plan("weighing", label, "kill")
    result = app.tasks["weigh"].apply_async((DOCUMENT, label), task_id=label)
    assert result.get(timeout=DEADLINE) == LARGE
    assert len(stage.entries(label)) == 2
    assert worker.running
    assert not [path for path in blobs_in(folder) if label in path.read_text()[-200:]]


@pytest.mark.usefixtures("worker")
def test_a_letter_keeps_its_blob_for_the_replay(app: Celery, stage: Stage, folder: Path, label: str) -> None:
    """And the lost ones are told to a chord."""
    before = set(blobs_in(folder))
    app.tasks["weigh"].apply_async((DOCUMENT, label, "gate"), task_id=label)
    kept = letter(app, stage, label)
    assert kept.blobs[0] in {str(path.relative_to(folder)) for path in set(blobs_in(folder)) - before}
    stage.open(label)
    new_id = letters_of(app).replay(kept.id, who="me")
    assert app.AsyncResult(new_id).get(timeout=DEADLINE) == LARGE

    stage.plan("claimed", f"{label}-lost", "block")
    members = [app.tasks["weigh"].s(DOCUMENT, label).set(task_id=f"{label}-lost"), app.tasks["weigh"].s("s", label)]
    known = set(blobs_in(folder))
    counted = chord(group(members), app.tasks["total"].s("", label)).apply_async()
    with stage.blocked("claimed", f"{label}-lost"):
        (blob,) = set(blobs_in(folder)) - known
        blob.unlink()
    with pytest.raises((BlobLost, ChordError), match="found nothing; somebody removed"):
        counted.get(timeout=DEADLINE)
    assert letter(app, stage, f"{label}-lost").reason == "permanent"


@pytest.mark.usefixtures("worker")
def test_fifty_megabytes(app: Celery, stage: Stage, label: str) -> None:
    """In one argument."""
    if not stage.broker.startswith("redis"):
        return  # no broker sees them
    assert app.tasks["weigh"].delay("x" * 50_000_000, label).get(timeout=60.0) == 50_000_000


@pytest.mark.usefixtures("worker")
def test_a_folder_that_is_away(app: Celery, stage: Stage, folder: Path, label: str) -> None:
    """A submission is refused, a run waits; once it is back nothing was lost, and no attempt spent."""
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    result = app.tasks["weigh"].apply_async((DOCUMENT, label), task_id=label, countdown=1.0)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("a file in the folder's place")
    try:
        with pytest.raises(Transient):
            app.tasks["weigh"].delay(DOCUMENT, label)
        stage.wait_event("blob_failed", label)
        assert stage.entries(label) == []
    finally:
        folder.unlink()
        shutil.move(away, folder)
    assert result.get(timeout=DEADLINE) == LARGE
    (entry,) = stage.entries(label)
    assert entry["attempt"] == 1


# --- results


def stored_sizes(app: Celery, *results: Any) -> list[int]:
    """Return how much the backend has of each."""
    return [len(app.backend.get(app.backend.get_key_for_task(result.id))) for result in results]


@pytest.mark.usefixtures("worker")
def test_every_way_a_large_result_goes(app: Celery, folder: Path, label: str) -> None:
    """Alone, to the next step, in a group and to a chord's body: the result; in the backend a reference."""
    grow, measure = app.tasks["grow"], app.tasks["measure"]
    single = grow.delay(LARGE, label)
    chained = chain(grow.s(LARGE, label), measure.s(label)).apply_async()
    grouped = group(grow.s(LARGE, label) for _ in range(2)).apply_async()
    counted = chord(group(grow.s(LARGE + more, label) for more in range(3)), measure.s(label)).apply_async()
    assert single.get(timeout=DEADLINE) == "r" * LARGE
    assert app.AsyncResult(single.id).get(timeout=DEADLINE) == "r" * LARGE
    assert grouped.get(timeout=DEADLINE) == ["r" * LARGE] * 2
    assert chained.get(timeout=DEADLINE) == [LARGE]
    assert counted.get(timeout=DEADLINE) == [LARGE, LARGE + 1, LARGE + 2]
    assert max(stored_sizes(app, single, chained.parent, *grouped.results, *counted.parent.results)) < 2000
    assert len(list(folder.rglob("results/*/*"))) >= 7


@pytest.mark.usefixtures("worker")
def test_a_chord_on_redis_does_not_need_the_folder(app: Celery, stage: Stage, folder: Path, label: str) -> None:
    """Its body may be sent within a few seconds only, so it is given the members' results themselves, nested ones, too."""
    grow, measure = app.tasks["grow"], app.tasks["measure"]
    stage.plan("claimed", f"{label}-last", "block")
    members = [grow.s(LARGE, label).set(task_id=f"{label}-{name}") for name in ("first", "last")]
    pair = group(grow.si(LARGE, label), grow.si(LARGE, label))
    nested = chord([grow.si(LARGE, label), chain(grow.si(1, label), pair)], measure.s(label))
    known = set(blobs_in(folder))
    counted = chord(group(members), measure.s(label)).apply_async()
    with stage.blocked("claimed", f"{label}-last"):
        assert app.AsyncResult(f"{label}-first").get(timeout=DEADLINE) == "r" * LARGE
        (blob,) = set(blobs_in(folder)) - known
        blob.unlink()
    assert counted.get(timeout=DEADLINE) == [LARGE, LARGE]
    with pytest.raises(BlobLost, match="found nothing; somebody removed"):
        app.AsyncResult(f"{label}-first").get(timeout=DEADLINE)
    joined = nested.apply_async()
    assert joined.get(timeout=DEADLINE) == [LARGE, 2]
    assert min(stored_sizes(app, joined.parent.results[0], *joined.parent.results[1].results)) > LARGE


def test_a_chord_without_help_of_its_backend(
    stage: Stage, module_workers: Workers, tmp_path: Path, folder: Path, label: str
) -> None:
    """Celery's own task joins the members, by their results; a lost one fails the chord."""
    if not stage.broker.startswith("redis"):
        return  # nothing here depends on the broker
    (tmp_path / "results").mkdir()
    conf = {**stage.conf, "task_default_queue": label, "result_chord_retry_interval": 0.2}
    other = dataclasses.replace(stage, backend=f"file://{tmp_path}/results", conf=conf)
    module_workers.start("tests.integration.apps.heavy", concurrency=2, env=other.environment(), arguments=QUICK)
    with client(other) as made:
        app = add_heavy(made)
        members = [app.tasks["grow"].s(LARGE, label).set(task_id=f"{label}-{number}") for number in range(2)]
        body = app.tasks["measure"].s(label)
        assert chord(group(members), body).apply_async().get(timeout=DEADLINE) == [LARGE, LARGE]
        stage.plan("claimed", f"{label}-last", "block")
        members[1].set(task_id=f"{label}-last")
        members[0].set(task_id=f"{label}-first")
        known = set(blobs_in(folder))
        counted = chord(group(members), body).apply_async()
        with stage.blocked("claimed", f"{label}-last"):
            assert app.AsyncResult(f"{label}-first").get(timeout=DEADLINE) == "r" * LARGE
            (blob,) = set(blobs_in(folder)) - known
            blob.unlink()
        with pytest.raises(ChordError, match="found nothing; somebody removed"):
            app.AsyncResult(counted.id).get(timeout=DEADLINE)  # without the members, of which Celery asks first
