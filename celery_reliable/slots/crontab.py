"""Find the due times of a crontab in a time zone, through spring gaps and autumn folds.

Two rules, chosen by the hour field. A crontab that names hours ("at 2:30", "every second hour") means readings of the
clock on the wall: each reading is due once. One that falls into a spring gap is due as much later as the gap is long; one
that comes twice in autumn is due the first time. A crontab of every hour means a rhythm: it is due whenever the clock on
the wall shows a matching minute, so 25 times on a day of 25 hours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache

_MINUTE = 60
_HOUR = 3600
_DAY = 86_400
_MINUTES_A_DAY = 1440
_HOURS_A_DAY = 24
_DAYS_A_MONTH = 31
_DAYS_A_WEEK = 7
_PAIR = 2
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # the reading of a clock on a wall, which has no zone
_NEAR = 26 * 3600  # seconds: more than the longest shift there has been, a whole day in Apia
_DAYS_SHIFTED = 2  # days by which a due time may be away from its reading
_LAST_DAY = date(9990, 1, 1).toordinal() - _EPOCH_ORDINAL
_LONGEST_SEARCH = 41 * 366  # days: 29 February on a given weekday, around a century without leap day


@dataclass(frozen=True, slots=True)
class Crontab:
    """The fields of a crontab as sorted numbers (Sunday is 0), and the zone whose clocks they mean."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    zone: tzinfo = timezone.utc

    @property
    def every_hour(self) -> bool:
        """Whether the hour field allows every hour."""
        return len(self.hours) == _HOURS_A_DAY

    @property
    def text(self) -> str | None:
        """The five fields as cron has them, and the zone's name: ``"*/5 8-18 * * 1-5 Europe/Berlin"``.

        None where cron means something else: a day must match both of its fields here, in cron either is enough.
        """
        if len(self.days) < _DAYS_A_MONTH and len(self.weekdays) < _DAYS_A_WEEK:
            return None
        zone = (
            "UTC" if self.zone is timezone.utc else getattr(self.zone, "key", None) or getattr(self.zone, "zone", None)
        )
        if not zone:
            return None
        fields = (
            _field(self.minutes, low=0, count=60),
            _field(self.hours, low=0, count=_HOURS_A_DAY),
            _field(self.days, low=1, count=_DAYS_A_MONTH),
            _field(self.months, low=1, count=12),
            _field(self.weekdays, low=0, count=_DAYS_A_WEEK),
        )
        return " ".join((*fields, zone))

    def after(self, moment: int) -> int | None:
        """Return the first due time after a moment; both in seconds since the epoch, None when there is none."""
        if self.zone is timezone.utc:
            reading = _next_reading(self, moment // _MINUTE)
            return None if reading is None else reading * _MINUTE
        offset = _calm_offset(self.zone, moment // _HOUR)
        if offset is None:
            return _after_carefully(self, moment)
        reading = _next_reading(self, (moment + offset) // _MINUTE)
        if reading is None:
            return None
        found = _moment_of(self.zone, reading)
        if _calm_offset(self.zone, found // _HOUR) is None:
            return _after_carefully(self, max(moment, found - 2 * _NEAR))
        return found


def _field(numbers: Iterable[int], *, low: int, count: int) -> str:
    """Return one field of a crontab, the shortest way that it can be written."""
    given = sorted(numbers)
    if len(given) == count:
        return "*"
    step = given[1] - given[0] if len(given) > _PAIR else 0
    if step > 1 and given == list(range(low, low + count, step)):
        return f"*/{step}"
    if step == 1 and given[-1] - given[0] == len(given) - 1:
        return f"{given[0]}-{given[-1]}"
    return ",".join(map(str, given))


# --- readings of the clock on the wall, in minutes since the epoch as if there were no zones


def _next_reading(crontab: Crontab, reading: int) -> int | None:
    """Return the first matching reading after another."""
    day, minute = divmod(reading, _MINUTES_A_DAY)
    if _matches_day(crontab, day):
        later = _later_today(crontab, minute)
        if later is not None:
            return day * _MINUTES_A_DAY + later
    found = _matching_day(crontab, day + 1)
    return None if found is None else found * _MINUTES_A_DAY + crontab.hours[0] * 60 + crontab.minutes[0]


def _later_today(crontab: Crontab, minute: int) -> int | None:
    hour, minute = divmod(minute, 60)
    at = bisect_left(crontab.hours, hour)
    if at < len(crontab.hours) and crontab.hours[at] == hour:
        within = bisect_right(crontab.minutes, minute)
        if within < len(crontab.minutes):
            return hour * 60 + crontab.minutes[within]
        at += 1
    return crontab.hours[at] * 60 + crontab.minutes[0] if at < len(crontab.hours) else None


def _matches_day(crontab: Crontab, day: int) -> bool:
    when = date.fromordinal(day + _EPOCH_ORDINAL)
    return when.month in crontab.months and when.day in crontab.days and (when.isoweekday() % 7) in crontab.weekdays


def _matching_day(crontab: Crontab, day: int) -> int | None:
    """Return the first matching day from one on; whole months are passed over."""
    last = min(day + _LONGEST_SEARCH, _LAST_DAY)
    while day <= last:
        when = date.fromordinal(day + _EPOCH_ORDINAL)
        if when.month not in crontab.months:
            following = date(when.year + when.month // 12, when.month % 12 + 1, 1)
            day = following.toordinal() - _EPOCH_ORDINAL
            continue
        if when.day in crontab.days and (when.isoweekday() % 7) in crontab.weekdays:
            return day
        day += 1
    return None


# --- zones


def _offset(zone: tzinfo, moment: int) -> int:
    offset = datetime.fromtimestamp(moment, zone).utcoffset() or timedelta()
    return int(offset.total_seconds())


def _moment_of(zone: tzinfo, reading: int) -> int:
    """Return when a clock shows a reading: the first time of two; in a gap, when it would have with the old offset."""
    offset = (_EPOCH + timedelta(minutes=reading)).replace(tzinfo=zone).utcoffset() or timedelta()
    return reading * _MINUTE - int(offset.total_seconds())


@lru_cache(maxsize=4096)  # the entries of a zone ask about the same few hours
def _calm_offset(zone: tzinfo, hour: int) -> int | None:
    """Return the offset during an hour (since the epoch), None when clocks change about a day before or after it."""
    offset = _offset(zone, hour * _HOUR)
    before, later = _offset(zone, hour * _HOUR - _NEAR), _offset(zone, (hour + 1) * _HOUR + _NEAR)
    return offset if before == offset == later else None


def _after_carefully(crontab: Crontab, moment: int) -> int | None:
    """Find the next due time where clocks change."""
    return _next_in_rhythm(crontab, moment) if crontab.every_hour else _next_of_readings(crontab, moment)


def _next_in_rhythm(crontab: Crontab, moment: int) -> int | None:
    """Go on in real time, minute by minute where clocks change."""
    at = moment - moment % _MINUTE + _MINUTE
    while True:
        if at - moment > 4 * _NEAR and _calm_offset(crontab.zone, at // _HOUR) is not None:
            return crontab.after(at - _MINUTE)
        offset = _offset(crontab.zone, at)
        wait = _until_match(crontab, (at + offset) // _MINUTE) * _MINUTE
        if not wait:
            return at
        at += wait if _offset(crontab.zone, at + wait) == offset else _MINUTE


def _until_match(crontab: Crontab, reading: int) -> int:
    """Return how many minutes of this hour pass until a matching one; until the next hour when there is none."""
    day, minute = divmod(reading, _MINUTES_A_DAY)
    within = minute % 60
    place = bisect_left(crontab.minutes, within) if _matches_day(crontab, day) else len(crontab.minutes)
    return (crontab.minutes[place] if place < len(crontab.minutes) else 60) - within


def _next_of_readings(crontab: Crontab, moment: int) -> int | None:
    """Look at all readings of the days around: a gap may move one past another."""
    day = _matching_day(crontab, (moment + _offset(crontab.zone, moment)) // _DAY - _DAYS_SHIFTED)
    best: int | None = None
    until: int | None = None
    while day is not None and (until is None or day <= until):
        later = [found for found in _moments_of_day(crontab, day) if found > moment]
        if later:
            best = min(later) if best is None else min(best, *later)
            until = day + _DAYS_SHIFTED if until is None else until
        day = _matching_day(crontab, day + 1)
    return best


def _moments_of_day(crontab: Crontab, day: int) -> Iterator[int]:
    for hour in crontab.hours:
        for minute in crontab.minutes:
            yield _moment_of(crontab.zone, day * _MINUTES_A_DAY + hour * 60 + minute)
