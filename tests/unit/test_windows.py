"""``dedup_for`` and ``debounce``: the first of many submissions of a key runs, or the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable import (
    ConfigurationError,
    DuplicateTask,
    PayloadMismatch,
    ReliableTask,
    StoreUnavailable,
    Transient,
)
from celery_reliable.payloads import Envelope
from celery_reliable.publishing import arguments_in
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Busy, ClaimAnswer, Done, Job, NotYet, Run
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import MemoryNotes, Note, Write
from celery_reliable.testing import in_memory
from tests.unit.test_task import job_task, make_app, waiting

if TYPE_CHECKING:
    from celery import Celery

WINDOW = 60.0
DEBOUNCE, BOUND = 5.0, 12.0
DAY = 86_400.0


class Clock:
    """A store's clock that stands until it is moved."""

    now = 1_900_000_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Interrupted(MemoryNotes):
    """Notes whose next reader, or writer, is held up by what others do meanwhile."""

    after_read: Callable[[], None] | None = None
    before_write: Callable[[], None] | None = None
    reads = 0

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Read, then let others go first."""
        self.reads += 1
        found = super().read(shelf, names)
        others, self.after_read = self.after_read, None
        if others is not None:
            others()
        return found

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Let others go first, then write."""
        others, self.before_write = self.before_write, None
        if others is not None:
            others()
        return super().write(shelf, writes)


class Killed(BaseException):
    """The producer's process ends here."""


def killed() -> None:
    """End the producer."""
    raise Killed


class Place:
    """An app with an empty queue, its store, and what a worker does with it."""

    def __init__(self, **settings: Any) -> None:
        """Make all of it."""
        self.app: Celery = make_app(**settings)
        self.clock = Clock()
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues["celery"](connection.default_channel).declare()
            connection.default_channel.queue_purge("celery")
        self.store = MemoryStore(clock=self.clock)
        self.notes = self.store.notes = Interrupted(clock=self.clock)
        self.runtime.__dict__["store"] = self.store

    @property
    def runtime(self) -> Runtime:
        """What the app's calls share."""
        return runtime_of(self.app)

    @property
    def messages(self) -> int:
        """How many messages were published."""
        return waiting(self.app)

    def claim(self, task_id: str, number: int = 1, *, life: int = 1) -> ClaimAnswer:
        """Claim a round of the key, as a worker does."""
        given: Any = {"token": task_id, "ttl": 15.0, "max_deliveries": 5, "record_ttl": DAY}
        return self.store.claim(job(number), task_id=task_id, life=life, **given)

    def begin(self, task_id: str, number: int = 1, *, life: int = 1) -> Run:
        """Claim a round and expect the right to run."""
        answer = self.claim(task_id, number, life=life)
        assert isinstance(answer, Run)
        return answer

    def end(self, task_id: str, run: Run, number: int = 1) -> None:
        """Complete what was begun."""
        ended: Any = {"fence": run.fence, "token": task_id, "outcome": b"7", "marker_ttl": 7 * DAY}
        self.store.complete(job(number), task_id=task_id, **ended)

    def run(self, task_id: str, number: int = 1, *, life: int = 1) -> None:
        """Run a round to its end."""
        self.end(task_id, self.begin(task_id, number, life=life), number)

    def bury(self, task_id: str) -> None:
        """Let the first round die."""
        run = self.begin(task_id)
        dead: Any = {"letter_id": "L", "letter": b"{}", "letter_ttl": DAY, "letter_max": 9}
        self.store.bury(job(), task_id=task_id, fence=run.fence, token=task_id, **dead)


@pytest.fixture
def place() -> Place:
    """A place of its own."""
    return Place()


def job(number: int = 1) -> Job:
    """Return the job of a round of the key."""
    return Job(f"index:1 round {number}", "declared")


def windowed(place: Place, **options: Any) -> Any:
    """Register a task whose key answers for a minute."""
    return job_task(place.app, **{"idempotency_key": "index:{x}", "dedup_for": WINDOW, **options})


def debounced(place: Place, **options: Any) -> Any:
    """Register a task that waits for a burst to end."""
    given = {"idempotency_key": "index:{x}", "debounce": DEBOUNCE, "debounce_max": BOUND}
    return job_task(place.app, **{**given, **options})


