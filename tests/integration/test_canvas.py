"""Chains, chords, groups and callbacks of reliable tasks, when nothing goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import chain, chord, group

from celery_reliable import Permanent
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 20.0


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two pool children."""
    return module_workers.start(
        "tests.integration.apps.worker", concurrency=2, env=stage.environment(), arguments=QUICK
    )


def test_a_chain_hands_each_result_on(app: Celery, stage: Stage, label: str) -> None:
    """Each step runs once, with the result of the one before."""
    add = app.tasks["add"]
    assert chain(add.s(1, label), add.s(label, 10), add.s(label, 100)).apply_async().get(timeout=DEADLINE) == 112
    assert [entry["x"] for entry in stage.entries(label)] == [1, 2, 12]


def test_a_chord_hands_all_results_to_its_body(app: Celery, stage: Stage, label: str) -> None:
    """The body runs once, after the last member."""
    add, gather = app.tasks["add"], app.tasks["gather"]
    result = chord([add.s(number, label) for number in range(5)], gather.s(f"{label}:body")).apply_async()

    assert result.get(timeout=DEADLINE) == 15
    assert len(stage.entries(label)) == 5
    assert len(stage.entries(f"{label}:body")) == 1


def test_a_chord_in_a_chain_goes_on(app: Celery, stage: Stage, label: str) -> None:
    """A group that is followed by a task becomes a chord; the task after its body gets the body's result."""
    add, gather = app.tasks["add"], app.tasks["gather"]
    result = chain(
        add.s(1, label), group(add.s(label, 10), add.s(label, 20)), gather.s(label), add.s(label, 100)
    ).apply_async()

    assert result.get(timeout=DEADLINE) == 134
    assert len(stage.entries(label)) == 5


def test_a_group_gives_every_result(app: Celery, stage: Stage, label: str) -> None:
    """Members are jobs of their own."""
    result = group(app.tasks["add"].s(number, label) for number in range(4)).apply_async()

    assert result.get(timeout=DEADLINE) == [1, 2, 3, 4]
    assert len(stage.entries(label)) == 4


def test_a_callback_runs_once_with_the_result(app: Celery, stage: Stage, label: str) -> None:
    """Every ``link`` is sent, a group too."""
    add = app.tasks["add"]
    links = [add.s(f"{label}:one", 10), group(add.s(f"{label}:two", 20), add.s(f"{label}:three", 30))]
    add.apply_async((1, label), link=links).get(timeout=DEADLINE)

    sums = [stage.wait_entries(f"{label}:{name}", 1)[0] for name in ("one", "two", "three")]
    assert [(entry["x"], entry["y"]) for entry in sums] == [(2, 10), (2, 20), (2, 30)]


def test_members_that_share_a_declared_key_are_one_job_and_all_report(app: Celery, stage: Stage, label: str) -> None:
    """A duplicate that carries a chord is published; it ends with the same outcome, so its chord goes on."""
    order = app.tasks["order"]
    result = chord([order.s(label, label) for _ in range(3)], app.tasks["unbound"].s()).apply_async()

    assert result.get(timeout=DEADLINE) == [f"{label}:1"] * 3
    assert len(stage.entries(label)) == 1


def test_a_failed_member_fails_its_chord_once(app: Celery, stage: Stage, label: str) -> None:
    """The body does not run; its result is the failure."""
    add, gather = app.tasks["add"], app.tasks["gather"]
    body = gather.s(f"{label}:body")
    result = chord([add.s(1, label), app.tasks["hopeless"].s(label)], body).apply_async()

    with pytest.raises(Exception, match="never"):
        result.get(timeout=DEADLINE)
    assert stage.entries(f"{label}:body") == []


def test_a_failed_step_ends_its_chain(app: Celery, stage: Stage, label: str) -> None:
    """What comes after does not run, and the chain's result is the failure."""
    add = app.tasks["add"]
    result = chain(app.tasks["hopeless"].si(label), add.si(1, f"{label}:next")).apply_async()

    with pytest.raises(Permanent):
        result.parent.get(timeout=DEADLINE)
    with pytest.raises(Permanent):
        result.get(timeout=DEADLINE)
    assert stage.entries(f"{label}:next") == []


def test_a_retried_step_sends_the_next_one_once(app: Celery, stage: Stage, label: str) -> None:
    """What is chained travels with the retry's message, and is sent by the attempt that succeeds."""
    flaky, add = app.tasks["flaky"], app.tasks["add"]
    result = chain(flaky.s(label, fails=2), add.s(f"{label}:next", 10)).apply_async()

    assert result.get(timeout=DEADLINE) == 13
    assert len(stage.entries(label)) == 3
    assert len(stage.entries(f"{label}:next")) == 1


def test_a_retried_member_counts_once_for_its_chord(app: Celery, stage: Stage, label: str) -> None:
    """The body waits for the attempt that succeeds."""
    flaky, gather = app.tasks["flaky"], app.tasks["gather"]
    result = chord([flaky.s(label, fails=1), flaky.s(label, fails=0)], gather.s(f"{label}:body")).apply_async()

    assert result.get(timeout=DEADLINE) == 3
    assert [entry["numbers"] for entry in stage.entries(f"{label}:body")] == [[2, 1]]


def test_a_chord_waits_for_its_members_on_a_backend_that_cannot_count(
    stage: Stage, workers: Workers, tmp_path: Path, label: str
) -> None:
    """Celery's task that asks whether the members are done is one of ours by ``task_cls``, and asks as long as it takes."""
    (tmp_path / "results").mkdir()
    broker, store = (f"{stage.broker[:-2]}/{database}" for database in (6, 7))
    conf = {"result_chord_retry_interval": 0.1}
    stage = Stage(tmp_path, broker=broker, backend=f"file://{tmp_path}/results", store=store, conf=conf)
    workers.start(
        "tests.integration.apps.worker",
        concurrency=2,
        env={**stage.environment(), "CR_TASK_CLS": "1"},
        arguments=QUICK,
    )
    with client(stage, task_cls=True) as app:
        add, gather, held = app.tasks["add"], app.tasks["gather"], app.tasks["held"]
        result = chord([add.s(1, label), held.s(label, gate=label, result=10)], gather.s(f"{label}:body")).apply_async()
        wait_until(lambda: len(stage.events("retried")) > 7, DEADLINE, "more retries than other tasks have")
        stage.open(label)

        assert result.get(timeout=DEADLINE) == 12
        assert {event["task"] for event in stage.events("retried")} == {"celery.chord_unlock"}


def test_a_failure_is_told_once_at_the_end(app: Celery, stage: Stage, label: str) -> None:
    """``link_error`` fires after the last attempt, not after each; both of Celery's kinds of errback."""
    errors = [app.tasks["told"].s(), app.tasks["informed"].s()]
    result = app.tasks["twice"].apply_async((label, 5), link_error=errors)

    with pytest.raises(Exception, match="again"):
        result.get(timeout=DEADLINE)
    stage.wait_entries(f"told:{result.id}", 1)
    stage.wait_entries(f"informed:{result.id}", 1)
    assert len(stage.entries(label)) == 2
    assert len(stage.entries(f"told:{result.id}")) == 1
    assert [entry["error"] for entry in stage.entries(f"informed:{result.id}")] == ["Transient"]
