"""What a change of the clock does to a schedule, found before it does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_reliable.checks import clock_findings

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def codes(zone: str, *, now: datetime | None = None, **schedule: Any) -> list[str]:
    """Return the codes that are found for an app in a zone, by default on a machine in the same one."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    app.conf.beat_schedule = {"report": {"task": "shop.report", **schedule}} if schedule else {}
    moment = now or NOON.astimezone(ZoneInfo(zone))
    return [finding.code for finding in clock_findings(app, now=moment)]


@pytest.mark.parametrize("hour", [0, 2, "1,12", "3"])
def test_a_night_hour_in_a_zone_that_changes_is_found(hour: Any) -> None:
    """Between midnight and four."""
    assert codes("Europe/Berlin", schedule=crontab(hour=hour, minute=30)) == ["crontab_in_local_night"]


@pytest.mark.parametrize(
    ("zone", "schedule"),
    [
        ("Europe/Berlin", crontab(hour=4, minute=0)),
        ("Europe/Berlin", crontab(minute=15)),
        ("Europe/Berlin", 300.0),
        ("Europe/Berlin", timedelta(hours=1)),
        ("UTC", crontab(hour=2, minute=30)),
        ("Asia/Tokyo", crontab(hour=2, minute=30)),
    ],
)
def test_what_no_change_of_the_clock_touches_is_not(zone: str, schedule: Any) -> None:
    """Later hours, every hour, intervals, and zones whose clocks are never changed."""
    assert codes(zone, schedule=schedule) == []


def test_a_process_in_another_zone_is_found() -> None:
    """A time without a zone means something else to each."""
    assert codes("UTC", now=NOON.astimezone(BERLIN)) == ["zone_differs"]
    assert codes("Europe/Berlin", now=NOON.astimezone(BERLIN)) == []