def newest(answer: ClaimAnswer) -> Any:
    """Return the keyword arguments that a claim hands out."""
    assert isinstance(answer, Run)
    assert answer.envelope is not None
    return arguments_in(Envelope.from_bytes(answer.envelope), accept=["json"])[1]


class TestDedup:
    """``dedup_for``: the first submission runs; for a while the others get its result."""

    def test_a_key_answers_in_its_window_and_is_free_after_it(self, place: Place) -> None:
        """Also once its job is done; the window is counted from the first submission, by the store's clock."""
        task = windowed(place)
        first = task.delay(1)
        place.run(first.id)
        place.clock.pass_by(WINDOW - 1)
        again = task.delay(1)
        assert (again.id, again.get(timeout=1), place.messages) == (first.id, 7, 1)
        place.clock.pass_by(2)
        assert task.delay(1).id != first.id
        assert place.messages == 2

    def test_windows_are_of_one_key(self, place: Place) -> None:
        """Another key has another one."""
        task = windowed(place)
        assert task.delay(1).id != task.delay(2).id

    def test_a_job_that_outlives_its_window_keeps_its_key(self, place: Place) -> None:
        """While it waits and while it runs; what is submitted once it is done is a new job with a window of its own."""
        task = windowed(place)
        first = task.delay(1)
        place.clock.pass_by(WINDOW * 2)
        assert task.delay(1).id == first.id
        run = place.begin(first.id)
        assert task.delay(1).id == first.id
        place.end(first.id, run)
        second = task.delay(1)
        place.run(second.id, 2)
        assert first.id != second.id == task.delay(1).id
        assert place.messages == 2

    @pytest.mark.parametrize("end", ["expired", "revoked", "skipped"])
    def test_a_job_that_did_nothing_frees_its_key(self, place: Place, end: Any) -> None:
        """The next submission is a new job, with a whole window."""
        task = windowed(place)
        first = task.delay(1)
        place.clock.pass_by(WINDOW / 2)
        place.store.settle(job(), task_id=first.id, state=end, ttl=DAY)
        second = task.delay(1)
        place.run(second.id, life=2)
        place.clock.pass_by(WINDOW - 1)
        assert first.id != second.id == task.delay(1).id
        assert place.messages == 2

    def test_a_job_that_was_revoked_while_it_ran_frees_its_key(self, place: Place) -> None:
        """When its holder has ended; what is submitted before that is a job of its own that follows."""
        task = windowed(place)
        first = task.delay(1)
        place.begin(first.id)
        place.store.revoke(job(), task_id=first.id, ttl=DAY)
        second = task.delay(1)
        assert second.id != first.id
        place.store.free(job(), token=first.id, evidence=b"{}", keep=DAY)
        assert isinstance(place.claim(second.id, life=2), Run)

    @pytest.mark.parametrize("discarded", [False, True])
    def test_a_job_that_failed_frees_its_key(self, place: Place, discarded: bool) -> None:  # noqa: FBT001
        """Whether its dead letter is still there or not."""
        task = windowed(place)
        first = task.delay(1)
        place.bury(first.id)
        if discarded:
            assert place.store.discard("L", job())
        second = task.delay(1)
        assert first.id != second.id == task.delay(1).id
        assert place.messages == 2

    def test_a_job_whose_process_was_killed_keeps_its_key_and_runs_again(self, place: Place) -> None:
        """It has not ended: what comes meanwhile joins it, and its message, which comes again, runs."""
        task = windowed(place)
        first = task.delay(1)
        place.begin(first.id)
        place.store.free(job(), token=first.id, evidence=b"{}", keep=DAY)
        assert task.delay(1).id == first.id
        place.run(first.id)
        assert task.delay(1).id == first.id

    def test_a_failed_publish_holds_no_window(self, place: Place) -> None:
        """The next submission is published, and its window is a whole one."""
        task = windowed(place)
        with pytest.raises(ConnectionError):
            task.apply_async((1,), producer=NoProducer())
        place.clock.pass_by(WINDOW - 1)
        second = task.delay(1)
        place.run(second.id, life=2)
        place.clock.pass_by(WINDOW - 1)
        assert task.delay(1).id == second.id
        assert place.messages == 1

    def test_a_producer_that_is_killed_before_its_window_is_open_holds_none(self, place: Place) -> None:
        """The next submission joins what it had submitted, and publishes it: nobody else has."""
        task = windowed(place)
        place.notes.before_write = killed
        with pytest.raises(Killed):
            task.apply_async((1,), task_id="lost")
        place.clock.pass_by(WINDOW / 2)
        assert task.delay(1).id == "lost"
        place.run("lost")
        place.clock.pass_by(WINDOW - 1)
        assert task.delay(1).id == "lost"
        assert place.messages == 1

    def test_a_producer_that_is_killed_before_its_publish_frees_itself(self, place: Place) -> None:
        """Its window is open and nothing is in the queue: the next submission publishes."""
        task = windowed(place)
        with pytest.raises(Killed):
            task.apply_async((1,), task_id="lost", producer=NoProducer(Killed))
        assert task.delay(1).id == "lost"
        assert place.messages == 1

    def test_a_store_that_goes_before_the_window_is_open_takes_the_job_back(self, place: Place) -> None:
        """The caller is told no, so it must not run; the next submission is a new job."""
        task = windowed(place)
        place.notes.before_write = gone
        with pytest.raises(StoreUnavailable):
            task.apply_async((1,), task_id="refused")
        assert place.store.inspect(job())["reason"] == "withdrawn"
        assert task.delay(1).id != "refused"
        assert place.messages == 1

    def test_who_sees_a_done_job_and_no_window_looks_again(self, place: Place) -> None:
        """Between the two it may have been submitted, published and done: one window, one message."""
        task = windowed(place)

        def others() -> None:
            place.run(task.apply_async((1,), task_id="other").id)

        place.notes.after_read = others
        assert task.delay(1).id == "other"
        assert place.messages == 1

    def test_the_same_submission_again_is_no_new_job(self, place: Place) -> None:
        """A parent that runs again after the window submits the same child."""
        task = windowed(place)
        task.apply_async((1,), task_id="a")
        place.run("a")
        place.clock.pass_by(WINDOW + 1)
        assert task.apply_async((1,), task_id="a").id == "a"
        assert place.messages == 1

    def test_fifty_at_once_are_one_message_a_window(self, place: Place) -> None:
        """In the first window, and in the next."""
        task = windowed(place)
        with ThreadPoolExecutor(50) as pool:
            (first,) = {result.id for result in pool.map(lambda _: task.delay(1), range(50))}
            place.run(first)
            place.clock.pass_by(WINDOW + 1)
            (second,) = {result.id for result in pool.map(lambda _: task.delay(1), range(50))}
        assert first != second
        published = sent_ids(place)
        assert set(published) == {first, second}
        place.run(second, 2)

    def test_on_conflict_says_what_a_window_does(self, place: Place) -> None:
        """``raise`` names the job; a new one is accepted after the window."""
        task = windowed(place, on_conflict="raise")
        first = task.delay(1)
        place.run(first.id)
        with pytest.raises(DuplicateTask) as refused:
            task.delay(1)
        assert (refused.value.existing_id, refused.value.state) == (first.id, "done")
        place.clock.pass_by(WINDOW + 1)
        assert task.delay(1).id != first.id

    def test_other_arguments_are_refused_in_the_window_alone(self, place: Place) -> None:
        """One of the two callers would be wrong about what happened."""
        task = windowed(place)
        place.run(task.delay(1, y=1).id)
        with pytest.raises(PayloadMismatch):
            task.delay(1, y=2)
        place.clock.pass_by(WINDOW + 1)
        task.delay(1, y=2)
        assert place.messages == 2


