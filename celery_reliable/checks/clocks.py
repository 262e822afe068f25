"""Find entries of the schedule that a change of the clock skips or repeats, and a process that counts in another zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

from celery.schedules import crontab

from celery_reliable.checks.findings import Finding

if TYPE_CHECKING:
    from celery import Celery

_NIGHT: Final = range(4)  # clocks change between midnight and three, whatever the country
_HOURS_OF_A_DAY: Final = 24


def clock_findings(app: Celery, *, now: datetime) -> list[Finding]:
    """Look at the entries of ``beat_schedule`` and at the zone of this process. ``now`` is aware, in that zone."""
    return [*_of_schedule(app, year=now.year), *_of_process(app, now=now)]


def _of_schedule(app: Celery, *, year: int) -> Iterator[Finding]:
    for name, entry in (app.conf.beat_schedule or {}).items():
        given = entry.get("schedule") if isinstance(entry, dict) else getattr(entry, "schedule", None)
        if isinstance(given, crontab):
            yield from _of_crontab(name, given, zone=_zone_of(given, app), year=year)


def _zone_of(given: Any, app: Celery) -> tzinfo:  # Any: the stubs have no zone of a crontab
    """Return the zone in which beat will read a crontab: its own where it has one (django-celery-beat), else the app's."""
    zone: tzinfo = app.timezone if type(given) is crontab else given.tz
    return zone


def _of_crontab(name: str, given: crontab, *, zone: tzinfo, year: int) -> Iterator[Finding]:
    hours = sorted(set(given.hour) & set(_NIGHT))
    if not hours or len(given.hour) == _HOURS_OF_A_DAY or not _changes(zone, year=year):
        return
    times = ", ".join(f"{hour}:{minute:02}" for hour in hours for minute in sorted(given.minute)[:1])
    yield Finding(
        code="crontab_in_local_night",
        severity="warning",
        message=(
            f"beat_schedule[{name!r}]: runs at {times} in {zone}, where the clock is put forward and back at night. Celery's "
            "scheduler runs it twice on one such day and not at all on another; ReliableScheduler runs it once, up to an "
            "hour aside. Choose an hour from 4 on, or set timezone to UTC."
        ),
    )


def _changes(zone: tzinfo, *, year: int) -> bool:
    """Tell whether a zone's clocks are changed in the course of a year."""
    days = (datetime(year, 1, 1, 12, tzinfo=zone) + timedelta(days=number) for number in range(0, 365, 7))
    return len({day.utcoffset() for day in days}) > 1


def _of_process(app: Celery, *, now: datetime) -> Iterator[Finding]:
    here, there = now.utcoffset(), now.astimezone(app.timezone).utcoffset()
    if here == there:
        return
    yield Finding(
        code="zone_differs",
        severity="warning",
        message=(
            f"timezone: this process counts in {now.tzname()} (UTC{now:%z}), the app in {app.timezone}. A time "
            "without a zone, in an eta or a log, means something else to each. Give every time a zone, or set TZ and "
            "timezone alike."
        ),
    )
