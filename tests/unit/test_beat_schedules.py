"""Celery's schedules as sequences of slots."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from django_celery_beat.tzcrontab import TzAwareCrontab

from celery_reliable.beat import schedules
from celery_reliable.beat.schedules import sequence_of, words_of
from celery_reliable.slots.sequences import SECOND
from tests.unit.beating import Fleet, every


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose crontabs mean Berlin."""
    with Celery("schedules", set_as_current=False) as made:
        made.conf.timezone = "Europe/Berlin"
        yield made


def following(given: Any, since: str, count: int = 1, *, zone: Any = None) -> list[str]:
    """Return the next slots after a moment, in UTC."""
    sequence = sequence_of(given, zone=zone)
    anchor = int(datetime.fromisoformat(since).timestamp() * SECOND)
    found: list[str] = []
    for _ in range(count):
        slot = sequence.after(anchor, anchor=anchor)
        assert slot is not None
        assert slot > anchor
        anchor = slot
        found.append(datetime.fromtimestamp(slot / SECOND, timezone.utc).isoformat())
    return found


def test_a_crontab_means_the_timezone_of_the_app_or_that_of_the_entry(app: Celery) -> None:
    """The entry's own wins: a row's zone, or the header."""
    since = "2026-06-01T00:00:00+00:00"
    assert following(crontab(hour=4, minute=0, app=app), since) == ["2026-06-01T02:00:00+00:00"]
    tokyo = ZoneInfo("Asia/Tokyo")
    assert following(crontab(hour=4, minute=0, app=app), since, zone=tokyo) == ["2026-06-01T19:00:00+00:00"]
    row = TzAwareCrontab(hour="4", minute="0", tz=ZoneInfo("America/New_York"), app=app)
    assert following(row, since) == ["2026-06-01T08:00:00+00:00"]


def test_days_of_the_week_are_those_of_celery(app: Celery) -> None:
    """Sunday is 0, and both day fields must match."""
    sunday = crontab(hour=0, minute=0, day_of_week="sun", day_of_month="1-7", app=app)
    assert following(sunday, "2026-06-08T00:00:00+00:00") == ["2026-07-04T22:00:00+00:00"]


def test_an_hourly_job_of_a_real_scheduler_fires_25_times_on_a_day_of_25_hours() -> None:
    """Plain Celery 5.7 leaves one out."""
    beats = Fleet({"hourly": every(crontab(minute=30, nowfun=None)), "once": every(crontab(hour=2, minute=30))})
    try:
        beats.app.conf.timezone = "Europe/Berlin"
        midnight = datetime(2026, 10, 25, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        beats.clock.time = midnight
        beats.start()
        beats.run(0)
        for _ in range(25):
            beats.pass_time(3600)
            beats.run(0)
        assert len(set(beats.slots("hourly"))) == len(beats.slots("hourly")) == 25
        assert len(beats.slots("once")) == 1
    finally:
        beats.close()


def test_the_sun_rises_once_a_day_to_the_second(app: Celery) -> None:
    """Also when two beats compute it, and where it does not rise every day."""
    found = following(solar("sunrise", 52.5, 13.4, app=app), "2026-06-01T00:00:00+00:00", 3)
    assert [text[:10] for text in found] == ["2026-06-01", "2026-06-02", "2026-06-03"]
    assert all(text.endswith(":00+00:00") or text[19:] == "+00:00" for text in found)
    polar = following(solar("sunrise", 78.0, 15.0, app=app), "2026-05-01T00:00:00+00:00")
    assert polar[0] > "2026-08"


def test_a_rounded_interval_follows_the_clock(app: Celery) -> None:
    """``relative=True``."""
    hourly = schedule(timedelta(hours=1), relative=True, app=app)
    assert following(hourly, "2026-06-01T10:20:30+00:00", 2) == [
        "2026-06-01T11:00:00+00:00",
        "2026-06-01T12:00:00+00:00",
    ]


def test_a_schedule_of_the_projects_own_has_slots_too(app: Celery) -> None:
    """By what it says remains."""

    class Thirds(BaseSchedule):  # type: ignore[misc]  # Celery has no types
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at + timedelta(seconds=20) - self.now()

    found = following(Thirds(app=app), "2026-06-01T10:00:00+00:00", 2)
    assert found == ["2026-06-01T10:00:20+00:00", "2026-06-01T10:00:40+00:00"]


def test_a_version_changes_with_what_the_entry_does_and_with_nothing_else(app: Celery) -> None:
    """Not with the process that reads it."""

    def entry(**given: Any) -> Any:
        fields = {"task": "t", "args": (1,), "kwargs": {"x": object}, "schedule": crontab(minute=1, app=app)}
        return SimpleNamespace(**{**fields, **given})

    def version_of(made: Any, zone: ZoneInfo | None = None) -> str:
        return schedules.version_of(made, schedule=schedules.text_of(made.schedule, zone=zone))

    one = version_of(entry())
    assert version_of(entry()) == one
    assert version_of(entry(kwargs={"x": object})) == one
    others = [entry(task="u"), entry(args=(2,)), entry(kwargs={}), entry(schedule=crontab(minute=2, app=app))]
    assert len({one, *map(version_of, others), version_of(entry(), zone=ZoneInfo("Asia/Tokyo"))}) == 6


def test_schedules_that_are_alike_are_read_once_and_others_are_not(app: Celery) -> None:
    """A project's own kind may have more to it than what it was made from."""

    class Own(crontab):  # type: ignore[misc]  # Celery has no types
        def remaining_estimate(self, last_run_at: Any) -> Any:
            raise NotImplementedError

    mark = schedules.mark_of
    assert mark(crontab(minute=5, app=app)) == mark(crontab(minute=5, app=app)) is not None
    assert mark(crontab(minute=5, app=app)) != mark(crontab(minute=6, app=app))
    assert mark(schedule(timedelta(seconds=5), app=app)) != mark(schedule(timedelta(seconds=5), relative=True, app=app))
    row = TzAwareCrontab(minute="5", tz=ZoneInfo("America/New_York"), app=app)
    assert mark(row) not in (None, mark(crontab(minute="5", app=app)))
    assert mark(crontab(minute=[5, 6], app=app)) is None
    assert mark(Own(minute=5, app=app)) is None


def test_words_have_no_addresses(app: Celery) -> None:
    """They stand in a table, and are the same in every process."""
    assert "0x" not in words_of(SimpleNamespace(x=object()))
    assert words_of(crontab(minute=5, app=app)) == "crontab: 5 * * * * (m/h/dM/MY/d)"
