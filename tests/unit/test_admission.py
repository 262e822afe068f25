"""Admission: who is refused, held up, shed or slowed down, and what goes on all the same."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from celery.exceptions import TaskRevokedError
from kombu import Queue

from celery_reliable import ConfigurationError, QueueFull
from celery_reliable.flow.admission import CACHED, Admission, Waiting, retry_after
from celery_reliable.keys import SlotKey
from celery_reliable.retries import judge
from celery_reliable.runtime import QueueSight, runtime_of
from celery_reliable.settings.policies import QueueLimit
from celery_reliable.sight import Load
from tests.unit.test_task import job_task, make_app

BEGIN = 1_900_000_000.0


@dataclass
class Producer:
    """One process that submits to a queue, on a clock moved by hand; ``drains`` leave the queue each second it waits."""

    limit: QueueLimit
    depth: int | None = 0
    oldest_for: float = 0.0
    drains: int = 0
    clock: float = 0.0
    looks: int = 0
    slept: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Know one queue."""
        self.admission = Admission(
            {"reports": self.limit},
            look=self._look,
            now=lambda: int((BEGIN + self.clock) * 1e6),
            emit=lambda name, **_: self.events.append(name),
            clock=lambda: self.clock,
            sleep=self._sleep,
        )

    def _look(self, queue: str) -> Load | None:
        self.looks += 1
        oldest = int((BEGIN + self.clock - self.oldest_for) * 1e6) if self.oldest_for else 0
        return None if self.depth is None else Load(self.depth, oldest)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock += seconds
        if self.depth is not None:
            self.depth -= int(self.drains * seconds)

    def accepted(self, times: int, **asked: bool) -> int:
        """Submit so often; return how many went in before the first refusal."""
        for number in range(times):
            try:
                if self.admission.ask("reports", **asked) is not None:
                    return number
            except QueueFull:
                return number
        return times


# --- depth and age


def test_a_full_queue_refuses_and_says_what_waits() -> None:
    """And when to come back: at the pace at which the oldest message came to its age."""
    producer = Producer(QueueLimit(depth=100), depth=150, oldest_for=30.0)
    with pytest.raises(QueueFull, match="queue 'reports' is full, nothing was submitted: 150 messages wait") as caught:
        producer.admission.ask("reports")
    full = caught.value
    assert (full.queue, full.depth, full.age, full.retry_after) == ("reports", 150, 30.0, 10.0)
    assert producer.events == ["queue_full"]
    assert producer.admission.ask("another") is None


def test_a_queue_whose_oldest_message_is_too_old_refuses() -> None:
    """Whatever its depth."""
    producer = Producer(QueueLimit(age=60), depth=3, oldest_for=59.0)
    assert producer.accepted(5) == 5
    producer.clock += 2
    producer.oldest_for = 61.0
    assert producer.accepted(5) == 0


def test_between_two_looks_this_process_counts_what_it_sends() -> None:
    """One look a second, and no burst in between; the next look counts anew."""
    producer = Producer(QueueLimit(depth=10))
    assert producer.accepted(1000) == 10
    assert producer.looks == 1
    producer.clock += CACHED
    assert producer.accepted(1000) == 10
    assert producer.looks == 2


@pytest.mark.parametrize(
    ("waiting", "limit", "seconds"),
    [
        (Waiting(200, 100.0), QueueLimit(depth=100), 50.0),
        (Waiting(5, 90.0), QueueLimit(age=60), 30.0),
        (Waiting(101, 1.0), QueueLimit(depth=100), 1.0),
        (Waiting(1_000_000, 86_400.0), QueueLimit(depth=1), 300.0),
        (Waiting(200, None), QueueLimit(depth=100), 5.0),
    ],
)
def test_the_time_to_come_back_is_bounded(waiting: Waiting, limit: QueueLimit, seconds: float) -> None:
    """Between a second and five minutes; five seconds when nothing is known."""
    assert retry_after(waiting, limit) == seconds


def test_a_broker_that_does_not_answer_holds_nobody_up() -> None:
    """The publish finds out by itself."""
    assert Producer(QueueLimit(depth=1), depth=None).accepted(1) == 1


# --- modes


def test_block_waits_until_there_is_room_and_no_longer_than_it_may() -> None:
    """Then it refuses."""
    limit = QueueLimit(depth=100, mode="block", wait=10.0)
    draining = Producer(limit, depth=105, drains=4)
    assert draining.accepted(1) == 1
    assert 1.0 <= sum(draining.slept) <= 3.0
    stuck = Producer(limit, depth=105)
    assert stuck.accepted(1) == 0
    assert sum(stuck.slept) == pytest.approx(10.0)


def test_shed_drops_best_effort_first_and_refuses_others_at_twice_the_limit() -> None:
    """A best-effort call is not refused: it is told what waits."""
    limit = QueueLimit(depth=100, mode="shed")
    full, flooded = Producer(limit, depth=100), Producer(limit, depth=200)
    assert full.admission.ask("reports", may_shed=True) == Waiting(100)
    assert full.accepted(1000) == 100
    assert flooded.accepted(1) == 0
    assert Producer(limit, depth=99).admission.ask("reports", may_shed=True) is None


