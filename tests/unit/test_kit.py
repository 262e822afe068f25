"""The kit with which users test their own tasks, turned on tasks whose faults are known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain

from celery_reliable import Permanent, ReliableTask, Transient
from celery_reliable.errors import ConfigurationError
from celery_reliable.testing import assert_idempotent, assert_submitted, drain_all, in_memory


class World:
    """What tasks act on: charges as they come, and an API that dedups by key."""

    def __init__(self) -> None:
        """Begin empty."""
        self.charges: list[int] = []
        self.by_key: dict[str, int] = {}
        self.failing = 0

    def effects(self) -> int:
        """Count the effects."""
        return len(self.charges) + len(self.by_key)

    def reset(self) -> None:
        """Forget all."""
        self.__init__()  # type: ignore[misc]  # the state of a new one


@pytest.fixture
def world() -> World:
    """The world of one test."""
    return World()


@pytest.fixture
def app() -> Celery:
    """An app that has no server at all."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"
    return app


def task_of(app: Celery, body: Callable[..., Any], **options: Any) -> Any:
    """Register a body as a reliable task."""
    return app.task(body, base=ReliableTask, bind=True, shared=False, **options)


# --- assert_idempotent


def test_a_task_that_only_charges_is_found_out(app: Celery, world: World) -> None:
    """Killed after the charge and before `complete` it charges again: the trace tells so."""

    def charge(self: Any, order: int) -> None:
        world.charges.append(order)

    with pytest.raises(AssertionError, match="took effect 2 times, expected 1") as caught:
        assert_idempotent(task_of(app, charge), 12, effects=world.effects)

    text = str(caught.value)
    assert "killed before step 2, complete" in text
    assert text.index("-> effects: 1") < text.index("KILLED before complete") < text.index("-> effects: 2")


def test_a_task_that_hands_its_key_to_the_api_passes(app: Celery, world: World) -> None:
    """The API dedups, whatever happens."""

    def charge(self: Any, order: int) -> None:
        world.by_key.setdefault(self.idempotency_key, order)

    assert_idempotent(task_of(app, charge), 12, effects=world.effects)


def test_a_task_that_hands_its_id_to_the_api_is_found_out(app: Celery, world: World) -> None:
    """Whatever kills it, the id is the same; an operator's replay gives it another one."""

    def charge(self: Any, order: int) -> None:
        world.by_key.setdefault(self.request.id, order)

    with pytest.raises(AssertionError, match="took effect 2 times, expected 1, when: killed each time") as caught:
        assert_idempotent(task_of(app, charge), 12, effects=world.effects)

    assert "an operator replays it, under another task id and the same key" in str(caught.value)


def test_a_replay_goes_on_from_what_was_saved(app: Celery, world: World) -> None:
    """The replay finds the checkpoint; without it, the life after would charge under an id of its own."""

    def charge(self: Any, order: int) -> None:
        reference = self.checkpoint.load()
        if reference is None:
            reference = self.request.id
            self.checkpoint.save(reference)
        world.by_key.setdefault(reference, order)

    assert_idempotent(task_of(app, charge), 12, effects=world.effects)


def test_every_accident_is_tried_at_every_step(app: Celery, world: World) -> None:
    """Nothing; four accidents at claim and complete; killed each time before complete; one copy more after the end."""
    scenarios: list[None] = []

    def charge(self: Any, order: int) -> None:
        world.by_key.setdefault(self.idempotency_key, order)

    assert_idempotent(task_of(app, charge), 12, effects=world.effects, reset=lambda: scenarios.append(None))
    assert len(scenarios) == 1 + 2 * 4 + 1 + 1


def test_a_declared_key_is_the_same_in_every_scenario(app: Celery, world: World) -> None:
    """So the world is reset before each."""

    def charge(self: Any, order: int) -> None:
        world.by_key.setdefault(self.idempotency_key, order)

    task = task_of(app, charge, idempotency_key="charge:{order}")
    with pytest.raises(AssertionError, match="took effect 0 times"):
        assert_idempotent(task, 12, effects=world.effects)
    assert_idempotent(task, 12, effects=world.effects, reset=world.reset)


def test_a_task_that_fails_at_first_is_judged_by_its_end(app: Celery, world: World) -> None:
    """Retries are part of the job."""

    def charge(self: Any, order: int) -> None:
        if self.attempt == 1:
            raise Transient("busy")
        world.by_key.setdefault(self.idempotency_key, order)

    assert_idempotent(task_of(app, charge), 12, effects=world.effects)


def test_an_effect_that_is_lost_is_found_out(app: Celery, world: World) -> None:
    """A flag that is set before the effect: whoever resumes believes that it happened."""

    def charge(self: Any, order: int) -> None:
        if self.checkpoint.load() != "charged":
            self.checkpoint.save("charged")
            world.by_key.setdefault(self.idempotency_key, order)

    with pytest.raises(AssertionError, match="took effect 0 times, expected 1, when: killed after step 2, save"):
        assert_idempotent(task_of(app, charge), 12, effects=world.effects)


def test_a_step_run_once_is_repeated_only_by_a_kill_in_between(app: Celery, world: World) -> None:
    """What `once` promises: a crash between the step and the store repeats it."""

    def charge(self: Any, order: int) -> None:
        self.once("charge", world.charges.append, order)

    with pytest.raises(AssertionError, match="took effect 2 times, expected 1, when: killed before step 2, save"):
        assert_idempotent(task_of(app, charge), 12, effects=world.effects)


