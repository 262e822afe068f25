"""Submitting to a store that answers later: the message is built meanwhile, and goes only when it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded

from celery_reliable import QueueFull, StoreUnavailable
from celery_reliable.claim_check import Aside
from celery_reliable.errors import ReliableError, StoreFull
from celery_reliable.events import Events
from celery_reliable.keys import HEADER
from celery_reliable.payloads import Envelope
from celery_reliable.questions import Otherwise, Question
from celery_reliable.runtime import replaced_runtime
from celery_reliable.stores.base import Existing, Job, Mismatch, New, SubmitAnswer
from celery_reliable.stores.memory import MemoryStore
from tests.unit.test_task import job_task, make_app, waiting

JOB = Job("job:1", "declared")


class LateStore(MemoryStore):
    """A store that works while its caller does. ``steps`` is what everybody did, in order."""

    def __init__(self) -> None:
        """Begin with nothing done."""
        super().__init__()
        self.steps: list[str] = []
        self.refusal: BaseException | None = None
        self.interruption: BaseException | None = None
        self.takes_back = True

    def begin_submit(self, job: Job, **facts: Any) -> Callable[[], SubmitAnswer]:
        """Begin; whether it went through is known to who asks."""
        self.steps.append("begun")
        return partial(self._answer, job, facts)

    def _answer(self, job: Job, facts: dict[str, Any]) -> SubmitAnswer:
        self.steps.append("answered")
        if self.refusal is not None:
            raise self.refusal
        answer = self.submit(job, **facts)
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            raise interruption
        return answer

    def withdraw(self, job: Job, *, task_id: str) -> bool:
        """Take back a submission, unless the store has gone by then."""
        if not self.takes_back:
            raise StoreUnavailable("away")
        return super().withdraw(job, task_id=task_id)


@pytest.fixture
def store() -> LateStore:
    """An empty store that answers later."""
    return LateStore()


@pytest.fixture
def app(store: LateStore) -> Iterator[Celery]:
    """An app with an empty queue, on that store, with a ledger."""
    made = make_app()
    with made.connection_for_write() as connection:
        made.amqp.queues["celery"](connection.default_channel).declare()
        connection.default_channel.queue_purge("celery")

    def note(name: str, _: dict[str, Any]) -> None:
        store.steps.append(name)

    def on_publish(sender: Any, **_: Any) -> None:
        store.steps.append("told")

    with replaced_runtime(made, store=store, events=Events([note])) as runtime:
        runtime.ledger = True
        signals.before_task_publish.connect(on_publish)
        yield made
        signals.before_task_publish.disconnect(on_publish)


@pytest.fixture
def task(app: Celery, store: LateStore) -> Any:
    """A task with a key, that tells when Celery builds its message."""
    made = job_task(app, idempotency_key="job:{x}")
    made.shadow_name = lambda *_: store.steps.append("built")
    return made


def message(app: Celery) -> Any:
    """Take the one message that waits."""
    with app.connection_for_write() as connection:
        found = connection.default_channel.basic_get("celery", no_ack=True)
        assert connection.default_channel.basic_get("celery") is None
    return found


def test_a_message_is_built_while_the_store_works_and_told_of_after_its_answer(store: LateStore, task: Any) -> None:
    """Also to the result backend, which Celery tells before the signals."""
    task.backend.on_task_call = lambda *_: store.steps.append("backend told")
    task.app.backend.on_task_call = task.backend.on_task_call
    task.ignore_result = False
    task.delay(1)
    assert store.steps == ["begun", "built", "answered", "submitted", "backend told", "told"]
    assert waiting(task.app) == 1


def test_an_own_id_is_entered_in_the_ledger_meanwhile(app: Celery, store: LateStore) -> None:
    """Before its message goes."""
    result = job_task(app).delay(1)
    assert store.steps == ["begun", "answered", "submitted", "told"]
    assert [task_id for task_id, _ in store.ledger()] == [result.id]


def test_nobody_is_told_of_a_message_whose_key_is_taken(store: LateStore, task: Any) -> None:
    """It was built for nothing; the handle is that of the job that has the key."""
    first = task.delay(1)
    store.steps.clear()
    assert task.delay(1).id == first.id
    assert store.steps == ["begun", "built", "answered", "existing"]
    assert waiting(task.app) == 1


def test_a_continuation_of_a_taken_key_goes_under_its_own_id(store: LateStore, task: Any) -> None:
    """As the store answers."""
    first = task.delay(1)
    second = task.apply_async((1,), link=task.si(2))
    assert second.id != first.id
    assert waiting(task.app) == 2
    assert store.steps.count("told") == 2


def test_a_message_of_a_later_life_says_so(app: Celery, store: LateStore, task: Any) -> None:
    """It is built anew: the first one was built for a key that nobody had before."""
    revoked = task.delay(1)
    message(app)
    store.revoke(JOB, task_id=revoked.id, ttl=60.0)
    assert task.delay(1).id != revoked.id
    assert message(app).headers[HEADER]["l"] == 2
    assert store.steps.count("told") == 2


@pytest.mark.parametrize("refusal", [ValueError("no"), SoftTimeLimitExceeded()], ids=["Celery", "a time limit"])
def test_what_stops_the_building_is_raised_and_takes_the_submission_back(
    store: LateStore, task: Any, refusal: Exception
) -> None:
    """The store had been told already: the job must not run."""

    def refuse(*_: Any) -> None:
        raise refusal

    task.shadow_name = refuse
    with pytest.raises(type(refusal)):
        task.delay(1)
    assert store.steps == ["begun", "answered", "withdrawn"]
    assert list(store.ledger()) == []
    assert waiting(task.app) == 0


def test_what_stops_the_building_takes_nothing_back_from_the_job_that_has_the_key(store: LateStore, task: Any) -> None:
    """Its message stays what it was. Celery looks at the limits when it builds a message."""
    first = task.delay(1)
    task.soft_time_limit, task.time_limit = 2, 1
    with pytest.raises(ValueError, match="soft_time_limit"):
        task.delay(1)
    assert [task_id for task_id, _ in store.ledger()] == [first.id]
    assert store.inspect(JOB)["state"] == "waiting"


@pytest.mark.parametrize(
    ("refusal", "raised"), [(StoreFull("full"), QueueFull), (StoreUnavailable("away"), StoreUnavailable)]
)
def test_what_the_store_refuses_is_not_told_to_anybody(
    store: LateStore, task: Any, refusal: ReliableError, raised: type[ReliableError]
) -> None:
    """Neither sent."""
    store.refusal = refusal
    with pytest.raises(raised):
        task.delay(1)
    assert store.steps[:3] == ["begun", "built", "answered"]
    assert "told" not in store.steps
    assert waiting(task.app) == 0


def test_a_submission_that_replaces_arguments_builds_no_message_before_the_answer(
    app: Celery, store: LateStore
) -> None:
    """What would stop the building would refuse a call whose arguments the waiting job has taken already."""
    task = job_task(app, idempotency_key="job:{x}", on_conflict="replace")
    first = task.delay(1)
    task.soft_time_limit, task.time_limit = 2, 1
    assert task.delay(1, y=5).id == first.id
    assert "begun" not in store.steps
    assert waiting(app) == 1


def broker_link(app: Celery) -> Any:
    """Return what the producer that is lent next talks to the broker through: another object after a reconnect."""
    with app.producer_or_acquire() as producer:
        return producer.connection.connection


def test_a_duplicate_leaves_the_connection_to_the_broker_as_it_was(app: Celery, task: Any) -> None:
    """A block that an exception leaves has kombu close it, and the next submission would connect and declare anew."""
    task.delay(1)
    link = broker_link(app)
    task.delay(1)
    assert broker_link(app) is link
    task.delay(2)
    assert broker_link(app) is link


@pytest.mark.parametrize("refusal", [StoreFull("full"), StoreUnavailable("away"), SoftTimeLimitExceeded()])
def test_what_asking_raises_leaves_the_connection_to_the_broker_as_it_was(
    app: Celery, store: LateStore, task: Any, refusal: Exception
) -> None:
    """The broker had no part in it."""
    task.delay(1)
    link = broker_link(app)
    store.refusal = refusal
    with pytest.raises((QueueFull, StoreUnavailable, SoftTimeLimitExceeded)):
        task.delay(2)
    assert broker_link(app) is link


def test_what_stops_a_publish_closes_the_connection_as_kombu_does(app: Celery, task: Any) -> None:
    """It may be why."""
    task.delay(1)
    link = broker_link(app)
    with pytest.raises(KeyError, match="unheard-of"):
        task.apply_async((2,), compression="unheard-of")
    assert broker_link(app) is not link


def test_a_publish_that_fails_takes_back_what_was_accepted(store: LateStore, task: Any) -> None:
    """By the broker or by a serializer that is not there."""
    with pytest.raises(Exception, match="refused"):
        task.apply_async((1,), producer=_Refusing(task.app))
    assert store.steps[-2:] == ["told", "withdrawn"]
    assert list(store.ledger()) == []


INTERRUPTIONS = [SoftTimeLimitExceeded, KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_who_is_interrupted_while_the_answer_is_read_has_submitted_nothing(
    store: LateStore, task: Any, interruption: type[BaseException]
) -> None:
    """The store may have accepted it, and the sweep would publish it; another submission begins anew."""
    store.interruption = interruption()
    with pytest.raises(interruption):
        task.delay(1)
    assert store.steps == ["begun", "built", "answered", "withdrawn"]
    assert list(store.ledger()) == []
    assert store.inspect(JOB)["state"] == "over"
    task.delay(1)
    assert waiting(task.app) == 1


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_who_is_interrupted_while_the_message_is_built_has_submitted_nothing(
    store: LateStore, task: Any, interruption: type[BaseException]
) -> None:
    """Nor left an answer that nobody reads."""

    def interrupt(*_: Any) -> None:
        raise interruption

    task.shadow_name = interrupt
    with pytest.raises(interruption):
        task.delay(1)
    assert store.steps == ["begun", "answered", "withdrawn"]
    assert list(store.ledger()) == []


def test_an_interruption_is_raised_as_it_is_though_the_submission_cannot_be_taken_back(
    store: LateStore, task: Any
) -> None:
    """The event says that it may run."""
    store.takes_back = False
    store.interruption = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        task.delay(1)
    assert store.steps == ["begun", "built", "answered", "withdraw_failed"]

    def interrupt(*_: Any) -> None:
        raise SystemExit

    task.shadow_name = interrupt
    with pytest.raises(SystemExit):
        task.delay(2)
    assert store.steps[4:] == ["begun", "answered", "withdraw_failed"]


class _Refusing:
    """A producer whose broker takes nothing."""

    def __init__(self, app: Celery, error: BaseException | None = None) -> None:
        self.error = error or OSError("refused")
        self.connection = self.__connection__ = app.connection_for_write()
        self.serializer = "json"

    def publish(self, *_: Any, **__: Any) -> None:
        raise self.error


def test_a_connection_of_the_caller_s_is_used_after_the_answer(app: Celery, store: LateStore, task: Any) -> None:
    """Celery makes its own producer of it, which asks nobody: so the store is asked before."""
    with app.connection_for_write() as connection:
        task.apply_async((1,), connection=connection)
    assert "begun" not in store.steps
    assert waiting(app) == 1


def test_who_is_interrupted_while_the_message_is_sent_may_have_submitted_it(store: LateStore, task: Any) -> None:
    """It may have gone, as when the process is killed there."""
    with pytest.raises(KeyboardInterrupt):
        task.apply_async((1,), producer=_Refusing(task.app, KeyboardInterrupt()))
    assert store.steps[-1] == "told"
    assert store.inspect(JOB)["state"] == "waiting"


class TestBlobs:
    """Arguments that are kept aside: there as long as something names them."""

    @pytest.fixture
    def large(self, app: Celery, store: LateStore, tmp_path: Path) -> Iterator[Any]:
        """A task whose arguments are kept aside, all of them."""
        app.conf.update(reliable_blob_url=f"file://{tmp_path}", reliable_claim_check_threshold=1)
        with replaced_runtime(app, store=store, events=Events([])) as runtime:
            runtime.ledger = True
            yield job_task(app, idempotency_key="job:{x}")

    def named(self, store: LateStore, tmp_path: Path) -> list[bool]:
        """Tell of each entry in the ledger whether its blob is there."""
        headers = [Envelope.from_bytes(raw).options["headers"] for _, raw in store.ledger()]
        return [aside is not None and (tmp_path / aside.ref.path).exists() for aside in map(Aside.of, headers)]

    def test_of_a_submission_that_was_taken_back_goes(self, large: Any, tmp_path: Path) -> None:
        """Its message could not be built."""
        large.soft_time_limit, large.time_limit = 2, 1
        with pytest.raises(ValueError, match="soft_time_limit"):
            large.delay(1)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_of_a_submission_that_may_run_stays(self, store: LateStore, large: Any, tmp_path: Path) -> None:
        """Interrupted, and not taken back."""
        store.takes_back, store.interruption = False, SoftTimeLimitExceeded()
        with pytest.raises(SoftTimeLimitExceeded):
            large.delay(1)
        assert self.named(store, tmp_path) == [True]

    def test_of_a_job_submitted_again_under_its_id_stays(self, store: LateStore, large: Any, tmp_path: Path) -> None:
        """The ledger names the newer blob, also when its message could not be built."""
        large.apply_async((1,), task_id="A")
        large.soft_time_limit, large.time_limit = 2, 1
        with pytest.raises(ValueError, match="soft_time_limit"):
            large.apply_async((1,), task_id="A")
        assert self.named(store, tmp_path) == [True]


class TestQuestion:
    """One answer, seen once."""

    @pytest.mark.parametrize(
        ("answer", "goes", "accepted"),
        [
            (New(1), True, True),
            (New(2), False, True),
            (Existing("A", "waiting", "own", 1), False, True),
            (Existing("A", "waiting", "same", 1), False, False),
            (Existing("A", "done", "no", 1), False, False),
            (Mismatch("A"), False, False),
        ],
    )
    def test_only_a_first_life_goes(self, answer: SubmitAnswer, *, goes: bool, accepted: bool) -> None:
        """What the store would have sent is taken back when it cannot be."""
        seen: list[str] = []
        question = Question(lambda: answer, on_new=lambda: seen.append("new"))
        for _ in range(2):
            if goes:
                question.see()
            else:
                with pytest.raises(Otherwise):
                    question.see()
        assert question.answer == answer
        assert seen == ["new"] * goes
        assert question.accepted() is accepted

    def test_a_question_that_failed_lets_nothing_go(self) -> None:
        """Whoever goes on all the same."""

        def fail() -> SubmitAnswer:
            raise StoreUnavailable("away")

        question = Question(fail, on_new=lambda: None)
        with pytest.raises(StoreUnavailable):
            question.see()
        with pytest.raises(Otherwise):
            question.see()
        assert not question.accepted()
