"""Tasks that run where they are called: without a worker, and without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery, chain

from celery_reliable import Permanent, Snooze, StoreUnavailable, Transient
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.provoking import hold_closed_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Broker, backend and store where nobody listens."""
    with hold_closed_port() as port:
        nowhere = f"redis://127.0.0.1:{port}/0"
        yield Stage(tmp_path, broker="memory://", backend="cache+memory://", store=nowhere)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """An app in eager mode. With ``task_eager_propagates`` Celery (5.7) raises the first Retry instead of retrying."""
    with client(stage, task_always_eager=True) as app:
        yield app


def attempts(stage: Stage, label: str) -> list[int]:
    """Return the number of each run's attempt."""
    return [entry["attempt"] for entry in stage.entries(label)]


def test_the_store_is_really_away(stage: Stage, label: str) -> None:
    """What the other tests rest on: a submission that is not eager fails."""
    with client(stage) as app, pytest.raises(StoreUnavailable):
        app.tasks["order"].delay(label, label)


# --- called as a function


def test_a_direct_call_runs_the_plain_body(app: Celery, stage: Stage, label: str) -> None:
    """No claim, no key, no dedup: twice is twice."""
    order = app.tasks["order"]

    assert [order(label, label), order(label, label)] == [f"{label}:1"] * 2
    assert [entry["fence"] for entry in stage.entries(label)] == [0, 0]
    assert stage.events("claimed") == []


def test_an_error_of_a_direct_call_is_the_caller_s(app: Celery, stage: Stage, label: str) -> None:
    """No verdict: a transient error is raised as it is, once."""
    with pytest.raises(Transient, match="again"):
        app.tasks["flaky"](label, 1)
    assert attempts(stage, label) == [1]


def test_a_direct_call_has_no_saved_progress(app: Celery, stage: Stage, label: str) -> None:
    """``load`` gives the default, ``save`` keeps nothing, and the body goes on."""
    with pytest.raises(Transient):
        app.tasks["staged_parent"](label)
    assert len(stage.entries(label)) == 1
    assert len(stage.entries(f"{label}:child")) == 2


# --- eager


def test_an_eager_call_gives_its_result(app: Celery, stage: Stage, label: str) -> None:
    """``delay``, ``apply_async`` and ``apply``, with a key and without; keys do not dedup there."""
    order = app.tasks["order"]
    results = [order.delay(label, label), order.apply_async((label, label)), order.apply((label, label))]

    assert [result.get() for result in results] == [f"{label}:1"] * 3
    assert len(stage.entries(label)) == 3


def test_apply_is_eager_in_any_app(stage: Stage, label: str) -> None:
    """Without ``task_always_eager`` too."""
    with client(stage) as app:
        assert app.tasks["add"].apply((1, label)).get() == 2
    assert len(stage.entries(label)) == 1


def test_an_eager_retry_follows_at_once(app: Celery, stage: Stage, label: str) -> None:
    """Attempts count as in a worker."""
    assert app.tasks["flaky"].delay(label, 2).get() == 3
    assert attempts(stage, label) == [1, 2, 3]


def test_eager_retries_end(app: Celery, stage: Stage, label: str) -> None:
    """``max_retries=1``: the second attempt's error is the caller's."""
    with pytest.raises(Transient, match="again"):
        app.tasks["twice"].delay(label, 9).get()
    assert attempts(stage, label) == [1, 2]


def test_an_eager_permanent_error_is_raised_at_once(app: Celery, stage: Stage, label: str) -> None:
    """One attempt, the task's own error."""
    with pytest.raises(Permanent, match="never"):
        app.tasks["hopeless"].delay(label).get()
    assert attempts(stage, label) == [1]


def test_an_eager_snooze_runs_again_and_spends_no_attempt(app: Celery, stage: Stage, label: str) -> None:
    """The task allows no retries and may snooze three times all the same."""
    assert app.tasks["later"].delay(label, 3).get() == 1
    assert attempts(stage, label) == [1, 1, 1, 1]


def test_eager_snoozes_end(stage: Stage, label: str) -> None:
    """``max_snoozes``: the next one is the task's error."""
    with client(stage, task_always_eager=True, reliable_max_snoozes=2) as app, pytest.raises(Snooze):
        app.tasks["later"].delay(label, 99).get()
    assert attempts(stage, label) == [1, 1, 1]


def test_an_eager_self_retry_obeys_its_limit(app: Celery, stage: Stage, label: str) -> None:
    """Celery's way to ask, with its own limit."""
    with pytest.raises(LookupError, match="not yet"):
        app.tasks["asking"].delay(label, 9, max_retries=1, countdown=0).get()
    assert attempts(stage, label) == [1, 2]


def test_an_eager_autoretry_obeys_its_limit(app: Celery, stage: Stage, label: str) -> None:
    """``autoretry_for`` with ``max_retries`` 2."""
    with pytest.raises(ZeroDivisionError):
        app.tasks["auto"].delay(label, 9).get()
    assert attempts(stage, label) == [1, 2, 3]


def test_an_eager_chain_and_callback_go_on(app: Celery, stage: Stage, label: str) -> None:
    """Canvas runs in place."""
    add = app.tasks["add"]
    assert chain(add.s(1, label), add.s(label, 10)).apply_async().get() == 12
    add.apply_async((1, label), link=add.s(f"{label}:link", 5))
    assert [entry["x"] for entry in stage.entries(f"{label}:link")] == [2]


def test_an_eager_failure_is_told(app: Celery, stage: Stage, label: str) -> None:
    """Once, after the last attempt."""
    with pytest.raises(Transient):
        app.tasks["twice"].apply_async((label, 9), task_id=label, link_error=app.tasks["told"].s()).get()
    assert len(stage.entries(f"told:{label}")) == 1
