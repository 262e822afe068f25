"""Which calls are the same job, seen by what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery

import celery_reliable
from celery_reliable import DuplicateTask, PayloadMismatch
from tests.integration.apps.invoices import Invoice, with_invoices

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from tests.integration.apps.stage import Entry, Stage
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 20.0


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children, in an app whose `task_cls` makes every task reliable."""
    return module_workers.start("tests.integration.apps.invoices", concurrency=2, env=stage.environment())


@pytest.fixture(scope="module")
def bare(stage: Stage) -> Celery:
    """A process without task code and without celery_reliable."""
    return Celery("bare", broker=stage.broker, backend=stage.backend, set_as_current=False)


def settled(stage: Stage, app: Celery, label: str) -> list[Entry]:
    """Return the entries of a label after everything submitted before has run.

    Two messages later in the same queue have run, and nobody holds one: what was to come has come.
    """
    for _ in range(2):
        app.tasks["add"].delay(0, "settled").get(timeout=DEADLINE)
    stage.wait_no_message()
    return stage.entries(label)


def values(entries: list[Entry], name: str) -> list[Any]:
    """Return one fact of each entry."""
    return [entry[name] for entry in entries]


# --- declared keys


def test_calls_whose_template_gives_the_same_key_are_one_job(app: Celery, stage: Stage, label: str) -> None:
    """Five calls about one order run once and share the result; another order is another job."""
    order = app.tasks["order"]
    results = [order.delay(label, label) for _ in range(4)] + [order.delay(order_id=label, label=label)]

    assert {result.get(timeout=DEADLINE) for result in results} == {f"{label}:1"}
    assert len({result.id for result in results}) == 1
    assert values(settled(stage, app, label), "key") == [f"order:{label}"]

    order.delay(f"{label}2", label).get(timeout=DEADLINE)
    assert len(stage.entries(label)) == 2


def test_all_arguments_make_a_key_however_they_are_written(app: Celery, stage: Stage, label: str) -> None:
    """``f(1)``, ``f(x=1)`` and ``f(1, default)`` are one job, ``f(1, other)`` is not."""
    pair = app.tasks["pair"]
    same = [
        pair.delay(1, label=label),
        pair.delay(x=1, label=label),
        pair.delay(1, 2, label),
        pair.delay(1, y=2, label=label),
    ]
    other = pair.delay(1, 3, label=label)

    assert len({result.id for result in same}) == 1
    assert [same[0].get(timeout=DEADLINE), other.get(timeout=DEADLINE)] == [3, 4]
    assert sorted(values(settled(stage, app, label), "y")) == [2, 3]


def test_a_callable_makes_a_key(app: Celery, stage: Stage, label: str) -> None:
    """The rule may ignore what does not matter."""
    first, second = (app.tasks["customer"].delay(name, label) for name in (label.upper(), label))

    assert first.id == second.id
    first.get(timeout=DEADLINE)
    assert values(settled(stage, app, label), "key") == [f"customer:{label}"]


def test_a_key_given_with_the_call_overrides_the_task_s(app: Celery, stage: Stage, label: str) -> None:
    """Two calls of a task without a rule are one job, and two of a task with one are two."""
    add, order = app.tasks["add"], app.tasks["order"]
    same = [add.apply_async((1, label), idempotency_key=f"given:{label}") for _ in range(2)]
    other = [order.apply_async((label, label), idempotency_key=f"{label}:{n}") for n in range(2)]

    for result in same + other:
        result.get(timeout=DEADLINE)
    assert same[0].id == same[1].id
    keys = values(settled(stage, app, label), "key")
    assert sorted(keys) == sorted([f"given:{label}", f"{label}:0", f"{label}:1"])


def test_a_submission_without_a_key_is_a_job_of_its_own(app: Celery, stage: Stage, label: str) -> None:
    """Equal calls run as often as they are made; the key is the task id."""
    results = [app.tasks["add"].delay(1, label) for _ in range(3)]
    ids = {result.id for result in results}

    assert len(ids) == 3
    for result in results:
        result.get(timeout=DEADLINE)
    assert set(values(settled(stage, app, label), "key")) == ids


def test_a_task_id_submitted_twice_runs_once(app: Celery, stage: Stage, label: str) -> None:
    """The id is the identity: the second message finds the job done, or waits for it."""
    results = [app.tasks["add"].apply_async((1, label), task_id=f"id-{label}") for _ in range(2)]

    assert [result.get(timeout=DEADLINE) for result in results] == [2, 2]
    assert len(settled(stage, app, label)) == 1


# --- submissions inside a run or a scope


