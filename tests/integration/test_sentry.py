"""What Sentry hears of: each final failure once, how each slot of the schedule ended, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery.beat import ScheduleEntry

from celery_reliable import Permanent
from celery_reliable.app_letters import letters_of
from celery_reliable.beat.facts import Reader
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import Desk
from celery_reliable.slots.records import SlotRecord
from tests.integration.apps.jobs import QUICK, client, letter
from tests.integration.beats import TTL
from tests.integration.sentry import Sentry
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from tests.integration.apps.stage import Stage
    from tests.integration.beats import Beats
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
    """Told when the job is given up, not at each lost process; so is the monitor, if it was a slot of the schedule."""
    task, *arguments = call
    with pytest.raises(Permanent):
        app.tasks[task].apply_async((label, *arguments), task_id=label, headers=slot_of(label)).get(timeout=DEADLINE)

    event = the_event(sentry, label)
    assert event["tags"]["reliable.reason"] == reason
    assert event["contexts"]["dead letter"]["deliveries"] == 2
    wait_until(lambda: "error" in statuses(sentry, label, 1), DEADLINE, "the end of the slot")
    assert statuses(sentry, label, 1).count("error") == 1  # what came before it may have died with its process


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


# --- monitors of the schedule


def slot_of(entry: str) -> dict[str, Any]:
    """Return the headers with which beat fires a slot."""
    slot = {"reliable_entry": entry, "reliable_slot": "2026-06-01T03:00:00+00:00"}
    return {**slot, "reliable_schedule": "0 5 * * * Europe/Berlin"}


def statuses(sentry: Sentry, entry: str, count: int) -> list[str]:
    """Return what the monitor of an entry was told, once it is so much; it is all about one slot."""
    wait_until(lambda: len(sentry.check_ins(entry)) >= count, DEADLINE, f"{count} check-ins of {entry}")
    found = sentry.check_ins(entry)
    assert len({one["check_in_id"] for one in found}) == 1
    return [one["status"] for one in found]


def test_a_slot_that_a_beat_fires_is_one_check_in(stage: Stage, sentry: Sentry, beats: Beats, label: str) -> None:
    """From the schedule to the monitor: real beats, of which one leads; ok once the retries are over."""
    entry = {"task": "flaky", "schedule": 60.0, "args": [label, 1]}
    scheduled = replace(stage, conf={**stage.conf, "beat_schedule": {label: entry}, "reliable_leader_ttl": TTL})
    _be_due(scheduled, label)
    for _ in range(2):
        beats.start(scheduled, app=APP, env={"CR_SENTRY_DSN": sentry.dsn})

    assert statuses(sentry, label, 2) == ["in_progress", "ok"]
    config = sentry.check_ins(label)[0]["monitor_config"]
    assert config["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert len(stage.entries(label)) == 2


def _be_due(stage: Stage, name: str) -> None:
    """Let the store know that an entry was last fired a minute ago."""
    with client(stage) as app:
        runtime = runtime_of(app)
        entry = ScheduleEntry(name=name, app=app, **app.conf.beat_schedule[name])
        facts = Reader(app=app, settings=runtime.settings, complain=print).facts_of(entry)
        desk = Desk(runtime.store.notes, now=runtime.store.now)
        desk.load(epoch=0)
        desk.amend(name, SlotRecord(facts.version, runtime.store.now() - 61_000_000))
        desk.flush()


def test_a_slot_that_fails_for_good_is_an_error(app: Celery, stage: Stage, sentry: Sentry, label: str) -> None:
    """Beside the event of its letter; a replay of that says nothing: the slot has ended."""
    app.tasks["hopeless"].apply_async((label,), task_id=label, headers=slot_of(label))
    assert statuses(sentry, label, 2) == ["in_progress", "error"]
    kept = letter(app, stage, label)
    assert the_event(sentry, label)["contexts"]["dead letter"]["id"] == kept.id

    again = letters_of(app).replay(kept.id, who="a test")
    the_event(sentry, again)  # sent after all that came before it
    assert statuses(sentry, label, 2) == ["in_progress", "error"]


def test_a_replay_begins_a_trace_of_its_own(app: Celery, stage: Stage, sentry: Sentry, label: str) -> None:
    """The old one ended with the letter."""
    app.tasks["hopeless"].apply_async((label,), task_id=label)
    kept = letter(app, stage, label)
    before = the_event(sentry, label)  # now, since the arguments of the next one name the label, too
    after = the_event(sentry, letters_of(app).replay(kept.id, who="a test"))
    assert before["contexts"]["trace"]["trace_id"] != after["contexts"]["trace"]["trace_id"]
