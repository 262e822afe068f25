"""Jobs that must not overlap, in real workers: each policy, a killed and a frozen holder, a skipped member of a chord."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from celery import chain, chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_reliable.runtime import runtime_of
from celery_reliable.slots.skips import SHELF, by_entry
from tests.integration.apps.jobs import LEASE, QUICK, RESTORING, client
from tests.integration.apps.overlap_jobs import add_tasks
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from celery.result import AsyncResult

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.overlap_jobs"
DEADLINE = 30.0


@pytest.fixture(scope="module")
def stage(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A broker that gives the messages of a silent worker away soon."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=RESTORING)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage, with the tasks that must not overlap."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """A worker with room for all at once."""
    return module_workers.start(APP, concurrency=6, env=stage.environment(), arguments=QUICK)


def begin(workers: Workers, stage: Stage, queue: str, *, pool: str, concurrency: int = 2) -> Worker:
    """Start a worker for one queue, and do not wait for it."""
    arguments = (*QUICK, "-Q", queue)
    return workers.start(
        APP, pool=pool, concurrency=concurrency, env=stage.environment(), arguments=arguments, ready=False
    )


def send(app: Celery, policy: str, label: str, name: str, *, queue: str | None = None, fails: int = 0) -> AsyncResult:
    """Submit one job past the look at submission, as a queue that filled before would have it."""
    signature = app.tasks[f"alone_{policy}"].s(label, name, fails).set(task_id=f"{label}-{name}", queue=queue)
    return signature.apply_async(link=app.tasks["add"].si(1, f"{label}:link-{name}"))


def steps(stage: Stage, label: str) -> list[str]:
    """Return what the jobs did, in order."""
    return [f"{entry['name']} {entry['step']}" for entry in stage.entries(label)]


def skipped(stage: Stage, *results: AsyncResult, timeout: float = DEADLINE) -> list[str]:
    """Return why jobs were skipped, once all were."""
    return [stage.wait_event("skipped", result.id, timeout=timeout)[0]["reason"] for result in results]


@pytest.mark.usefixtures("worker")
def test_forbid_runs_one_of_five(app: Celery, stage: Stage, label: str) -> None:
    """The others are skipped with the reason, and what was linked to them is not sent; later another one runs."""
    first = send(app, "forbid", label, "a")
    stage.wait_entries(label, 1)
    others = [send(app, "forbid", label, name) for name in "bcde"]

    assert skipped(stage, *others) == [f"task {first.id} runs"] * 4
    for other in others:
        with pytest.raises(TaskRevokedError, match=f"skipped: task {first.id} runs"):
            other.get(timeout=DEADLINE)
    stage.open(f"{label}:a")
    assert first.get(timeout=DEADLINE) == "a"
    stage.open(f"{label}:f")
    assert send(app, "forbid", label, "f").get(timeout=DEADLINE) == "f"
    stage.wait_entries(f"{label}:link-f", 1)
    assert steps(stage, label) == ["a start", "a end", "f start", "f end"]
    assert [stage.entries(f"{label}:link-{name}") for name in "bcde"] == [[]] * 4
    stage.wait_no_message()


@pytest.mark.usefixtures("worker")
def test_queue_lets_one_of_five_wait(app: Celery, stage: Stage, label: str) -> None:
    """In no slot, with at most one claim a second; it runs when the first has ended."""
    first = send(app, "queue", label, "a")
    stage.wait_entries(label, 1)
    second = send(app, "queue", label, "b")
    stage.wait_event("overlap_waits", second.id)
    others = [send(app, "queue", label, name) for name in "cde"]

    assert skipped(stage, *others) == [f"task {second.id} waits already"] * 3
    times = [event["at"] for event in stage.wait_event("overlap_waits", second.id, count=4)]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.95
    assert app.tasks["add"].delay(1, f"{label}:other").get(timeout=DEADLINE) == 2
    stage.open(f"{label}:b")
    stage.open(f"{label}:a")
    assert [first.get(timeout=DEADLINE), second.get(timeout=DEADLINE)] == ["a", "b"]
    assert steps(stage, label) == ["a start", "a end", "b start", "b end"]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("fails", [0, 1])
def test_replace_stops_the_running_one_and_runs_the_newest(app: Celery, stage: Stage, label: str, fails: int) -> None:
    """The one that runs sees `self.draining` and ends as skipped, also by an error that would be tried again.

    Those between are skipped, too.
    """
    stage.open(f"{label}:deaf")  # else it may have stopped, and the next one begun, before the newest comes
    first = send(app, "replace", label, "a", fails=fails)
    stage.wait_entries(label, 1)
    between = send(app, "replace", label, "b")
    stage.wait_event("overlap_waits", between.id)
    newest = send(app, "replace", label, "c")
    stage.wait_event("overlap_waits", newest.id)
    stage.take(f"{label}:deaf")

    assert skipped(stage, first) == ["a newer one replaces it"]
    assert skipped(stage, between) == ["a newer one took its place"]
    stage.open(f"{label}:c")
    assert newest.get(timeout=DEADLINE) == "c"
    assert steps(stage, label) == ["a start", "a stopped", "c start", "c end"]
    assert stage.events("interrupted", first.id) == stage.events("retried", first.id) == []
    with pytest.raises(TaskRevokedError, match="a newer one replaces it"):
        first.get(timeout=DEADLINE)


@pytest.mark.usefixtures("worker")
def test_headers_of_a_call_win_over_its_task(app: Celery, stage: Stage, label: str) -> None:
    """As an entry of beat has them: renewed beyond a lease, asked to stop, skipped and known to the entry."""
    slot = "2026-06-01T12:00:00+00:00"

    def start(name: str, policy: str) -> AsyncResult:
        headers = {"reliable_overlap": policy, "reliable_overlap_key": f"entry-{label}"}
        beat = {"reliable_entry": label, "reliable_slot": slot}
        call = app.tasks["alone_allow"].s(label, name).set(task_id=f"{label}-{name}", headers={**headers, **beat})
        return call.apply_async(link=app.tasks["add"].si(1, f"{label}:link-{name}"))

    first = start("a", "forbid")
    (began,) = stage.wait_entries(label, 1)
    wait_until(lambda: time.monotonic() - began["at"] > LEASE + 1.5, DEADLINE, "the end of a lease")
    other = start("b", "forbid")
    assert skipped(stage, other) == [f"task {first.id} runs"]
    newest = start("c", "replace")
    assert skipped(stage, first) == ["a newer one replaces it"]
    stage.open(f"{label}:c")
    assert newest.get(timeout=DEADLINE) == "c"
    assert steps(stage, label) == ["a start", "a stopped", "c start", "c end"]
    (known,) = by_entry(runtime_of(app).store.notes.read(SHELF, [label]))[label]
    assert known.outcome == "overlap: a newer one replaces it"


@pytest.mark.usefixtures("worker")
def test_a_retry_keeps_the_right(app: Celery, stage: Stage, label: str) -> None:
    """A job between two attempts has not ended: another one is skipped in the gap, also when that is longer than a lease."""
    first = send(app, "forbid", label, "a", fails=1)
    stage.wait_entries(label, 1)
    stage.open(f"{label}:a")
    (retried,) = stage.wait_event("retried", first.id)
    wait_until(lambda: time.monotonic() - retried["at"] > LEASE + 0.5, DEADLINE, "the end of a lease")
    other = send(app, "forbid", label, "b")
    assert first.get(timeout=DEADLINE) == "a"
    assert skipped(stage, other) == [f"task {first.id} runs"]
    assert steps(stage, label) == ["a start", "a end", "a start", "a end"]


@pytest.mark.usefixtures("worker")
def test_skipped_members_of_a_chord_and_a_chain_are_told(app: Celery, stage: Stage, label: str) -> None:
    """The body of the chord fails at once instead of waiting for ever, and so does the last step of the chain."""
    first = send(app, "forbid", label, "a")
    stage.wait_entries(label, 1)
    alone, add = app.tasks["alone_forbid"], app.tasks["add"]
    body = chord([add.s(1, f"{label}:x"), alone.s(label, "b")])(app.tasks["gather"].s(f"{label}:body"))
    last = chain(alone.s(label, "c"), add.si(1, f"{label}:next"), add.si(2, f"{label}:last")).apply_async()
    failing = alone.apply_async((label, "d"), link_error=app.tasks["told"].s(), task_id=f"{label}-d")

    with pytest.raises(ChordError, match="TaskRevokedError"):
        app.AsyncResult(body.id).get(timeout=DEADLINE)
    with pytest.raises(TaskRevokedError, match="skipped"):
        app.AsyncResult(last.id).get(timeout=DEADLINE)
    stage.wait_entries(f"told:{failing.id}", 1)
    assert stage.entries(f"{label}:body") == stage.entries(f"{label}:next") == []
    stage.open(f"{label}:a")
    assert first.get(timeout=DEADLINE) == "a"
    stage.wait_no_message()
    assert [key for key, _ in runtime_of(app).store.ledger() if label in key] == []


@pytest.mark.usefixtures("worker")
def test_a_killed_holder_frees_the_right_and_goes_on_after(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """SIGKILL to the whole worker, on threads: the next job runs once the lease is over, the killed one after it."""
    killed = begin(workers, stage, label, pool="threads")
    first = send(app, "queue", label, "a", queue=label)
    stage.wait_entries(label, 1)
    killed.kill()
    second = send(app, "queue", label, "b")
    stage.wait_entries(label, 2, timeout=DEADLINE)
    app.control.add_consumer(label, reply=True, timeout=DEADLINE, limit=1)
    stage.wait_event("overlap_waits", first.id, timeout=DEADLINE)
    stage.open(f"{label}:b")
    stage.open(f"{label}:a")

    assert [first.get(timeout=DEADLINE), second.get(timeout=DEADLINE)] == ["a", "b"]
    assert steps(stage, label) == ["a start", "b start", "b end", "a start", "a end"]
    waits = stage.events("overlap_waits", second.id)
    assert stage.entries(label)[1]["at"] - waits[0]["at"] < 3 * LEASE


@pytest.mark.usefixtures("worker")
def test_a_holder_frozen_beyond_its_lease_is_asked_to_stop(
    app: Celery, stage: Stage, workers: Workers, label: str
) -> None:
    """Another job took the right meanwhile: it is not run beside it any longer than its next look at `self.draining`.

    It gives its message back, spends nothing, and runs again after the other one.
    """
    frozen = begin(workers, stage, label, pool="prefork")
    first = send(app, "queue", label, "a", queue=label)
    stage.wait_entries(label, 1)
    frozen.freeze()
    second = send(app, "queue", label, "b")
    stage.wait_entries(label, 2, timeout=DEADLINE)
    frozen.thaw()
    stage.wait_event("overlap_lost", first.id, timeout=DEADLINE)
    stage.wait_event("overlap_waits", first.id, timeout=DEADLINE)
    assert steps(stage, label) == ["a start", "b start", "a stopped"]
    stage.open(f"{label}:b")
    stage.open(f"{label}:a")

    assert [first.get(timeout=DEADLINE), second.get(timeout=DEADLINE)] == ["a", "b"]
    assert steps(stage, label)[3:] == ["b end", "a start", "a end"]
    assert [claim["attempt"] for claim in stage.events("claimed", first.id)] == [1, 1]
