"""When an entry is due, through changes of the clock, and which missed slots still run."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_reliable.slots.crontab import Crontab
from celery_reliable.slots.planning import MOST_CAUGHT_UP, Policy, plan
from celery_reliable.slots.records import HISTORY, SlotRecord
from celery_reliable.slots.sequences import SECOND, ByCrontab, Every, Once, latest, newest

CHANGES = {
    "Europe/Berlin": [date(2026, 3, 29), date(2026, 10, 25)],
    "America/New_York": [date(2026, 3, 8), date(2026, 11, 1)],
    "Australia/Lord_Howe": [date(2026, 4, 5), date(2026, 10, 4)],  # half an hour
    "Pacific/Apia": [date(2011, 12, 30), date(2012, 4, 1)],  # a day that was left out
    "America/St_Johns": [date(2010, 11, 7)],  # at one minute past midnight
    "UTC": [date(2026, 1, 1)],
}
ALL = {"days": frozenset(range(1, 32)), "months": frozenset(range(1, 13)), "weekdays": frozenset(range(7))}
DAY = timedelta(days=1)


def crontab(minutes: str, hours: str, zone: str = "UTC") -> Crontab:
    """Return a crontab of every day: ``crontab("0,30", "2")``; ``*`` for every hour."""
    chosen = tuple(range(24)) if hours == "*" else tuple(int(hour) for hour in hours.split(","))
    return Crontab(tuple(int(minute) for minute in minutes.split(",")), chosen, **ALL, zone=ZoneInfo(zone))


def due(when: Crontab, first: date, days: int = 1) -> list[str]:
    """Return the due times of some local days, as local texts with their offset."""
    start = int(datetime(first.year, first.month, first.day, tzinfo=when.zone).timestamp()) - 1
    following = first + days * DAY
    end = int(datetime(following.year, following.month, following.day, tzinfo=when.zone).timestamp())
    return [datetime.fromtimestamp(moment, when.zone).isoformat() for moment in walk(when, start, end)]


def walk(when: Crontab, start: int, end: int) -> list[int]:
    """Return all due times after one moment and before another."""
    found = []
    moment = when.after(start)
    while moment is not None and moment < end:
        found.append(moment)
        moment = when.after(moment)
    return found


# --- zones


def test_a_slot_in_the_spring_gap_is_due_once_as_much_later_as_the_gap_is_long() -> None:
    """2:30 does not exist in Berlin on that day."""
    assert due(crontab("30", "2", "Europe/Berlin"), date(2026, 3, 29)) == ["2026-03-29T03:30:00+02:00"]


def test_a_slot_in_the_autumn_fold_is_due_once_the_first_time() -> None:
    """2:30 comes twice."""
    assert due(crontab("30", "2", "Europe/Berlin"), date(2026, 10, 25)) == ["2026-10-25T02:30:00+02:00"]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("America/New_York", date(2026, 11, 1), 25),
        ("Pacific/Apia", date(2011, 12, 29), 24),
    ],
)
def test_an_hourly_job_fires_in_every_hour_of_the_day(zone: str, day: date, hours: int) -> None:
    """Also on a day of 25 or of 23 hours."""
    assert len(due(crontab("15", "*", zone), day)) == hours


def test_half_an_hour_is_put_back_on_lord_howe() -> None:
    """1:45 comes twice: a rhythm takes both, a reading the first; 1:15 once."""
    zone, day = "Australia/Lord_Howe", date(2026, 4, 5)
    assert [slot[11:] for slot in due(crontab("45", "*", zone), day)[1:3]] == ["01:45:00+11:00", "01:45:00+10:30"]
    assert due(crontab("45", "1", zone), day) == ["2026-04-05T01:45:00+11:00"]
    assert due(crontab("15", "1", zone), day) == ["2026-04-05T01:15:00+11:00"]


def test_a_day_that_was_left_out_does_not_double_the_next_one() -> None:
    """Apia had no 30 December 2011: the daily job of that day falls on that of the next."""
    found = due(crontab("0", "4", "Pacific/Apia"), date(2011, 12, 29), days=3)
    assert found == ["2011-12-29T04:00:00-10:00", "2011-12-31T04:00:00+14:00"]


def _expected(when: Crontab, start: int, end: int) -> list[int]:
    """Enumerate by the plainest means: each minute of real time, or each reading of each day."""
    if when.every_hour:
        minutes = range(start - start % 60, end, 60)
        return [
            moment for moment in minutes if moment > start and _matches(when, datetime.fromtimestamp(moment, when.zone))
        ]
    days = range(-3, (end - start) // 86_400 + 4)
    first = datetime.fromtimestamp(start, when.zone).date()
    readings = (
        datetime(day.year, day.month, day.day, hour, minute, tzinfo=when.zone)
        for day in (first + number * DAY for number in days)
        for hour in when.hours
        for minute in when.minutes
    )
    found = {int(reading.timestamp()) for reading in readings if _matches(when, reading)}
    return sorted(moment for moment in found if start < moment < end)


def _matches(when: Crontab, reading: datetime) -> bool:
    day = reading.day in when.days and reading.month in when.months and reading.isoweekday() % 7 in when.weekdays
    return day and reading.minute in when.minutes


def _some(values: range, *, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.sampled_from(list(values)), min_size=1, max_size=most).map(lambda found: tuple(sorted(found)))


@settings(deadline=None)
@given(
    change=st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days]),
    minutes=_some(range(60), most=4),
    hours=st.one_of(st.just(tuple(range(24))), _some(range(5), most=4), _some(range(24), most=6)),
    weekdays=st.one_of(st.just(tuple(range(7))), _some(range(7), most=3)),
    before=st.integers(0, 5 * 86_400),
    length=st.integers(3600, 6 * 86_400),
)
def test_a_crontab_is_due_when_the_clock_on_the_wall_says_so(  # noqa: PLR0917  # drawn by name
    change: tuple[str, date],
    minutes: tuple[int, ...],
    hours: tuple[int, ...],
    weekdays: tuple[int, ...],
    before: int,
    length: int,
) -> None:
    """Compared with counting through, around every kind of change of the clock."""
    zone, day = change
    when = Crontab(minutes, hours, ALL["days"], ALL["months"], frozenset(weekdays), ZoneInfo(zone))
    start = int(datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()) - before
    assert walk(when, start, start + length) == _expected(when, start, start + length)


def test_leap_days_and_days_that_never_come() -> None:
    """29 February is found years ahead; 30 February is never."""
    leap = Crontab((0,), (4,), frozenset({29}), frozenset({2}), ALL["weekdays"])
    never = Crontab((0,), (4,), frozenset({30}), frozenset({2}), ALL["weekdays"])
    start = int(datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp())
    found = leap.after(start)
    assert found is not None
    assert datetime.fromtimestamp(found, timezone.utc) == datetime(2028, 2, 29, 4, tzinfo=timezone.utc)
    assert never.after(start) is None


# --- sequences

NOW = int(datetime(2026, 6, 1, 12, tzinfo=timezone.utc).timestamp()) * SECOND
FIVE_MINUTES = Every(300 * SECOND)
HOUR = 3600 * SECOND


def test_an_interval_goes_on_from_its_last_slot() -> None:
    """Not from a grid in time, nor from now."""
    assert FIVE_MINUTES.after(NOW + 1000 * SECOND, anchor=NOW + 7) == NOW + 7 + 1200 * SECOND


@settings(deadline=None)
@given(step=st.integers(SECOND // 10, HOUR), passed=st.integers(1, 50 * HOUR))
def test_the_latest_slot_is_found_without_counting_through(step: int, passed: int) -> None:
    """For an interval it can be calculated."""
    every, until = Every(step), NOW + step + passed
    assert latest(every, first=NOW + step, until=until, anchor=NOW) == NOW + (until - NOW) // step * step


def test_the_newest_slots_of_a_rare_burst_are_found() -> None:
    """Every minute of one hour a day."""
    burst = ByCrontab(Crontab(tuple(range(60)), (3,), **ALL, zone=timezone.utc))
    found = newest(burst, after=NOW - 48 * HOUR, until=NOW, most=70, anchor=0)
    assert len(found) == 70
    assert found == sorted(found)
    assert found[-1] == NOW - 8 * HOUR - 60 * SECOND


# --- policies


def test_six_hours_of_a_five_minute_job_are_one_run_with_latest() -> None:
    """The newest slot fires, the others are passed over."""
    found = plan(FIVE_MINUTES, last=NOW - 6 * HOUR, now=NOW, policy=Policy("latest"))
    assert (found.slot, found.missed) == (NOW, NOW - 6 * HOUR + 300 * SECOND)
    assert plan(FIVE_MINUTES, last=NOW, now=NOW, policy=Policy("latest")).slot is None


def test_skip_runs_what_is_on_time_and_nothing_that_was_missed() -> None:
    """A slot that came due while another beat took over is on time."""
    policy = Policy("skip", on_time=30.0)
    assert plan(FIVE_MINUTES, last=NOW - 6 * HOUR, now=NOW + 31 * SECOND, policy=policy).reason == "skip"
    assert plan(FIVE_MINUTES, last=NOW - 6 * HOUR, now=NOW + 30 * SECOND, policy=policy).slot == NOW


def test_all_runs_every_missed_slot_oldest_first() -> None:
    """One after the other."""
    policy, last, fired = Policy("all"), NOW - HOUR, []
    while (found := plan(FIVE_MINUTES, last=last, now=NOW, policy=policy)).slot is not None:
        fired.append(found.slot)
        last = found.slot
    assert fired == [NOW - HOUR + number * 300 * SECOND for number in range(1, 13)]


def test_all_is_bounded_by_window_and_number() -> None:
    """The newest hundred, and none older than the window."""
    many = plan(Every(SECOND), last=NOW - HOUR, now=NOW, policy=Policy("all"))
    assert many.slot == NOW - (MOST_CAUGHT_UP - 1) * SECOND
    short = plan(FIVE_MINUTES, last=NOW - HOUR, now=NOW, policy=Policy("all", window=600.0, on_time=0.0))
    assert short.slot == NOW - 600 * SECOND


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy("latest", window=60.0, on_time=30.0), "window"),
        (Policy("latest", deadline=60.0), "deadline"),
        (Policy("all", deadline=60.0), "deadline"),
        (Policy("skip"), "skip"),
    ],
)
def test_the_reason_is_told_why_a_due_slot_does_not_fire(policy: Policy, reason: str) -> None:
    """Each bound has its word."""
    found = plan(Every(HOUR), last=NOW - HOUR, now=NOW + 120 * SECOND, policy=policy)
    assert (found.slot, found.reason, found.following) == (None, reason, NOW + HOUR)


def test_slots_before_the_start_do_not_count() -> None:
    """As with a row's start time."""
    found = plan(FIVE_MINUTES, last=NOW - HOUR, now=NOW, policy=Policy("all"), not_before=NOW - 300 * SECOND)
    assert found.slot == NOW - 300 * SECOND


def test_a_single_moment_is_due_once() -> None:
    """Then never again."""
    once = Once(NOW)
    assert plan(once, last=0, now=NOW, policy=Policy()).slot == NOW
    assert plan(once, last=NOW, now=NOW + HOUR, policy=Policy()).following is None


# --- records


def test_a_record_survives_the_store_and_keeps_ten_outcomes() -> None:
    """What became of a slot can be asked later, not for ever."""
    record = SlotRecord("v", NOW, task="shop.charge", schedule="every minute", following=NOW + 1)
    for number in range(12):
        slot = NOW + number
        record = record.claimed(slot, epoch=7, at=slot, following=None, missed=None).fired(at=slot, epoch=7)
    assert SlotRecord.from_bytes(record.to_bytes()) == record
    assert [passed.slot for passed in record.history] == [NOW + number for number in range(12 - HISTORY, 12)]


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1]", b"null", b'{"v": "x", "s": "now", "st": "seen"}', b"\xff"])
def test_a_foreign_record_is_a_value_error(raw: bytes) -> None:
    """The entry then starts anew."""
    with pytest.raises(ValueError, match="not the record of an entry"):
        SlotRecord.from_bytes(raw)
