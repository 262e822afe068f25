"""Find entries of the schedule that a change of the clock skips or repeats, and a process that counts in another zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

from celery.schedules import ParseException, crontab

from celery_reliable.checks.findings import Finding

if TYPE_CHECKING:
    from celery import Celery

_NIGHT: Final = range(4)  # clocks change between midnight and three, whatever the country
_HOURS_OF_A_DAY: Final = 24
_TWICE_OR_NOT: Final = "twice on one such day and not at all on another"
_NAMED: Final = 3


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
    times = _night_times(given, zone=zone, year=year)
    if times:
        yield Finding(
            code="crontab_in_local_night",
            severity="warning",
            message=(
                f"beat_schedule[{name!r}]: runs at {times} in {zone}, where the clock is put forward and back at night. "
                f"Celery's scheduler runs it {_TWICE_OR_NOT}; ReliableScheduler runs it once, up to an hour aside. Choose an "
                "hour from 4 on, or set timezone to UTC."
            ),
        )


def _night_times(given: crontab, *, zone: tzinfo, year: int) -> str:
    """Return the times of a crontab that a change of the clock may skip or repeat, "" when there is none."""
    hours = sorted(set(given.hour) & set(_NIGHT))
    if not hours or len(given.hour) == _HOURS_OF_A_DAY or not _changes(zone, year=year):
        return ""
    return ", ".join(f"{hour}:{minute:02}" for hour in hours for minute in sorted(given.minute)[:1])


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


# --- rows, which only a connection shows


def row_findings(app: Celery, *, now: datetime) -> list[Finding]:
    """Look at the enabled rows of django-celery-beat, where Django is set up and has them: connects to its database."""
    try:
        from django.apps import apps  # noqa: PLC0415  # only where there is one
    except ImportError:
        return []
    if not apps.ready or not apps.is_installed("django_celery_beat"):
        return []
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415  # as above
    from django.db import Error  # noqa: PLC0415  # as above

    try:
        return list(_of_rows(app, apps, year=now.year))
    except (Error, ImproperlyConfigured) as exc:
        text = f"the rows of django-celery-beat cannot be read: {exc}. Correct DATABASES, or run manage.py migrate."
        return [Finding("rows_unread", "warning", text)]


def _of_rows(app: Celery, apps: Any, *, year: int) -> Iterator[Finding]:  # Any: Django has no types
    crontabs, tasks = (
        apps.get_model("django_celery_beat", name).objects for name in ("CrontabSchedule", "PeriodicTask")
    )
    at_night = {one.pk: words for one in crontabs.all() if (words := _words_of_row(one, app, year=year))}
    rows = tasks.filter(enabled=True, crontab__in=at_night).order_by("name").values_list("name", "crontab")
    found = [f"{name!r} at {at_night[crontab]}" for name, crontab in rows]
    if not found:
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    yield Finding(
        code="crontab_in_local_night",
        severity="warning",
        message=(
            f"django-celery-beat: {', '.join(found[:_NAMED])}{more}: the clock is put forward and back there at night. Its "
            f"scheduler runs such a row {_TWICE_OR_NOT}; ReliableDatabaseScheduler runs it once, up to an hour aside. Choose "
            "an hour from 4 on, or the zone UTC."
        ),
    )


def _words_of_row(row: Any, app: Celery, *, year: int) -> str:  # Any: as above
    """Return when and where a row's crontab runs at night, "" when it does not, or when it is none."""
    try:
        given = row.schedule
    except (ParseException, ValueError):
        return ""  # beat says so of the row (`schedule_failed`)
    zone = _zone_of(given, app)  # the row's, unless DJANGO_CELERY_BEAT_TZ_AWARE is off
    times = _night_times(given, zone=zone, year=year)
    return f"{times} in {zone}" if times else ""