class TestDebounce:
    """``debounce``: a burst of submissions is one run, with the newest arguments."""

    def test_a_burst_is_one_run_after_its_last_submission(self, place: Place) -> None:
        """One message; whatever has it is told for how long it has to wait."""
        task = debounced(place)
        first = task.delay(1, y=1)
        for y in (2, 3):
            place.clock.pass_by(DEBOUNCE - 1)
            assert task.delay(1, y=y).id == first.id
        assert place.claim(first.id) == NotYet(due_in=BOUND - 2 * (DEBOUNCE - 1))
        place.clock.pass_by(DEBOUNCE)
        assert newest(place.claim(first.id)) == {"y": 3}
        assert place.messages == 1

    def test_a_burst_without_an_end_runs_at_its_bound(self, place: Place) -> None:
        """At most so long after its first submission; what comes once it runs is the next burst."""
        task = debounced(place)
        first = task.delay(1)
        for y in range(int(BOUND)):
            assert task.delay(1, y=y).id == first.id
            assert isinstance(place.claim(first.id), NotYet)
            place.clock.pass_by(1)
        run = place.begin(first.id)
        second = task.delay(1, y=99)
        assert second.id != first.id
        assert place.claim(second.id, 2) == NotYet(due_in=DEBOUNCE)
        place.end(first.id, run)
        place.clock.pass_by(DEBOUNCE)
        place.run(second.id, 2)
        assert place.messages == 2

    def test_the_bound_is_ten_times_the_delay_if_none_is_given(self, place: Place) -> None:
        """Everything is bounded."""
        assert debounced(place, debounce_max=None).reliable_settings.longest_debounce == 10 * DEBOUNCE

    def test_a_single_submission_waits_too(self, place: Place) -> None:
        """Nobody knows that it is the last one."""
        first = debounced(place).delay(1)
        assert place.claim(first.id) == NotYet(due_in=DEBOUNCE)
        place.clock.pass_by(DEBOUNCE)
        place.run(first.id)

    def test_a_second_copy_of_the_message_runs_nothing(self, place: Place) -> None:
        """One run for a burst, whatever the broker delivers."""
        first = debounced(place).delay(1)
        place.clock.pass_by(DEBOUNCE)
        run = place.begin(first.id)
        assert isinstance(place.claim(first.id), Busy)
        place.end(first.id, run)
        assert isinstance(place.claim(first.id), Done)

    def test_the_same_submission_again_is_no_part_of_a_burst(self, place: Place) -> None:
        """It puts nothing off: it is the same one."""
        task = debounced(place)
        task.apply_async((1,), task_id="a")
        place.clock.pass_by(DEBOUNCE - 1)
        task.apply_async((1,), task_id="a")
        assert place.claim("a") == NotYet(due_in=1)

    @pytest.mark.parametrize("end", ["expired", "revoked", "skipped"])
    def test_a_job_that_did_nothing_frees_its_key(self, place: Place, end: Any) -> None:
        """The next submission is a new burst."""
        task = debounced(place)
        first = task.delay(1)
        place.store.settle(job(), task_id=first.id, state=end, ttl=DAY)
        second = task.delay(1, y=2)
        assert second.id != first.id
        assert place.claim(second.id, life=2) == NotYet(due_in=DEBOUNCE)

    def test_a_producer_that_is_killed_before_its_publish_frees_itself(self, place: Place) -> None:
        """Without a sweep the next submission publishes, once."""
        task = debounced(place)
        with pytest.raises(Killed):
            task.apply_async((1,), {"y": 1}, task_id="lost", producer=NoProducer(Killed))
        assert [task.delay(1, y=y).id for y in (2, 3)] == ["lost", "lost"]
        assert place.messages == 1
        place.clock.pass_by(DEBOUNCE)
        assert newest(place.claim("lost")) == {"y": 3}

    def test_fifty_at_once_are_one_run(self, place: Place) -> None:
        """And fifty more while that one runs are one more."""
        task = debounced(place)
        with ThreadPoolExecutor(50) as pool:
            (first,) = {result.id for result in pool.map(lambda y: task.delay(1, y=y), range(50))}
            place.clock.pass_by(DEBOUNCE)
            run = place.begin(first)
            assert isinstance(place.claim(first), Busy)
            (second,) = {result.id for result in pool.map(lambda y: task.delay(1, y=y), range(50))}
        assert second != first
        place.end(first, run)
        place.clock.pass_by(DEBOUNCE)
        place.run(second, 2)


