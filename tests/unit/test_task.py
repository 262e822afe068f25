"""`ReliableTask` without a worker: registration, submission on the memory transport, eager mode, direct calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry

from celery_reliable import (
    ConfigurationError,
    DuplicateTask,
    PayloadMismatch,
    Permanent,
    ReliableTask,
    Snooze,
    StoreUnavailable,
    Transient,
    scope,
)
from celery_reliable.publishing import envelope_of, publish_envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.testing import in_memory
from celery_reliable.worker.request import ReliableRequest

UNREACHABLE = "redis://127.0.0.1:1/0"


def make_app(**settings: Any) -> Celery:
    """Return an app of its own, on the memory transport and the memory store."""
    app = Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({"reliable_store_url": "memory://", **settings})
    return app


def job_task(app: Celery, **options: Any) -> Any:
    """Register a task that takes one argument."""

    def body(self: ReliableTask, x: int, y: int = 0) -> int:
        return x + y

    return app.task(base=ReliableTask, bind=True, name="unit.job", shared=False, **options)(body)


def waiting(app: Celery, queue: str = "celery") -> int:
    """Return how many messages wait in a queue, the default one unless another is named."""
    with app.connection_for_write() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


@pytest.fixture
def app() -> Celery:
    """An app with an empty queue."""
    made = make_app()
    with made.connection_for_write() as connection:
        made.amqp.queues["celery"](connection.default_channel).declare()
        connection.default_channel.queue_purge("celery")
    return made


class TestRegistration:
    """What is wrong is refused when the task is bound."""

    def test_template_of_an_unknown_argument_is_refused(self, app: Celery) -> None:
        """At registration, not at the first call."""
        job_task(app, idempotency_key="x:{order_id}")
        with pytest.raises(ConfigurationError, match="no argument named order_id"):
            app.finalize()

    @pytest.mark.parametrize("rank", ["first", "second"])
    def test_task_of_an_app_that_names_no_preset_is_acked_late(self, rank: str) -> None:
        """The first that is bound, too: Celery copies settings to its class before it says that it binds."""
        app = Celery("unit", broker="memory://", set_as_current=False)
        app.conf.reliable_store_url = "memory://"

        def body() -> None: ...

        for name in ("first", "second"):
            app.task(base=ReliableTask, name=name, shared=False)(body)
        task = app.tasks[rank]
        assert (task.acks_late, task.reject_on_worker_lost) == (True, True)

    def test_misspelled_option_is_refused(self, app: Celery) -> None:
        """It would do nothing, in silence."""
        job_task(app, lease_tll=5)
        with pytest.raises(ConfigurationError, match="did you mean lease_ttl"):
            app.finalize()

    def test_a_task_binds_no_class_but_its_own(self, app: Celery) -> None:
        """Bound to an app, `ReliableTask` would take that one's settings into the tasks of every other app."""
        job_task(app)
        app.finalize()
        assert "_app" not in vars(ReliableTask)

    @pytest.mark.parametrize("version", [0, "2", None, True])
    def test_wrong_checkpoint_version_is_refused(self, app: Celery, version: Any) -> None:
        """At registration."""
        job_task(app, checkpoint_version=version)
        with pytest.raises(ConfigurationError, match="checkpoint_version: expected a whole number"):
            app.finalize()

    def test_wrong_value_of_an_option_names_the_task(self, app: Celery) -> None:
        """As a wrong setting would."""
        task = job_task(app, lease_ttl=-1)
        with pytest.raises(ConfigurationError, match=r"unit\.job.*\n.*lease_ttl"):
            _ = task.reliable_settings

    def test_option_of_none_overrides_the_project(self) -> None:
        """Not given is not the same as None."""
        app = make_app(reliable_retry_for=60)
        assert job_task(app).reliable_settings.retry_for == 60
        assert job_task(make_app(reliable_retry_for=60), retry_for=None).reliable_settings.retry_for is None

    def test_option_of_a_base_class_counts(self) -> None:
        """Between the task and ReliableTask."""

        class Patient(ReliableTask):
            abstract = True
            max_retries = 50
            retry_backoff_max = 60

        def body() -> None: ...

        app = make_app()
        task: Any = app.task(base=Patient, name="unit.patient", shared=False)(body)
        assert task.reliable_settings.max_retries == 50

    def test_first_use_from_many_threads_finds_the_key_rule(self) -> None:
        """Celery shows a task to other threads before it is bound; a key that is missed there is a doubled job."""
        for _ in range(50):
            app, barrier = make_app(), threading.Barrier(5)
            task = job_task(app, idempotency_key="job:{x}")
            assert len(set(_at_once(5, barrier, partial(_id_of, task)))) == 1


def _id_of(task: Any) -> Any:
    """Submit; once more when Celery's proxy (5.7, celery/local.py) was being resolved by two threads and had lost itself."""
    try:
        return task.delay(1).id
    except AttributeError:
        return task.delay(1).id


def _at_once(count: int, barrier: threading.Barrier, call: Callable[[], Any]) -> list[Any]:
    def go(_: int) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(go, range(count)))