def test_a_failure_for_good_is_told(app: Celery, world: World) -> None:
    """The task's own fault, found in the first scenario."""

    def charge(self: Any, order: int) -> None:
        raise Permanent("no such order")

    with pytest.raises(AssertionError, match=r"nothing goes wrong(.|\n)*no such order"):
        assert_idempotent(task_of(app, charge), 12, effects=world.effects)


# --- the bench


def test_what_was_submitted_is_found_and_run(app: Celery, world: World) -> None:
    """By position or by name; nothing runs before it is asked for."""

    def charge(self: Any, order: int, currency: str = "EUR") -> None:
        world.charges.append(order)

    task = task_of(app, charge)
    with in_memory(app):
        task.delay(12)
        assert assert_submitted(task, order=12).args == (12,)
        with pytest.raises(AssertionError, match=r"charge\(12\)"):
            assert_submitted(task, 13)
        assert world.charges == []
        drain_all()
    assert world.charges == [12]


def test_retries_run_at_once_and_failures_are_kept(app: Celery, world: World) -> None:
    """The clock goes along: nobody waits."""

    def charge(self: Any, fails: int) -> None:
        world.failing += 1
        if world.failing <= fails:
            raise Transient("busy")
        world.charges.append(fails)

    task = task_of(app, charge, max_retries=3)
    with in_memory(app) as bench:
        task.delay(2)
        bench.drain_all()
        assert (world.charges, bench.failures) == ([2], [])
        world.failing = 0
        task.delay(99)
        bench.drain_all()
        assert [type(exc) for exc in bench.failures] == [Transient]
        assert bench.store.letter_counts()["kept"] == 1


def test_a_retry_keeps_the_headers_that_a_tracer_s_own_hide(app: Celery, world: World) -> None:
    """Datadog and old releases of Sentry put theirs into a header named ``headers``, which Celery takes for all."""
    seen: list[Any] = []

    def charge(self: Any, order: int) -> None:
        seen.append((self.request.get("reliable_slot"), self.request.get("tenant"), self.request.headers["trace"]))
        if self.attempt == 1:
            raise Transient("busy")

    task = task_of(app, charge)
    with in_memory(app) as bench:
        headers = {"reliable_slot": "noon", "tenant": "acme", "headers": {"trace": "t1"}}
        task.apply_async((12,), headers=headers)
        bench.drain_all()
    assert seen == [("noon", "acme", "t1")] * 2


def test_a_chain_goes_on(app: Celery, world: World) -> None:
    """Each step with the result of the one before."""

    def add(self: Any, x: int, y: int) -> int:
        world.charges.append(x + y)
        return x + y

    task = task_of(app, add)
    with in_memory(app) as bench:
        chain(task.s(1, 2), task.s(10)).apply_async()
        bench.drain_all()
    assert world.charges == [3, 13]


def test_arguments_that_cannot_travel_are_refused_as_they_would_be(app: Celery) -> None:
    """JSON on the way, on the bench too."""

    def charge(self: Any, order: Any) -> None:
        """Do nothing."""

    task = task_of(app, charge)
    with in_memory(app), pytest.raises(Exception, match="not JSON serializable"):
        task.delay(object())


def test_jobs_that_never_end_are_told(app: Celery) -> None:
    """A task that submits itself for ever."""

    def again(self: Any, number: int) -> None:
        self.delay(number + 1)

    task = task_of(app, again)
    with in_memory(app):
        task.delay(0)
        with pytest.raises(AssertionError, match="there are more"):
            drain_all()


def test_the_clock_stands_until_it_is_moved(app: Celery, world: World) -> None:
    """What is due runs; a retry waits for its delay, however long the test takes."""

    def charge(self: Any) -> None:
        world.charges.append(self.attempt)
        if self.attempt == 1:
            raise Transient("again", retry_after=60)

    task = task_of(app, charge)
    with in_memory(app) as bench:
        task.delay()
        bench.run_due()
        bench.elapse(59)
        bench.run_due()
        assert world.charges == [1]
        bench.elapse(600)
        bench.run_due()
        assert world.charges == [1, 2]


def test_what_is_due_and_never_ends_is_told(app: Celery) -> None:
    """As `drain_all` does."""

    def again(self: Any, number: int) -> None:
        self.delay(number + 1)

    task = task_of(app, again)
    with in_memory(app) as bench:
        task.delay(0)
        with pytest.raises(AssertionError, match="there are more"):
            bench.run_due()


def test_outside_a_bench_nothing_is_guessed() -> None:
    """The remedy is in the message."""
    with pytest.raises(ConfigurationError, match="with in_memory"):
        drain_all()


def test_the_app_is_as_before_after_the_block(app: Celery) -> None:
    """Store, sending and eager mode."""
    before = dict(vars(app))
    app.conf.task_always_eager = True
    with in_memory(app):
        assert not app.conf.task_always_eager
    assert app.conf.task_always_eager
    assert "send_task" not in vars(app)
    assert {name for name in vars(app) if name.startswith("_celery_reliable")} <= set(before)


def test_the_package_of_the_kit_imports_no_celery() -> None:
    """Its servers are used without."""
    code = "import sys, celery_reliable.testing; sys.exit('celery' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
