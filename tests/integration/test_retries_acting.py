"""What becomes of an attempt that failed, seen by the runs that follow."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import redis

from celery_reliable import Permanent, Transient
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.testing.faultproxy import FaultProxy
from tests.integration.apps.jobs import QUICK, RESTORING, client, letter
from tests.integration.apps.stage import Entry, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
DEADLINE = 20.0
# A worker whose publishing connection is down hangs in its own heartbeat event (Celery 5.7); that is not tested here.
QUIET = (*QUICK, "--without-heartbeat")


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children."""
    return module_workers.start(APP, concurrency=2, env=stage.environment(), arguments=QUICK)


def attempts(stage: Stage, label: str) -> list[int]:
    """Return the number of each run's attempt."""
    return [entry["attempt"] for entry in stage.entries(label)]


def pauses(entries: list[Entry]) -> list[float]:
    """Return the seconds between runs."""
    return [later["at"] - earlier["at"] for earlier, later in itertools.pairwise(entries)]


# --- verdicts


def test_a_transient_error_is_tried_again(app: Celery, stage: Stage, label: str) -> None:
    """Each run is the next attempt; in between the result is neither failed nor ready."""
    result = app.tasks["flaky"].apply_async((label, 2), task_id=label)

    assert result.get(timeout=DEADLINE) == 3
    assert attempts(stage, label) == [1, 2, 3]
    assert stage.entries(f"failure:{label}") == []
    assert [entry["retries"] for entry in stage.entries(label)] == [0, 1, 2]


def test_a_server_s_retry_after_is_the_least_wait(app: Celery, stage: Stage, label: str) -> None:
    """The backoff of 0.1 s is added to it."""
    app.tasks["flaky"].apply_async((label, 2, 0.7), task_id=label).get(timeout=DEADLINE)

    assert min(pauses(stage.entries(label))) >= 0.7


def test_a_permanent_error_is_not_tried_again(app: Celery, stage: Stage, label: str) -> None:
    """One run, a letter, and the task's own error as the result."""
    result = app.tasks["hopeless"].apply_async((label,), task_id=label)

    with pytest.raises(Permanent, match="never"):
        result.get(timeout=DEADLINE)
    kept = letter(app, stage, label)
    assert [kept.reason, kept.attempts, kept.error_message] == ["permanent", 1, "never"]
    assert attempts(stage, label) == [1]


def test_a_mistake_in_the_code_is_not_tried_again(app: Celery, stage: Stage, label: str) -> None:
    """Python's own deterministic errors are permanent by the built-in rules."""
    result = app.tasks["broken"].apply_async((label,), task_id=label)

    with pytest.raises(LookupError, match=f"no {label}"):
        result.get(timeout=DEADLINE)
    assert letter(app, stage, label).error_type == "LookupError"
    assert attempts(stage, label) == [1]


def test_a_snooze_spends_no_attempt(app: Celery, stage: Stage, label: str) -> None:
    """With no retries allowed a task may still snooze three times."""
    result = app.tasks["later"].apply_async((label, 3, 0.3), task_id=label)

    assert result.get(timeout=DEADLINE) == 1
    assert attempts(stage, label) == [1, 1, 1, 1]
    assert min(pauses(stage.entries(label))) >= 0.3


def test_a_job_without_attempts_left_is_a_letter(app: Celery, stage: Stage, label: str) -> None:
    """``max_retries=1``: two attempts, then reason ``exhausted``, and FAILURE with the last error, signalled once."""
    result = app.tasks["twice"].apply_async((label, 9), task_id=label)

    with pytest.raises(Transient, match="again"):
        result.get(timeout=DEADLINE)
    kept = letter(app, stage, label)
    assert [kept.reason, kept.attempts, kept.deliveries] == ["exhausted", 2, 1]
    assert attempts(stage, label) == [1, 2]
    assert [entry["error"] for entry in stage.wait_entries(f"failure:{label}", 1)] == ["Transient"]


def test_retries_end_with_the_time_allowed_for_them(app: Celery, stage: Stage, label: str) -> None:
    """``retry_for=1.5``: no attempt starts later than that after the submission, however many are allowed."""
    result = app.tasks["impatient"].apply_async((label, 10_000), task_id=label)

    with pytest.raises(Transient):
        result.get(timeout=DEADLINE)
    runs = stage.entries(label)
    assert letter(app, stage, label).reason == "exhausted"
    assert len(runs) > 1
    (submitted,) = stage.events("submitted", label)
    # A run may begin late by what the message takes from the queue into a slot, never by a backoff more.
    assert runs[-1]["at"] - submitted["at"] < 1.5 + 0.5


# --- Celery's own ways to ask


def test_self_retry_obeys_the_same_counts(app: Celery, stage: Stage, label: str) -> None:
    """``self.retry(countdown=)`` waits as it says, attempts go on counting, and nothing fails in between."""
    result = app.tasks["asking"].apply_async((label, 2), {"countdown": 0.4}, task_id=label)

    assert result.get(timeout=DEADLINE) == 3
    assert attempts(stage, label) == [1, 2, 3]
    assert min(pauses(stage.entries(label))) >= 0.4


