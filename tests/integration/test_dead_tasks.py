"""Tasks that take their process with them, or try to."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from celery_reliable import Permanent
from celery_reliable.testing.processes import send
from tests.integration.apps.jobs import LEASE, QUICK, RESTORING, client, letter
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery
    from celery.result import AsyncResult

    from celery_reliable.testing.servers import RedisServer, Server
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 20.0
MEGABYTE = 2**20


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """One pool child."""
    return module_workers.start(APP, env=stage.environment(), arguments=QUICK)


def test_a_killed_task_runs_again_at_once(app: Celery, stage: Stage, label: str) -> None:
    """The lease of the dead process is freed: nobody waits for its end. The attempt is the same, the delivery the next."""
    result = app.tasks["suicidal"].apply_async((label, 1), task_id=label)

    assert result.get(timeout=DEADLINE) == 1
    first, second = stage.entries(label)
    assert second["at"] - first["at"] < LEASE
    assert stage.events("busy", label) == []
    claims = [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)]
    assert claims == [(1, 1), (1, 2)]
    assert stage.events("evidence", label)[0]["cause"] == "worker_lost"


def test_every_lost_child_is_noticed_soon(app: Celery, stage: Stage, label: str) -> None:
    """Celery alone misses one in a few for up to five seconds: the kernel closes its pipe before it reports the death."""
    for number in range(6):
        task_id = f"{label}-{number}"
        app.tasks["suicidal"].apply_async((task_id, 1), task_id=task_id).get(timeout=DEADLINE)
        first, second = stage.entries(task_id)
        assert second["at"] - first["at"] < 2.0


def test_a_message_given_back_is_the_next_one(app: Celery, stage: Stage, label: str) -> None:
    """It goes to the near end of its queue, before the backlog."""
    app.tasks["held"].delay(f"{label}:first", label)
    stage.wait_entries(f"{label}:first", 1)
    app.tasks["suicidal"].delay(label, 1)
    backlog = [app.tasks["add"].delay(number, label) for number in range(3)]
    stage.open(label)

    assert [result.get(timeout=DEADLINE) for result in backlog] == [1, 2, 3]
    assert [entry["task"] for entry in stage.entries(label)] == ["suicidal", "suicidal", "add", "add", "add"]


def test_a_task_that_always_dies_is_poison(app: Celery, stage: Stage, label: str) -> None:
    """After ``max_deliveries`` it is not run again: a letter with the evidence, a failure told once."""
    told = app.tasks["told"].s()
    result = app.tasks["suicidal"].apply_async((label, 99), task_id=label, link_error=told)

    with pytest.raises(Permanent, match=r"claimed 2 times without a verdict.*signal 9"):
        result.get(timeout=DEADLINE)
    kept = letter(app, stage, label)
    assert [kept.reason, kept.attempts, kept.deliveries] == ["poison", 0, 2]
    assert [json.loads(one)["signal"] for one in kept.evidence] == [9, 9]
    assert all("rss" in json.loads(one) for one in kept.evidence)
    assert len(stage.entries(label)) == 2
    assert len(stage.wait_entries(f"told:{label}", 1)) == 1


def test_a_task_killed_by_its_hard_time_limit_is_buried_as_such(app: Celery, stage: Stage, label: str) -> None:
    """Two deliveries end at the limit of a second; the letter's reason is ``time_limit``."""
    result = app.tasks["endless"].apply_async((label,), task_id=label)

    with pytest.raises(Permanent, match="hard time limit"):
        result.get(timeout=DEADLINE)
    kept = letter(app, stage, label)
    assert [kept.reason, kept.deliveries] == ["time_limit", 2]
    assert min(json.loads(one)["rss"] for one in kept.evidence) > MEGABYTE
    assert {json.loads(one)["cause"] for one in kept.evidence} == {"time_limit"}
    assert len(stage.entries(label)) == 2
    assert len(stage.entries(f"failure:{label}")) <= 1


def test_a_signal_that_the_worker_did_not_send_ends_no_task(app: Celery, stage: Stage, label: str) -> None:
    """SIGTERM to a pool child, as a supervisor sends it to a whole group: only its own worker ends a child."""
    result = app.tasks["held"].apply_async((label, label, "done"), task_id=label)
    (first,) = stage.wait_entries(label, 1)
    send(first["pid"], signal.SIGTERM)
    stage.open(label)

    assert result.get(timeout=DEADLINE) == "done"
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert stage.events("buried", label) == []