def test_slow_holds_up_the_longer_the_fuller() -> None:
    """Up to its wait at twice the limit; it never refuses."""
    for depth, seconds in ((99, []), (100, [0.0]), (150, [5.0]), (500, [10.0])):
        producer = Producer(QueueLimit(depth=100, mode="slow"), depth=depth)
        assert producer.accepted(1) == 1
        assert producer.slept == seconds


def test_what_has_headroom_goes_in_up_to_twice_the_limit() -> None:
    """Beat's slots."""
    assert Producer(QueueLimit(depth=100), depth=150).accepted(1000, headroom=True) == 50


# --- the task


@pytest.fixture
def task() -> Any:
    """A task whose queue ``celery`` is seen as full."""
    app = make_app()
    producer = Producer(QueueLimit(depth=10, mode="shed"), depth=10)
    producer.admission._limits["celery"] = producer.admission._limits["reports"]  # type: ignore[index]
    producer.admission._seen["celery"] = producer.admission._seen["reports"]
    runtime_of(app).admission = producer.admission
    made = job_task(app)
    made.producer = producer
    return made


def test_a_best_effort_call_is_shed_and_recorded(task: Any) -> None:
    """Its result says so; with something chained to it, it is not shed, since that would wait for ever."""
    result = task.apply_async((1,), importance="best_effort")
    with pytest.raises(TaskRevokedError, match="shed: queue celery is full"):
        result.get(timeout=1)
    assert task.apply_async((1,), importance="best_effort", link=task.si(2)).state == "PENDING"
    assert task.apply_async((1,)).state == "PENDING"


def test_a_wrong_importance_is_refused(task: Any) -> None:
    """As an option and as an argument."""
    with pytest.raises(ConfigurationError, match="importance: expected 'normal' or 'best_effort', found 'low'"):
        task.apply_async((1,), importance="low")
    with pytest.raises(ConfigurationError, match="importance: expected 'normal' or 'best_effort', found 'low'"):
        _ = job_task(make_app(), importance="low").reliable_settings


def test_retries_replays_and_slots_have_room_when_new_work_has_none(task: Any) -> None:
    """What was accepted already goes on."""
    task.producer.depth = 19
    task.apply_async((1,), idempotency_key=SlotKey("beat:a:1:now"))
    with pytest.raises(QueueFull):
        task.apply_async((1,))
    known = {"reliable": {"i": "again", "s": 1, "l": 1}}
    assert task.apply_async((1,), task_id="again", headers=known, retries=1).id == "again"


def test_a_task_that_meets_a_full_queue_is_tried_again_when_there_may_be_room() -> None:
    """It is not dead for it."""
    verdict = judge(QueueFull("full", retry_after=12.0))
    assert (verdict.action, verdict.retry_after, verdict.rule) == ("retry", 12.0, "queue_full")


def test_limits_that_limit_nothing_are_refused() -> None:
    """A queue that is not declared where queues are; an age where the broker shows none."""
    limits = {"reprots": {"depth": 5}}
    app = make_app(reliable_queue_limits=limits, task_queues=[Queue("reports"), Queue("celery")])
    with pytest.raises(ConfigurationError, match=r"expected queues of task_queues \(celery, reports\), found reprots"):
        _ = runtime_of(app).admission
    old = make_app(reliable_queue_limits={"reports": {"age": 60}})
    with pytest.raises(ConfigurationError, match="reports: age: expected a broker on Redis or RabbitMQ, found memory"):
        _ = runtime_of(old).admission
    assert runtime_of(make_app()).admission is None


def test_a_connection_made_before_a_fork_is_not_used_after_it() -> None:
    """Parent and child would read each other's answers."""
    sight = QueueSight(make_app())
    sight._sight = os.getpid() + 1, cast("Any", None)
    assert sight.look("celery") is None
    assert sight._sight[0] == os.getpid()


def test_a_call_of_a_limited_queue_costs_little() -> None:
    """Half of three hundred calls, seen as it was a second ago: the bar is 0.1 ms, three times that for a busy machine."""
    app = make_app()
    runtime = runtime_of(app)
    runtime.admission = Producer(QueueLimit(depth=10**9)).admission
    task, plain, limited = job_task(app), [], []

    def elapsed() -> float:
        began = time.perf_counter()
        task.apply_async((1,), queue="celery")
        return time.perf_counter() - began

    runtime.admission._limits["celery"] = QueueLimit(depth=10**9)  # type: ignore[index]
    runtime.admission._seen["celery"] = runtime.admission._seen["reports"]
    admission = runtime.admission
    for _ in range(300):
        runtime.admission = None
        plain.append(elapsed())
        runtime.admission = admission
        limited.append(elapsed())
    assert statistics.median(limited) - statistics.median(plain) < 0.3e-3
