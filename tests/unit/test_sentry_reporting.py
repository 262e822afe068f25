"""What Sentry is told of a job: one event at its end, if that is bad, and breadcrumbs of the way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sentry_sdk
from celery import Celery
from sentry_sdk.integrations.celery import CeleryIntegration

from celery_reliable import Draining, Permanent, ReliableTask, Snooze, Transient
from celery_reliable.contrib.sentry import report
from celery_reliable.testing import Bench, in_memory
from tests.unit.sentry_wire import listening

KEY = "order:ann@example.org"


def ran(body: Callable[[Any], Any], *, twice: bool = False, letter_url: str | None = None, **options: Any) -> Bench:
    """Run a task with this body to its end; ``twice``: its message is delivered once more."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"
    app.conf.reliable_letter_url = letter_url
    app.task(body, base=ReliableTask, bind=True, name="job", shared=False, **options)
    with in_memory(app, hooks=(report,)) as bench:
        app.tasks["job"].apply_async(idempotency_key=KEY)
        (message,) = bench.submitted
        bench.drain_all()
        if twice:
            bench.deliver(message)
    return bench


def first_then(*raised: BaseException) -> Callable[[Any], None]:
    """Make a body that raises these, one a run, and then succeeds."""
    left = list(raised)

    def body(task: Any) -> None:
        if left:
            raise left.pop(0)

    return body


@pytest.mark.parametrize(
    "raised",
    [[Transient("later")] * 2, [Snooze(30)], [Draining()], []],
    ids=["retried", "snoozed", "drained", "delivered twice"],
)
def test_what_is_no_final_failure_is_no_event(raised: list[BaseException]) -> None:
    """However often it was interrupted, put off, or delivered."""
    with listening() as sentry:
        ran(first_then(*raised), twice=True)
    assert sentry.items == []


def test_final_failure_is_one_event_with_all_that_is_known() -> None:
    """Its way is told in breadcrumbs; a message that comes again reports under the same id."""
    with listening() as sentry:
        ran(first_then(Snooze(30), Transient("later"), Draining(), Permanent("never")), twice=True)
    event, again = sentry.events
    assert event["event_id"] == again["event_id"]
    told = event["contexts"]["dead letter"]
    assert (told["reason"], told["attempts"], told["deliveries"]) == ("permanent", 2, 1)
    assert told["show"].endswith(f"reliable dlq show {told['id']}")
    assert told["replay"].endswith(f"reliable dlq replay {told['id']}")
    assert event["fingerprint"][0] == "celery_reliable"
    crumbs = [crumb for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "celery_reliable"]
    way = [
        crumb["data"]["event"] for crumb in crumbs if crumb["data"]["event"] in {"snoozed", "retried", "interrupted"}
    ]
    assert way == ["snoozed", "retried", "interrupted"]


def test_event_links_to_the_letter_s_page() -> None:
    """Where the project has one."""
    with listening() as sentry:
        ran(first_then(Permanent("never")), letter_url="https://shop.example/letters/{letter_id}/")
    told = sentry.events[0]["contexts"]["dead letter"]
    assert told["link"] == f"https://shop.example/letters/{told['id']}/"


def test_a_thousand_saves_do_not_drive_out_what_happened_on_the_way() -> None:
    """Sentry keeps a hundred breadcrumbs."""

    def export(task: Any) -> None:
        if not task.request.retries:
            raise Transient("later")
        for row in range(150):
            task.checkpoint.save(row)
        raise Permanent("never")

    with listening() as sentry:
        ran(export)
    [event] = sentry.events
    assert "retried" in {crumb["data"].get("event") for crumb in event["breadcrumbs"]["values"]}


def test_failure_that_sentry_captures_itself_gets_the_letter_s_facts() -> None:
    """Its own wrapper of tasks has the exception; a second event would be one too many."""
    with listening(integrations=[CeleryIntegration()]) as sentry:
        bench = ran(first_then(Permanent("never")))
        assert sentry.events == []
        sentry_sdk.capture_exception(bench.failures[0])  # as the wrapper does once the hook has returned
    [event] = sentry.events
    assert event["exception"]["values"][-1]["type"] == "Permanent"
    assert event["contexts"]["dead letter"]["reason"] == "permanent"


@pytest.mark.parametrize("pii", [False, True])
def test_key_is_told_only_where_personal_data_may_be(*, pii: bool) -> None:
    """In the event as in its breadcrumbs."""
    with listening(send_default_pii=pii) as sentry:
        ran(first_then(Transient("later"), Permanent("never")))
    [event] = sentry.events
    told = {event["contexts"]["dead letter"]["key"], *(one["data"]["key"] for one in event["breadcrumbs"]["values"])}
    assert len(told) == 1
    assert (told == {KEY}) is pii
    assert (KEY in str(event)) is pii
