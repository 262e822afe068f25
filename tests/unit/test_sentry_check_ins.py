"""What a Sentry monitor hears of the slots of a schedule: when one begins, and how it ended for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sentry_sdk
from celery import Celery
from celery.exceptions import Ignore
from celery.schedules import crontab, schedule, solar
from sentry_sdk.integrations.celery import CeleryIntegration

from celery_reliable import ReliableTask, Snooze, Transient
from celery_reliable.beat.schedules import sequence_of
from celery_reliable.checks import configuration_findings
from celery_reliable.contrib.sentry import check_in
from celery_reliable.contrib.sentry.check_ins import longest, schedule_of, slug_of
from celery_reliable.errors import ProcessKilled
from celery_reliable.overlap import Claimant
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.testing import Bench, in_memory
from tests.unit.beating import Fleet, every
from tests.unit.sentry_wire import Heard, listening

SLOT = "2026-06-01T03:00:00+00:00"
NIGHTLY = {"reliable_entry": "Nightly: import", "reliable_slot": SLOT, "reliable_schedule": "0 5 * * * Europe/Berlin"}


@pytest.fixture
def sentry() -> Iterator[Heard]:
    """A real sentry-sdk whose envelopes stay here."""
    with listening() as heard:
        yield heard


def make_app(body: Callable[[Any], Any], **options: Any) -> Celery:
    """Return an app with a task ``job``."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"
    app.task(body, base=ReliableTask, bind=True, name="job", shared=False, **options)
    return app


def ran(body: Callable[[Any], Any], *, headers: dict[str, Any] | None = None, **options: Any) -> Bench:
    """Fire a slot whose task has this body, and run whatever that leads to."""
    app = make_app(body, **options)
    with in_memory(app, hooks=(check_in,)) as bench:
        app.tasks["job"].apply_async(headers=NIGHTLY if headers is None else headers)
        bench.drain_all()
    return bench


def succeed(_: Any) -> int:
    """End well."""
    return 1


# --- how a slot ends


def test_slot_that_runs_well_is_one_check_in(sentry: Heard) -> None:
    """In progress from its run on, then ok, under one id, at the entry's monitor."""
    ran(succeed, time_limit=90, max_retries=1, retry_backoff=10)
    begun, done = sentry.check_ins
    assert sentry.statuses == ["in_progress", "ok"]
    assert begun["check_in_id"] == done["check_in_id"]
    assert begun["monitor_slug"] == "nightly-import"
    assert begun["release"] == "shop@1"
    assert (
        begun["monitor_config"]
        == done["monitor_config"]
        == {
            "schedule": {"type": "crontab", "value": "0 5 * * *"},
            "timezone": "Europe/Berlin",
            "checkin_margin": 5,
            "max_runtime": 4,  # two runs of 90 seconds, and 10 between them
        }
    )


def test_slot_that_succeeds_after_retries_is_ok(sentry: Heard) -> None:
    """What is tried again has not failed: nothing is told of the way."""

    def flaky(task: Any) -> None:
        if task.attempt < 3:
            raise Transient("not yet")

    ran(flaky)
    assert sentry.statuses == ["in_progress", "ok"]


def test_slot_that_fails_for_good_is_an_error(sentry: Heard) -> None:
    """Once all retries are spent."""

    def hopeless(task: Any) -> None:
        raise Transient("never")

    ran(hopeless, max_retries=2)
    assert sentry.statuses == ["in_progress", "error"]


def test_slot_that_snoozes_begins_once(sentry: Heard) -> None:
    """It goes on later, with no attempt spent."""

    def waits(task: Any) -> None:
        if not runs:
            runs.append(1)
            raise Snooze(30)

    runs: list[int] = []
    ran(waits)
    assert sentry.statuses == ["in_progress", "ok"]