def test_a_parent_that_runs_again_after_a_retry_submits_the_same_children(
    app: Celery, stage: Stage, label: str
) -> None:
    """Three equal calls in a loop are three children, also when the parent ran three times."""
    assert app.tasks["parent"].delay(label, children=3, fails=2).get(timeout=DEADLINE) == 3

    children = settled(stage, app, f"{label}:child")
    assert len(stage.entries(label)) == 3
    assert len(children) == len(set(values(children, "task_id"))) == 3


def test_a_parent_that_runs_again_after_a_crash_submits_the_same_children(
    app: Celery, stage: Stage, label: str
) -> None:
    """The process was killed after it had submitted; the next run's children are the same."""
    stage.plan("body", label, "kill")
    assert app.tasks["parent"].delay(label, children=2).get(timeout=DEADLINE) == 1

    assert len(stage.entries(label)) == 2
    assert len(settled(stage, app, f"{label}:child")) == 2


def test_equal_children_before_and_after_a_checkpoint_are_two(app: Celery, stage: Stage, label: str) -> None:
    """A resumed parent, which skips what lies before its checkpoint, loses no child and doubles none."""
    app.tasks["staged_parent"].delay(label).get(timeout=DEADLINE)

    assert len(stage.entries(label)) == 2
    assert len(settled(stage, app, f"{label}:child")) == 2


def test_a_scope_entered_twice_submits_the_same_jobs(app: Celery, stage: Stage, label: str) -> None:
    """A repeated web request gets the ids of the first; another request gets its own."""

    def handle(request: str) -> list[AsyncResult[Any]]:
        with celery_reliable.scope(request):
            return [app.tasks["add"].delay(1, label) for _ in range(2)]

    first, again, other = handle(f"{label}-1"), handle(f"{label}-1"), handle(f"{label}-2")
    for result in first + again + other:
        assert result.get(timeout=DEADLINE) == 2

    assert [one.id for one in first] == [one.id for one in again]
    assert len(settled(stage, app, label)) == 4


# --- other ways to send and to write a task


def test_a_declared_key_holds_for_messages_from_a_process_without_task_code(
    app: Celery, bare: Celery, stage: Stage, label: str
) -> None:
    """Two messages are published, the claim finds their key: one runs, both have the result."""
    results = [bare.send_task("order", (label, label)) for _ in range(2)]

    assert [result.get(timeout=DEADLINE) for result in results] == [f"{label}:1"] * 2
    assert results[0].id != results[1].id
    assert values(settled(stage, app, label), "key") == [f"order:{label}"]


def test_a_message_from_a_process_without_task_code_is_a_job_of_its_own(
    app: Celery, bare: Celery, stage: Stage, label: str
) -> None:
    """Without a key it runs once for each id, however often that is sent."""
    results = [bare.send_task("add", (1, label), task_id=f"{label}-{n}") for n in (1, 1, 2)]

    assert [result.get(timeout=DEADLINE) for result in results] == [2, 2, 2]
    assert sorted(values(settled(stage, app, label), "key")) == [f"{label}-1", f"{label}-2"]


def test_an_app_s_task_class_makes_every_task_reliable(app: Celery, stage: Stage, label: str) -> None:
    """A task that names no base class runs under a claim: the worker of this module has ``task_cls`` alone."""
    app.tasks["unbound"].delay(label).get(timeout=DEADLINE)

    (entry,) = stage.entries(label)
    assert entry["fence"] > 0
    assert stage.events("done", entry["task_id"])


def test_a_task_written_as_a_class_has_a_key(app: Celery, stage: Stage, label: str) -> None:
    """Its rule is a class attribute; in a run the same name is the job's key."""
    results = [app.tasks["tally"].delay(label, label=label) for _ in range(2)]

    assert [result.get(timeout=DEADLINE) for result in results] == [label, label]
    assert values(settled(stage, app, label), "key") == [f"tally:{label}"]


def test_a_task_that_takes_models_is_one_job_for_equal_models(app: Celery, stage: Stage, label: str) -> None:
    """A model and the dictionary it was made of are the same argument, defaults included."""
    settle = with_invoices(app).tasks["settle"]
    results = [settle.delay(Invoice(number=7), label), settle.delay({"number": 7, "total": 1.0}, label=label)]

    assert [result.get(timeout=DEADLINE) for result in results] == [{"number": 7, "paid": True}] * 2
    assert results[0].id == results[1].id
    assert values(settled(stage, app, label), "number") == [7]


# --- replaced by another task


def test_a_task_replaced_in_its_body_ends_in_the_replacement(app: Celery, stage: Stage, label: str) -> None:
    """The replacement runs once under the same task id, and what was chained goes on with its result."""
    chained = (app.tasks["swap"].s(label) | app.tasks["add"].s(f"{label}:next", 100)).apply_async()

    assert chained.get(timeout=DEADLINE) == 111
    new = settled(stage, app, f"{label}:new")
    assert [len(stage.entries(label)), len(new), len(stage.entries(f"{label}:next"))] == [1, 1, 1]
    assert new[0]["task_id"] == stage.entries(label)[0]["task_id"]
    assert new[0]["key"] != stage.entries(label)[0]["key"]