class TestWholeLife:
    """From the call to the end of its run."""

    def test_bursts_run_once_each(self) -> None:
        """With the newest arguments; the second one begins after the first, which is retried meanwhile."""
        app, ran = make_app(), []

        def body(self: Any, x: int, y: int = 0) -> int:
            ran.append((y, self.attempt))
            if len(ran) == 1:
                task.delay(x, y=3)
                raise Transient("again", retry_after=10 * DEBOUNCE)
            return y

        given: Any = {"idempotency_key": "index:{x}", "debounce": DEBOUNCE, "bind": True}
        task = app.task(base=ReliableTask, name="unit.burst", shared=False, **given)(body)
        with in_memory(app) as bench:
            assert task.delay(1, y=1).id == task.delay(1, y=2).id
            bench.run_due()
            assert ran == []
            bench.drain_all()
            assert ran == [(2, 1), (2, 2), (3, 1)]
            assert len({message.task_id for message in bench.submitted}) == 2

    def test_a_window_is_one_run(self) -> None:
        """What comes in it gets the result; what comes after it runs."""
        app = make_app()
        task = job_task(app, idempotency_key="index:{x}", dedup_for=WINDOW)
        with in_memory(app) as bench:
            first = task.delay(1)
            bench.drain_all()
            assert task.delay(1).id == first.id
            bench.elapse(WINDOW + 1)
            second = task.delay(1)
            bench.drain_all()
            assert [message.task_id for message in bench.submitted] == [first.id, second.id]