class TestSubmission:
    """Which calls are one job, seen by the producer."""

    def test_declared_key_is_published_once(self, app: Celery) -> None:
        """Later submissions get the existing id."""
        task = job_task(app, idempotency_key="job:{x}")
        ids = {task.delay(1).id, task.delay(x=1).id, task.apply_async((1,), {"y": 0}).id}
        assert len(ids) == 1

    def test_own_submissions_are_jobs_of_their_own(self, app: Celery) -> None:
        """Without a key."""
        task = job_task(app)
        assert task.delay(1).id != task.delay(1).id
        assert waiting(app) == 2

    def test_key_of_the_call_overrides_the_rule(self, app: Celery) -> None:
        """Per submission."""
        task = job_task(app)
        one, same = (task.apply_async((1,), idempotency_key="mine").id for _ in range(2))
        assert one == same

    def test_other_arguments_under_one_key_are_refused(self, app: Celery) -> None:
        """The error names the job that has the key."""
        task = job_task(app, idempotency_key="job:{x}")
        first = task.delay(1)
        with pytest.raises(PayloadMismatch, match="other arguments") as caught:
            task.delay(1, y=2)
        assert caught.value.existing_id == first.id

    def test_on_conflict_raise_names_the_existing_job(self, app: Celery) -> None:
        """Nothing is published."""
        task = job_task(app, idempotency_key="job:{x}", on_conflict="raise")
        first = task.delay(1)
        with pytest.raises(DuplicateTask) as caught:
            task.delay(1)
        assert (caught.value.existing_id, caught.value.state) == (first.id, "waiting")
        assert waiting(app) == 1

    def test_on_conflict_replace_keeps_the_id(self, app: Celery) -> None:
        """The newest arguments win while nothing has started; no new message."""
        task = job_task(app, idempotency_key="job:{x}", on_conflict="replace")
        assert task.delay(1).id == task.delay(1, y=2).id
        assert waiting(app) == 1

    def test_scope_makes_repeated_requests_one(self, app: Celery) -> None:
        """Two equal calls in one request stay two."""
        task = job_task(app)
        rounds = []
        for _ in range(2):
            with scope("request-1"):
                rounds.append([task.delay(1).id, task.delay(1).id])
        assert rounds[0] == rounds[1]
        assert len(set(rounds[0])) == 2

    def test_wrong_call_raises_before_anything_is_stored(self, app: Celery) -> None:
        """As plain Celery does."""
        task = job_task(app, idempotency_key="job:{x}")
        with pytest.raises(TypeError):
            task.delay()
        assert runtime_of(app).store.inspect(Job("job:1", "declared")) == {}

    def test_overlong_key_is_refused(self, app: Celery) -> None:
        """512 bytes."""
        with pytest.raises(ConfigurationError, match="513 bytes"):
            job_task(app).apply_async((1,), idempotency_key="x" * 513)

    def test_publish_that_raises_withdraws_the_submission(self, app: Celery) -> None:
        """The caller was told no: the key is free and the job will not run."""
        task = job_task(app, idempotency_key="job:{x}")
        with pytest.raises(Exception, match="nosuch"):
            task.apply_async((1,), serializer="nosuch")
        assert task.delay(1, y=2).id

    def test_no_store_call_without_ledger_and_key(self) -> None:
        """Features that are off cost nothing: the store is not even reachable."""
        app = make_app(reliable_store_url=UNREACHABLE, reliable_ledger=False)
        assert job_task(app).delay(1).id

    def test_store_away_at_submit_raises_and_publishes_nothing(self, app: Celery) -> None:
        """A declared key needs the store."""
        away = make_app(reliable_store_url=UNREACHABLE)
        with pytest.raises(StoreUnavailable):
            job_task(away, idempotency_key="job:{x}").delay(1)
        assert waiting(app) == 0