def test_self_retry_s_own_limit_counts(app: Celery, stage: Stage, label: str) -> None:
    """``self.retry(max_retries=1)``: two attempts, then the error that was given to it."""
    result = app.tasks["asking"].apply_async((label, 9), {"max_retries": 1}, task_id=label)

    with pytest.raises(LookupError, match="not yet"):
        result.get(timeout=DEADLINE)
    assert letter(app, stage, label).reason == "exhausted"
    assert attempts(stage, label) == [1, 2]


def test_self_retry_may_change_the_arguments(app: Celery, stage: Stage, label: str) -> None:
    """The next attempt gets them."""
    changed = {"args": (f"{label}:changed", 1), "countdown": 0.0}
    result = app.tasks["asking"].apply_async((label, 1), changed, task_id=label)

    assert result.get(timeout=DEADLINE) == 2
    assert [attempts(stage, label), attempts(stage, f"{label}:changed")] == [[1], [2]]


def test_autoretry_for_obeys_the_same_counts(app: Celery, stage: Stage, label: str) -> None:
    """``autoretry_for`` with ``max_retries`` 2 in ``retry_kwargs``: three attempts."""
    result = app.tasks["auto"].apply_async((label, 9), task_id=label)

    with pytest.raises(ZeroDivisionError):
        result.get(timeout=DEADLINE)
    assert attempts(stage, label) == [1, 2, 3]
    assert letter(app, stage, label).reason == "exhausted"


# --- a server that is busy