class TestOptions:
    """What is wrong is refused when the task is registered; what is not asked for costs nothing."""

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"dedup_for": 0}, "dedup_for: expected a number of seconds, at least 0.1, or None, found 0"),
            ({"dedup_for": -1}, "dedup_for: expected a number of seconds"),
            ({"dedup_for": "60"}, "dedup_for: expected a number of seconds"),
            ({"debounce": 0}, "debounce: expected a number of seconds"),
            ({"debounce": -5, "debounce_max": 60}, "debounce: expected a number of seconds"),
            ({"debounce": True}, "debounce: expected a number of seconds"),
            ({"debounce": 60, "debounce_max": 59}, "debounce_max: expected at least debounce .60 seconds., found 59"),
            ({"debounce_max": 60}, "debounce_max: expected debounce beside it, found none"),
            ({"debounce": 5, "dedup_for": 5}, "debounce: expected no dedup_for beside it"),
            ({"debounce": 5, "on_conflict": "raise"}, "debounce: expected no on_conflict='raise' beside it"),
            ({"debounce": 5, "on_conflict": "replace"}, "debounce: expected no on_conflict='replace' beside it"),
            ({"dedup_for": 5, "on_conflict": "queue_one"}, "dedup_for: expected no on_conflict='queue_one' beside it"),
            ({"dedup_for": 5, "idempotency_key": None}, "dedup_for: expected an idempotency_key beside it"),
            ({"debounce": 5, "idempotency_key": None}, "debounce: expected an idempotency_key beside it"),
        ],
    )
    def test_wrong_options_are_refused(self, place: Place, options: dict[str, Any], complaint: str) -> None:
        """With the name of the task, what was found, and what to do."""
        job_task(place.app, **{"idempotency_key": "index:{x}", **options})
        with pytest.raises(ConfigurationError, match=complaint) as refused:
            place.app.finalize()
        assert "unit.job" in str(refused.value)

    def test_a_marker_that_ends_before_its_window_is_refused(self, place: Place) -> None:
        """The key would run again inside it."""
        task = windowed(place, dedup_for=8 * DAY)
        with pytest.raises(ConfigurationError, match="idempotency_ttl: expected at least dedup_for"):
            _ = task.reliable_settings

    def test_a_debounced_job_is_queued_behind_one_that_runs(self, place: Place) -> None:
        """As with ``queue_one``, which may be said, too."""
        assert debounced(place).reliable_settings.on_conflict == "queue_one"
        assert debounced(Place(), on_conflict="queue_one").reliable_settings.on_conflict == "queue_one"

    def test_options_that_are_off_cost_nothing(self, place: Place) -> None:
        """No note is read, and the record says nothing of a due time."""
        task = job_task(place.app, idempotency_key="index:{x}")
        task.delay(1)
        task.delay(1)
        assert place.notes.reads == 0


class NoProducer:
    """A producer whose publishes fail."""

    def __init__(self, error: type[BaseException] = ConnectionError) -> None:
        """Take the error."""
        self._error = error

    def __getattr__(self, name: str) -> Any:
        """Fail."""
        raise self._error


def gone() -> None:
    """Be away."""
    msg = "the store is away"
    raise StoreUnavailable(msg)


def sent_ids(place: Place) -> list[str]:
    """Take all messages out of the queue; return their task ids."""
    found = []
    with place.app.connection_for_write() as connection:
        queue = place.app.amqp.queues["celery"](connection.default_channel)
        while (message := queue.get(no_ack=True)) is not None:
            found.append(str(message.headers["id"]))
    return found