def test_slot_whose_first_run_was_killed_says_again_that_it_is_in_progress(sentry: Heard) -> None:
    """A killed process takes with it what it has not sent; said twice is one check-in."""

    def killed_once(task: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ProcessKilled

    runs: list[int] = []
    ran(killed_once)
    assert sentry.statuses == ["in_progress", "in_progress", "ok"]
    assert len({one["check_in_id"] for one in sentry.check_ins}) == 1


def test_slot_that_ends_without_a_result_is_ok(sentry: Heard) -> None:
    """``raise Ignore()`` is an end, and not a bad one."""

    def ignored(task: Any) -> None:
        raise Ignore

    ran(ignored)
    assert sentry.statuses == ["in_progress", "ok"]


def test_second_message_of_a_slot_is_the_same_check_in(sentry: Heard) -> None:
    """Its worker may have died between the end and the word of it."""
    app = make_app(succeed)
    with in_memory(app, hooks=(check_in,)) as bench:
        app.tasks["job"].apply_async(headers=NIGHTLY)
        (message,) = bench.submitted
        bench.drain_all()
        bench.deliver(message)
    assert sentry.statuses == ["in_progress", "ok", "ok"]
    assert len({one["check_in_id"] for one in sentry.check_ins}) == 1


def test_slot_that_may_not_overlap_ends_its_own_check_in(sentry: Heard) -> None:
    """As the worker finds out: skipped is ok, and the slot that runs still is not touched."""
    app = make_app(succeed, overlap="forbid")
    with in_memory(app, hooks=(check_in,)) as bench:
        app.tasks["job"].apply_async(headers=NIGHTLY)
        runtime_of(app).rights.enter(Claimant("job", Job("held"), "held", ttl=60.0), policy="forbid", has_run=False)
        bench.drain_all()
    assert sentry.statuses == ["ok"]


def test_submission_that_a_slot_makes_and_that_is_skipped_is_not_the_slot_s_end(sentry: Heard) -> None:
    """A child's fate is its own."""

    def parent(task: Any) -> None:
        task.app.tasks["child"].delay()
        told.append(list(sentry.statuses))

    told: list[list[str]] = []
    app = make_app(parent)
    app.task(succeed, base=ReliableTask, bind=True, name="child", shared=False, overlap="forbid")
    with in_memory(app, hooks=(check_in,)) as bench:
        runtime_of(app).rights.enter(Claimant("child", Job("held"), "held", ttl=60.0), policy="forbid", has_run=False)
        app.tasks["job"].apply_async(headers=NIGHTLY)
        bench.drain_all()
    assert told == [["in_progress"]]


@pytest.mark.parametrize(
    "headers",
    [{}, {**NIGHTLY, "reliable_slot": None}, {name: NIGHTLY[name] for name in ("reliable_entry", "reliable_slot")}],
    ids=["a call", "run by request", "a schedule unknown to Sentry"],
)
def test_what_no_monitor_expects_is_not_told(sentry: Heard, headers: dict[str, Any]) -> None:
    """Calls of the project, entries run by hand, the sun."""
    ran(succeed, headers=headers)
    assert sentry.check_ins == []


def test_margin_follows_the_start_deadline(sentry: Heard) -> None:
    """A slot may be fired that late."""
    ran(succeed, headers={**NIGHTLY, "reliable_schedule": 600.0, "reliable_start_deadline": 900})
    config = sentry.check_ins[0]["monitor_config"]
    assert config["schedule"] == {"type": "interval", "value": 10, "unit": "minute"}
    assert config["checkin_margin"] == 20


# --- what beat does


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Make a fleet of beats that tell Sentry."""
    made: list[Fleet] = []

    def make(entries: Any) -> Fleet:
        made.append(Fleet(entries))
        runtime_of(made[-1].app).events._hooks["slot_dropped"] += (check_in,)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_beats_open_no_check_in(fleet: Callable[..., Fleet], sentry: Heard) -> None:
    """Neither the one that leads, nor one that stands by: the run does, and what it needs to know travels with it."""
    beats = fleet(
        {"often": every(60.0), "nightly": every(crontab(hour=12)), "noon": every(solar("solar_noon", 52.5, -5.0))}
    )
    beats.start(), beats.start()
    beats.run(1800)
    sent = {headers["reliable_entry"]: headers.get("reliable_schedule") for _, headers in beats.fired}
    assert sent == {"often": 60.0, "nightly": "* 12 * * * UTC", "noon": None}
    assert sentry.check_ins == []


def test_slot_that_beat_skips_is_ok(fleet: Callable[..., Fleet], sentry: Heard) -> None:
    """It is not even sent, and no monitor has to miss it."""
    beats = fleet({"job": every(60.0, overlap="forbid")})
    beats.start()
    holder = Claimant("reliable", Job("held"), "held", ttl=600.0)
    runtime_of(beats.app).rights.enter(holder, policy="forbid", has_run=False)
    beats.run(121)
    assert beats.slots("job") == []
    assert sentry.statuses == ["ok", "ok"]
    assert len({one["check_in_id"] for one in sentry.check_ins}) == 2
    assert {one["monitor_slug"] for one in sentry.check_ins} == {"job"}


def test_slot_that_beat_drops_for_want_of_a_broker_is_not_told(fleet: Callable[..., Fleet], sentry: Heard) -> None:
    """It did not happen: Sentry misses it, and is right."""
    beats = fleet({"job": every(60.0, start_deadline=10)})
    beats.start()
    with beats.broker_away():
        beats.run(80)
    assert [one["reason"] for one in beats.named("slot_dropped")] == ["deadline"]
    assert sentry.check_ins == []


# --- what a monitor is


@pytest.mark.parametrize(
    ("given", "config"),
    [
        (schedule(60), {"schedule": {"type": "interval", "value": 1, "unit": "minute"}}),
        (schedule(timedelta(hours=36)), {"schedule": {"type": "interval", "value": 36, "unit": "hour"}}),
        (schedule(timedelta(weeks=2)), {"schedule": {"type": "interval", "value": 2, "unit": "week"}}),
        (schedule(30), None),
        (schedule(90), None),
        (schedule(3600, relative=True), None),
        (solar("sunset", 52.5, 13.4), None),
        (crontab(minute="*/5"), ("*/5 * * * *", "UTC")),
        (crontab(minute=0, hour="8-18", day_of_week="mon-fri"), ("0 8-18 * * 1-5", "UTC")),
        (crontab(minute="1,2", hour="0", day_of_month="*/10"), ("1,2 0 */10 * *", "UTC")),
        (crontab(minute=0, hour=0, month_of_year="3,6,7"), ("0 0 * 3,6,7 *", "UTC")),
        (crontab(minute=0, hour=6, day_of_month="1-7", day_of_week="mon"), None),
    ],
    ids=repr,
)
def test_schedule_of_an_entry_as_sentry_writes_it(given: Any, config: Any) -> None:
    """What Sentry would read otherwise than Celery does has none: of two day fields cron wants one, Celery both."""
    cron = isinstance(config, tuple)
    expected = {"schedule": {"type": "crontab", "value": config[0]}, "timezone": config[1]} if cron else config
    assert schedule_of(sequence_of(given).rhythm) == expected


def test_zone_of_a_crontab_is_the_one_in_which_it_fires() -> None:
    """The entry's before the app's; a zone without a name is none that Sentry knows."""
    nightly = crontab(minute=0, hour=5)
    assert sequence_of(nightly, zone=ZoneInfo("Asia/Tokyo")).rhythm == "0 5 * * * Asia/Tokyo"
    assert sequence_of(nightly, zone=timezone(timedelta(hours=5))).rhythm is None


def test_slug_is_what_sentry_allows_and_tells_entries_apart() -> None:
    """Lower case, at most 50, not all digits."""
    assert slug_of("import-orders_2") == "import-orders_2"
    names = ["x" * 60, "x" * 60 + "y", "7", "8", "日次", "週次"]
    slugs = [slug_of(name) for name in names]
    assert all(len(slug) <= 50 and not slug.isdigit() and slug.isascii() for slug in slugs)
    assert len(set(slugs)) == len(names)
    assert all(one != other for one, other in pairwise(slugs))


def test_longest_life_of_a_slot_has_an_end() -> None:
    """By retries and the task's limit, by ``retry_for``, or by what Sentry supposes."""
    app = make_app(succeed, time_limit=60, max_retries=3, retry_backoff=100, retry_backoff_max=150)
    assert longest(app.tasks["job"]) == 4 * 60 + 100 + 150 + 150
    assert longest(make_app(succeed, retry_for=3600, time_limit=60).tasks["job"]) == 3660
    assert longest(make_app(succeed, max_retries=0).tasks["job"]) == 1800
    assert longest(make_app(succeed, max_retries=5000, retry_backoff_max=1).tasks["job"]) < 5000


# --- two that watch


@pytest.mark.parametrize(
    ("integration", "hooks", "found"),
    [
        (CeleryIntegration(monitor_beat_tasks=True), ["celery_reliable.contrib.sentry:check_in"], True),
        (CeleryIntegration(monitor_beat_tasks=True), [check_in], True),
        (CeleryIntegration(monitor_beat_tasks=True), [], False),
        (CeleryIntegration(), ["celery_reliable.contrib.sentry:check_in"], False),
        (CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["night"]), [check_in], True),
        (CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["night.*"]), [check_in], False),
    ],
)
def test_monitors_of_sentry_s_own_beside_ours_are_found(
    sentry: Heard, integration: CeleryIntegration, hooks: list[Any], *, found: bool
) -> None:
    """They say error at each retry."""
    sentry_sdk.init(integrations=[integration], default_integrations=False)
    app = make_app(succeed)
    app.conf.update(reliable_event_hooks=hooks, beat_schedule={"nightly": {"task": "job", "schedule": 60}})
    assert [one.code for one in configuration_findings(app) if one.code == "monitors_doubled"] == [
        "monitors_doubled"
    ] * found