def test_a_terminated_task_is_revoked_and_no_letter(app: Celery, stage: Stage, label: str) -> None:
    """``revoke(terminate=True)`` ends the process by SystemExit in the body: that is not the task's failure."""
    result = app.tasks["held"].apply_async((label, f"{label}:never"), task_id=label)
    stage.wait_entries(label, 1)
    app.control.revoke(label, terminate=True)

    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)
    assert app.tasks["add"].delay(1, f"{label}:next").get(timeout=DEADLINE) == 2
    stage.wait_no_message()
    assert [entry["step"] for entry in stage.entries(label)] == ["start"]
    assert [stage.events("buried", label), stage.events("retried", label)] == [[], []]


@pytest.fixture
def elsewhere(
    module_redis: RedisServer, rabbitmq_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Stage:
    """A stage on the broker that is asked for, with a queue of its own."""
    stage = Stage.on(
        module_redis.url, directory=tmp_path, first=6, conf={"task_default_queue": tmp_path.name, **RESTORING}
    )
    if request.param == "redis":
        return stage
    return dataclasses.replace(stage, broker=rabbitmq_server.url, conf={"task_default_queue": tmp_path.name})


@pytest.mark.parametrize("elsewhere", ["redis", "rabbitmq"], indirect=True)
def test_a_task_of_a_lost_machine_runs_elsewhere(elsewhere: Stage, workers: Workers, label: str) -> None:
    """Main process and child killed in the body: the message comes back, the lease ends, another worker runs it."""
    stage = elsewhere
    first = workers.start(APP, env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        result = app.tasks["held"].apply_async((label, label, "done"), task_id=label)
        stage.wait_entries(label, 1)
        first.kill()
        workers.start(APP, env=stage.environment(), arguments=QUICK)
        stage.open(label)

        assert result.get(timeout=2 * DEADLINE) == "done"
        assert [entry["step"] for entry in stage.entries(label)] == ["start", "start", "end"]
        claims = [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)]
        assert claims == [(1, 1), (1, 2)]


@pytest.mark.parametrize("elsewhere", ["rabbitmq"], indirect=True)
def test_deaths_are_counted_on_rabbitmq_too(elsewhere: Stage, workers: Workers, label: str) -> None:
    """A child that is killed each time, and one that meets its hard time limit each time: the letters say which."""
    workers.start(APP, concurrency=2, env=elsewhere.environment(), arguments=QUICK)
    with client(elsewhere) as app:
        tasks = {"poison": app.tasks["suicidal"].s(label, 99), "time_limit": app.tasks["endless"].s(f"{label}:endless")}
        results = {reason: task.apply_async(task_id=f"{label}:{reason}") for reason, task in tasks.items()}
        for reason, result in results.items():
            with pytest.raises(Permanent):
                result.get(timeout=DEADLINE)
            assert (letter(app, elsewhere, result.id).reason, letter(app, elsewhere, result.id).deliveries) == (
                reason,
                2,
            )


@pytest.mark.parametrize("elsewhere", ["rabbitmq"], indirect=True)
def test_a_revoked_job_whose_holder_died_frees_its_key(elsewhere: Stage, workers: Workers, label: str) -> None:
    """Its message comes back to a worker that discards it by Celery's list of revokes; the key's next job runs there."""
    stage, key = elsewhere, f"key:{label}"
    running = [workers.start(APP, env=stage.environment(), arguments=QUICK) for _ in range(2)]
    with client(stage) as app:
        first = app.tasks["held"].apply_async((label, label, "done"), task_id=label, idempotency_key=key)
        (start,) = stage.wait_entries(label, 1)
        [holder] = [one for one in running if start["pid"] in one.children]
        app.control.revoke(label)
        for one in running:
            one.wait_log("Tasks flagged as revoked")
        holder.kill()
        with pytest.raises(TaskRevokedError):  # told by Celery's remote control, before the message has met the revoke
            first.get(timeout=2 * DEADLINE)

        def submit() -> AsyncResult[str] | None:
            result = app.tasks["held"].apply_async((label, label, "done"), idempotency_key=key)
            return result if result.id != label else None

        again = wait_until(submit, DEADLINE, "the key free")
        assert again is not None
        stage.open(label)
        assert again.get(timeout=DEADLINE) == "done"