class TestWithoutWorker:
    """Direct calls and eager mode run plain bodies, without a store."""

    def eager(self, body: Callable[..., Any], **options: Any) -> Any:
        """Register a body in an app whose store cannot be reached, and run it eagerly."""
        app = make_app(reliable_store_url=UNREACHABLE, task_always_eager=True)
        return app.task(base=ReliableTask, bind=True, name="unit.eager", shared=False, **options)(body).delay()

    def test_direct_call_runs_the_plain_body(self) -> None:
        """No store, no claim."""
        app = make_app(reliable_store_url=UNREACHABLE)
        assert job_task(app)(1, y=2) == 3

    def test_run_facts_have_defaults_in_a_direct_call(self) -> None:
        """A body can ask for them anywhere."""

        def body(self: ReliableTask) -> tuple[Any, ...]:
            self.checkpoint.save({"half": True})
            once = self.once("step", lambda: 7)
            return self.fence, self.attempt, self.slot, self.draining, self.checkpoint.load("none"), once

        app = make_app(reliable_store_url=UNREACHABLE)
        task: Any = app.task(base=ReliableTask, bind=True, name="unit.facts", shared=False)(body)
        assert task() == (0, 1, None, False, "none", 7)

    def test_eager_mode_retries_what_may_pass(self) -> None:
        """At once, as often as allowed."""
        runs = []

        def body(self: ReliableTask) -> int:
            runs.append(self.attempt)
            if len(runs) < 3:
                msg = "again"
                raise Transient(msg)
            return len(runs)

        assert self.eager(body).get() == 3
        assert runs == [1, 2, 3]

    def test_eager_mode_gives_up_after_max_retries(self) -> None:
        """With the real exception."""

        def body(self: ReliableTask) -> None:
            raise Transient

        result = self.eager(body, max_retries=2)
        assert isinstance(result.result, Transient)

    def test_eager_mode_fails_at_once_for_what_cannot_pass(self) -> None:
        """One run."""
        runs = []

        def body(self: ReliableTask) -> None:
            runs.append(1)
            msg = "never"
            raise Permanent(msg)

        assert isinstance(self.eager(body).result, Permanent)
        assert len(runs) == 1

    def test_direct_retry_raises_the_cause(self) -> None:
        """As Celery does."""

        def body(self: ReliableTask) -> None:
            raise self.retry(exc=ValueError("cause"))

        app = make_app(reliable_store_url=UNREACHABLE)
        task: Any = app.task(base=ReliableTask, bind=True, name="unit.retry", shared=False)(body)
        with pytest.raises((ValueError, Retry), match="cause"):
            task()

    def test_snooze_is_an_exception_with_its_delay(self, app: Celery) -> None:
        """``self.snooze`` raises it."""
        with pytest.raises(Snooze) as caught:
            job_task(app).snooze(3)
        assert caught.value.seconds == 3.0


@pytest.mark.parametrize(
    ("address", "queue"),
    [
        ({"exchange": "", "routing_key": "received from"}, "received from"),
        ({"queue": "sent to"}, "sent to"),
        ({"routing_key": "reports"}, "celery"),
        ({}, "celery"),
    ],
)
def test_what_was_received_from_a_queue_is_published_to_it_again(
    app: Celery, address: dict[str, str], queue: str
) -> None:
    """A replay goes where its dead letter came from, by the default exchange; a call is sent where it was sent first."""
    task = job_task(app)
    publish_envelope(app, envelope_of(task, (1,), {}, task_id="again", options=address))
    assert waiting(app, queue) == 1


def _order_key(order_id: str) -> str:
    return f"order:{ {'1': 'one'}[order_id] }"


class TestSentWithoutTaskCode:
    """`send_task` from a process that has no task code: the worker computes the key, and the rule may give none."""

    @pytest.mark.parametrize(
        ("rule", "argument", "error"),
        [
            ("order:{order_id}", "x" * 600, "ConfigurationError"),
            ("{order_id}", "", "ConfigurationError"),
            (_order_key, "2", "KeyError"),
            (lambda: "no argument", "2", "TypeError"),
        ],
        ids=["overlong", "empty", "a callable that raises", "a callable of other arguments"],
    )
    def test_a_call_whose_rule_gives_no_key_is_a_letter(self, rule: Any, argument: str, error: str) -> None:
        """Nothing tells it from others, so it must not run; every delivery of it has the error, and no worker fails."""
        bodies: list[str] = []

        def order(order_id: str) -> None:
            bodies.append(order_id)

        app = make_app()
        app.task(base=ReliableTask, name="order", shared=False, idempotency_key=rule)(order)
        told: list[tuple[str, Mapping[str, Any]]] = []
        with in_memory(app, hooks=(lambda name, fields: told.append((name, fields)),)) as bench:
            app.send_task("order", (argument,), task_id="sent")
            bench.drain_all()
            (buried,) = [fields for name, fields in told if name == "buried"]

        assert bodies == []
        assert [type(one).__name__ for one in bench.failures] == [error]
        assert (buried["reason"], buried["task_id"]) == ("invalid", "sent")

    def test_the_worker_s_parent_takes_it_for_a_job_of_its_own(self, app: Celery) -> None:
        """What renews leases and hands work back asks for the job, and goes on."""
        task = job_task(app, idempotency_key=_order_key)
        app.finalize()
        Celery("bare", broker="memory://", set_as_current=False).send_task("unit.job", ("2",), task_id="sent")
        with app.connection_for_write() as connection:
            message = app.amqp.queues["celery"](connection.default_channel).get(no_ack=True)
        request = ReliableRequest(message, app=app, task=task, on_ack=lambda *_: None, eventer=None)
        assert request.job == Job("sent", "given")

    def test_calls_with_a_key_are_one_job(self) -> None:
        """As those that were submitted are."""
        bodies: list[str] = []
        app = make_app()

        def order(order_id: str) -> None:
            bodies.append(order_id)

        app.task(base=ReliableTask, name="order", shared=False, idempotency_key="order:{order_id}")(order)
        with in_memory(app) as bench:
            for task_id in ("first", "second"):
                app.send_task("order", ("1",), task_id=task_id)
            bench.drain_all()

        assert bodies == ["1"]
