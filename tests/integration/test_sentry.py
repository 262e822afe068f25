"""What Sentry hears of: each final failure once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable import Permanent
from tests.integration.apps.jobs import QUICK, letter
from tests.integration.sentry import Sentry
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.watched"
DEADLINE = 20.0


@pytest.fixture(scope="module")
def sentry() -> Iterator[Sentry]:
    """A server that keeps what it is sent."""
    server = Sentry()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module", autouse=True)
def worker(sentry: Sentry, stage: Stage, module_workers: Workers) -> Worker:
    """One pool child, watched."""
    return module_workers.start(APP, env={**stage.environment(), "CR_SENTRY_DSN": sentry.dsn}, arguments=QUICK)


def the_event(sentry: Sentry, task_id: str) -> dict[str, Any]:
    """Return the only event about a task, once it is there."""
    wait_until(lambda: sentry.events(task_id), DEADLINE, f"an event about {task_id}")
    found = sentry.events(task_id)
    assert len(found) == 1, [
        (one.get("logger"), one.get("message"), one.get("logentry"), one.get("exception")) for one in found
    ]
    return found[0]


def test_a_final_failure_is_one_event_with_the_letter_s_facts(
    app: Celery, stage: Stage, sentry: Sentry, label: str
) -> None:
    """After two retries: no event for these, one for the end, grouped as the letter is, its key hashed."""
    with pytest.raises(ZeroDivisionError):
        app.tasks["auto"].apply_async((label, 99), task_id=label).get(timeout=DEADLINE)

    kept, event = letter(app, stage, label), the_event(sentry, label)
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["fingerprint"] == ["celery_reliable", kept.error_fingerprint]
    assert event["tags"]["reliable.reason"] == "exhausted"
    told = event["contexts"]["dead letter"]
    assert [told["id"], told["attempts"], told["task_id"]] == [kept.id, 3, label]
    assert told["key"] not in ("", label)
    assert len(stage.events("retried", label)) == 2


def test_failures_that_are_not_final_are_no_events(app: Celery, sentry: Sentry, stage: Stage, label: str) -> None:
    """Retried, snoozed, waited for: they are steps on the way, found as breadcrumbs of what comes after."""
    flaky = app.tasks["flaky"].apply_async((f"{label}-flaky", 2), task_id=f"{label}-flaky")
    later = app.tasks["later"].apply_async((f"{label}-later", 2), task_id=f"{label}-later")
    flaky.get(timeout=DEADLINE)
    later.get(timeout=DEADLINE)
    with pytest.raises(Permanent):
        app.tasks["hopeless"].apply_async((f"{label}-end",), task_id=f"{label}-end").get(timeout=DEADLINE)

    the_event(sentry, f"{label}-end")  # sent after all that came before it
    assert [sentry.events(f"{label}-flaky"), sentry.events(f"{label}-later")] == [[], []]
    assert len(stage.events("retried", f"{label}-flaky")) == 2


@pytest.mark.parametrize(("call", "reason"), [(("suicidal", 99), "poison"), (("endless",), "time_limit")])
def test_a_death_that_only_the_parent_sees_is_one_event(
    app: Celery, sentry: Sentry, label: str, call: tuple[Any, ...], reason: str
) -> None:
    """Told when the job is given up, not at each lost process."""
    task, *arguments = call
    with pytest.raises(Permanent):
        app.tasks[task].apply_async((label, *arguments), task_id=label).get(timeout=DEADLINE)

    event = the_event(sentry, label)
    assert event["tags"]["reliable.reason"] == reason
    assert event["contexts"]["dead letter"]["deliveries"] == 2


def test_a_worker_killed_between_report_and_ack_adds_no_event(
    app: Celery, stage: Stage, sentry: Sentry, label: str, worker: Worker
) -> None:
    """Its successor reports again, under the same id."""
    stage.plan("postrun", label, "block")
    app.tasks["hopeless"].apply_async((label,), task_id=label)
    wait_until(lambda: sentry.sent(label), DEADLINE, "the first report")
    stage.wait_met("postrun", label)
    worker.kill_child()

    wait_until(lambda: len(sentry.sent(label)) == 2, DEADLINE, "the second report")
    event = the_event(sentry, label)
    assert event["contexts"]["dead letter"]["id"] == stage.events("buried", label)[0]["letter_id"]
    assert len(stage.events("reported_again", label)) == 1


def test_a_trace_goes_on_through_a_retry(app: Celery, sentry: Sentry, label: str) -> None:
    """All runs of a job are one trace."""
    app.tasks["flaky"].apply_async((label, 2), task_id=label).get(timeout=DEADLINE)
    wait_until(lambda: len(sentry.transactions(label)) >= 3, DEADLINE, "three traced runs")
    traces = {run["contexts"]["trace"]["trace_id"] for run in sentry.transactions(label)}
    assert len(traces) == 1