@pytest.mark.parametrize("moment", ["body", "postrun"])
def test_a_replacement_runs_once_when_its_predecessor_was_killed(
    app: Celery, stage: Stage, label: str, moment: str
) -> None:
    """Killed with the replacement published, or with everything done but the ack."""
    stage.plan(moment, label, "kill")
    result = app.tasks["swap"].apply_async((label,), task_id=label)
    stage.wait_met(moment, label)

    assert result.get(timeout=DEADLINE) == 11
    assert len(settled(stage, app, f"{label}:new")) == 1
    runs = 2 if moment == "body" else 1
    assert len(stage.wait_entries(label, runs)) == runs  # the second may come after the replacement


def test_a_replacement_that_waits_is_in_the_ledger(app: Celery, stage: Stage, label: str) -> None:
    """The end of the replaced task must not take the entry of the one that has its id."""
    from celery_reliable.runtime import runtime_of  # noqa: PLC0415

    result = app.tasks["swap_away"].delay(label, queue=f"nobody-{label}")
    stage.wait_entries(label, 1)
    settled(stage, app, label)

    assert result.id in dict(runtime_of(app).store.ledger())


# --- on_conflict, and other arguments


def test_a_key_that_is_taken_may_be_refused(app: Celery, stage: Stage, label: str) -> None:
    """``on_conflict="raise"``: the error names the job that has the key, while it waits and when it is done."""
    task, queue = app.tasks["order_refused"], f"queue-{label}"
    first = task.apply_async((label, label), queue=queue)
    with pytest.raises(DuplicateTask, match="waiting") as waits:
        task.apply_async((label, label), queue=queue)
    app.control.add_consumer(queue, reply=True)
    first.get(timeout=DEADLINE)
    with pytest.raises(DuplicateTask, match="done") as done:
        task.apply_async((label, label), queue=queue)

    assert waits.value.existing_id == done.value.existing_id == first.id
    assert len(settled(stage, app, label)) == 1


def test_the_newest_arguments_replace_those_of_a_job_that_waits(app: Celery, stage: Stage, label: str) -> None:
    """``on_conflict="replace"``: it runs once, with what was submitted last; after that the key is taken."""
    task, queue = app.tasks["order_newest"], f"queue-{label}"
    results = [task.apply_async((label, label), {"amount": amount}, queue=queue) for amount in (1, 2, 3)]
    app.control.add_consumer(queue, reply=True)

    assert {result.get(timeout=DEADLINE) for result in results} == {f"{label}:3"}
    assert len({result.id for result in results}) == 1
    assert values(settled(stage, app, label), "amount") == [3]
    with pytest.raises(DuplicateTask):
        task.apply_async((label, label), {"amount": 4}, queue=queue)


def test_a_key_with_other_arguments_is_refused(app: Celery, stage: Stage, label: str) -> None:
    """Nothing is published, and the error names the job that has the key."""
    first = app.tasks["order"].delay(label, label, amount=1)
    with pytest.raises(PayloadMismatch, match="other arguments") as refused:
        app.tasks["order"].delay(label, label, amount=2)

    first.get(timeout=DEADLINE)
    assert refused.value.existing_id == first.id
    assert values(settled(stage, app, label), "amount") == [1]


def test_a_message_with_other_arguments_does_not_run(app: Celery, bare: Celery, stage: Stage, label: str) -> None:
    """Where submit could not refuse, the claim does: the message becomes a letter, the job is left alone."""
    first = app.tasks["order"].delay(label, label, amount=1)
    first.get(timeout=DEADLINE)
    second = bare.send_task("order", (label, label), {"amount": 2})

    with pytest.raises(PayloadMismatch, match="did not run"):
        second.get(timeout=DEADLINE)
    assert values(settled(stage, app, label), "amount") == [1]
    (buried,) = stage.events("buried", second.id)
    assert buried["reason"] == "mismatch"


# --- after the end


def test_a_done_job_gives_its_result_again_when_the_backend_has_forgotten_it(
    app: Celery, stage: Stage, label: str
) -> None:
    """The kept outcome goes back to the backend before the caller gets the existing id."""
    first = app.tasks["order"].delay(label, label)
    first.get(timeout=DEADLINE)
    settled(stage, app, label)
    with redis.Redis.from_url(stage.backend) as backend:
        backend.flushdb()

    again = app.tasks["order"].delay(label, label)
    assert again.id == first.id
    assert again.get(timeout=DEADLINE) == f"{label}:1"
    assert len(stage.entries(label)) == 1