class BusyServer(BaseHTTPRequestHandler):
    """Answers 503 with a Retry-After of one second until it was asked three times, then 200; ``/gone`` is 404."""

    asked = 0

    def do_GET(self) -> None:
        """Answer."""
        type(self).asked += 1
        if self.path == "/gone":
            self._answer(404)
        elif type(self).asked < 3:
            self._answer(503, ("Retry-After", "1"))
        else:
            self._answer(200)

    def _answer(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"ready")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def busy_server() -> Iterator[str]:
    """The URL of a fresh one."""
    handler = type("Fresh", (BusyServer,), {"asked": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_busy_server_is_asked_again_when_it_said(app: Celery, stage: Stage, label: str, busy_server: str) -> None:
    """503 with Retry-After, as raised by requests: two retries, each after a second at least."""
    result = app.tasks["fetch"].apply_async((label, busy_server), task_id=label)

    assert result.get(timeout=DEADLINE) == "ready"
    assert min(pauses(stage.entries(label))) >= 1.0
    assert attempts(stage, label) == [1, 2, 3]


def test_a_page_that_does_not_exist_is_not_asked_for_again(
    app: Celery, stage: Stage, label: str, busy_server: str
) -> None:
    """404 is permanent."""
    result = app.tasks["fetch"].apply_async((label, f"{busy_server}/gone"), task_id=label)

    with pytest.raises(Exception, match="404"):
        result.get(timeout=DEADLINE)
    assert attempts(stage, label) == [1]


# --- crashes in between


def test_attempts_outlive_a_killed_process(app: Celery, stage: Stage, label: str) -> None:
    """The first attempt failed, the second was killed: the third run is attempt 2 again, its second delivery."""
    stage.plan("retried", label, "block")
    result = app.tasks["flaky"].apply_async((label, 2), task_id=label)
    with stage.blocked("retried", label):
        stage.plan("body", label, "kill")

    assert result.get(timeout=DEADLINE) == 3
    assert stage.met("body", label)
    claims = [(event["attempt"], event["delivery"]) for event in stage.events("claimed", label)]
    assert claims == [(1, 1), (2, 1), (2, 2), (3, 2)]


def test_a_retry_is_released_before_it_is_published(app: Celery, stage: Stage, label: str) -> None:
    """In between, the original is the only message, not acked, and its job waits for attempt 2."""
    stage.wait_no_message()
    stage.plan("retried", label, "block")
    result = app.tasks["flaky"].apply_async((label, 1), task_id=label)
    with stage.blocked("retried", label):
        assert stage.messages() == (0, 1)
        record = runtime_of(app).store.inspect(Job(label, "given"))
        assert [record["state"], record["attempt"]] == ["waiting", "2"]

    assert result.get(timeout=DEADLINE) == 2


def test_a_message_that_comes_back_before_its_job_is_due_waits(app: Celery, stage: Stage, label: str) -> None:
    """Killed between release and publish: the original comes back at once, and runs when the retry is due.

    It is the only copy: nothing was published before the release, nothing after.
    """
    stage.plan("retried", label, "kill")
    result = app.tasks["flaky"].apply_async((label, 1, 1.5), task_id=label)

    assert result.get(timeout=DEADLINE) == 2
    assert stage.met("retried", label)
    assert stage.events("not_yet", label)
    assert attempts(stage, label) == [1, 2]
    assert pauses(stage.entries(label))[0] >= 1.5


def test_a_message_that_comes_back_after_its_retry_was_published_runs_it_once(
    app: Celery, stage: Stage, label: str
) -> None:
    """Killed between publish and ack: original and retry are both there; attempt 2 runs once, both are told."""
    stage.plan("postrun", label, "kill")
    result = app.tasks["flaky"].apply_async((label, 1, 1.0), task_id=label)

    assert result.get(timeout=DEADLINE) == 2
    assert stage.met("postrun", label)
    stage.wait_event("replayed_outcome", label)
    assert attempts(stage, label) == [1, 2]
    assert pauses(stage.entries(label))[0] >= 1.0


def test_a_stolen_copy_does_not_run_before_its_job_is_due(app: Celery, stage: Stage, label: str) -> None:
    """A second copy of the message, received while the job waits for its retry, adds no run."""
    queue = f"queue-{label}"
    result = app.tasks["flaky"].apply_async((label, 1, 1.0), task_id=label, queue=queue)
    with redis.Redis.from_url(stage.broker) as broker:
        (message,) = broker.lrange(queue, 0, -1)
        app.control.add_consumer(queue, reply=True)
        stage.wait_event("retried", label)
        broker.rpush(queue, message)

    assert result.get(timeout=DEADLINE) == 2
    stage.wait_event("replayed_outcome", label)
    assert attempts(stage, label) == [1, 2]
    assert pauses(stage.entries(label))[0] >= 1.0


# --- a broker that takes no messages


@pytest.fixture
def apart(module_redis: RedisServer, tmp_path: Path) -> Iterator[tuple[Stage, FaultProxy]]:
    """A stage whose workers publish through a network that fails on demand; store and consumers do not use it."""
    with FaultProxy(module_redis.port) as proxy:
        stage = Stage.on(module_redis.url, directory=tmp_path, first=3)
        written = stage.broker.replace(f":{module_redis.port}/", f":{proxy.port}/")
        yield dataclasses.replace(stage, conf={"broker_write_url": written}), proxy


def test_a_retry_that_cannot_be_published_runs_once(
    apart: tuple[Stage, FaultProxy], workers: Workers, label: str
) -> None:
    """The message waits in its worker until the retry is due and takes its place: not lost, not doubled, not early."""
    stage, proxy = apart
    stage.plan("retried", label, "block")
    workers.start(APP, env=stage.environment(), arguments=QUIET)
    with client(stage, broker_write_url=None) as app:
        result = app.tasks["flaky"].apply_async((label, 1, 1.0), task_id=label)
        with stage.blocked("retried", label):
            proxy.down()
        stage.wait_event("publish_failed", label)

        assert result.get(timeout=DEADLINE) == 2
        assert attempts(stage, label) == [1, 2]
        assert pauses(stage.entries(label))[0] >= 1.0
        assert stage.entries(f"failure:{label}") == []
        stage.wait_no_message()
        proxy.up()


def test_a_retry_outlives_a_broker_that_stays_away(
    apart: tuple[Stage, FaultProxy], workers: Workers, label: str
) -> None:
    """Three attempts without one published message."""
    stage, proxy = apart
    workers.start(APP, env=stage.environment(), arguments=QUIET)
    with client(stage, broker_write_url=None) as app:
        app.tasks["add"].delay(1, f"{label}:first").get(timeout=DEADLINE)
        proxy.down()
        result = app.tasks["flaky"].apply_async((label, 2), task_id=label)

        assert result.get(timeout=2 * DEADLINE) == 3
        assert attempts(stage, label) == [1, 2, 3]
        assert len(stage.events("publish_failed", label)) == 2
        stage.wait_no_message()


def test_a_retry_outlives_the_loss_of_the_broker(
    module_redis: RedisServer, workers: Workers, tmp_path: Path, label: str
) -> None:
    """Consuming and publishing end together, the store is elsewhere: the retry runs once, when the broker is back."""
    stage = Stage.on(module_redis.url, directory=tmp_path, first=6, conf=RESTORING)
    with FaultProxy(module_redis.port) as proxy, client(stage) as app:
        fragile = stage.broker.replace(f":{module_redis.port}/", f":{proxy.port}/")
        environment = dataclasses.replace(stage, broker=fragile).environment()
        stage.plan("retried", label, "block")
        worker = workers.start(APP, env=environment, arguments=QUICK)
        result = app.tasks["flaky"].apply_async((label, 1, 0.5), task_id=label)
        with stage.blocked("retried", label):
            proxy.down()
        stage.wait_event("publish_failed", label)
        proxy.up()

        assert result.get(timeout=2 * DEADLINE) == 2
        assert attempts(stage, label) == [1, 2]
        assert worker.running
        stage.wait_no_message()
