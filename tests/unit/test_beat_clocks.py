"""Beats on hosts whose clocks are wrong, or step: the store's clock decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from tests.unit.beating import START, TTL, Fleet, every

HOUR = 3600.0


@contextmanager
def hosts(schedule: Any) -> Iterator[tuple[Fleet, dict[str, float]]]:
    """A fleet, and by how much the wall clock of the host that works at the moment is wrong."""
    beats, wrong = Fleet(schedule), {"by": 0.0}
    # What Celery's schedules and entries ask for the time (5.7).
    beats.app.now = lambda: datetime.fromtimestamp(beats.clock() + wrong["by"], timezone.utc)
    try:
        yield beats, wrong
    finally:
        beats.close()


def schedule() -> dict[str, Any]:
    """Slots of every kind, none of which may be passed over."""
    return {
        "interval": every(10.0, catch_up="all"),
        "plain": every(10.0, "plain", catch_up="all"),
        "cron": every(crontab(), catch_up="all"),
    }


def check(beats: Fleet, seconds: int) -> None:
    """Each slot went out once, none before its time."""
    tens, minutes = list(range(10, seconds + 1, 10)), list(range(60, seconds + 1, 60))
    assert (beats.slots("interval"), beats.slots("plain"), beats.slots("cron")) == (tens, tens, minutes)
    assert all(datetime.fromisoformat(one["reliable_slot"]).timestamp() <= at for at, one in beats.fired)


@pytest.mark.parametrize(("one", "other"), [(HOUR, 0.0), (0.0, HOUR), (-HOUR, HOUR), (HOUR, -HOUR)])
def test_two_beats_whose_clocks_differ_neither_double_nor_lose_a_slot(one: float, other: float) -> None:
    """The one that is ahead takes nothing from the other, the one that is behind repeats nothing, at each take-over."""
    with hosts(schedule()) as (beats, wrong):
        for number in range(1, 5):
            wrong["by"] = one if number % 2 else other
            leader = beats.start()
            beats.run(number * 80 - (beats.clock() - START))
            leader.close()
            beats.beats.remove(leader)
        check(beats, 320)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_steps_by_an_hour_neither_doubles_nor_loses_a_slot(step: float) -> None:
    """Under the leader, and back again."""
    with hosts(schedule()) as (beats, wrong):
        beats.start()
        beats.run(65)
        wrong["by"] = step
        beats.run(100)
        wrong["by"] = 0.0
        beats.run(75)
        check(beats, 240)


ZONES = [
    ("Europe/Berlin", "2026-03-29", 23.0),
    ("Europe/Berlin", "2026-10-25", 25.0),
    ("America/New_York", "2026-03-08", 23.0),
    ("America/New_York", "2026-11-01", 25.0),
    ("Australia/Lord_Howe", "2026-04-05", 24.5),
    ("Australia/Lord_Howe", "2026-10-04", 23.5),
    ("Pacific/Apia", "2011-12-31", 24.0),
]


@pytest.mark.parametrize(("zone", "day", "hours"), ZONES)
def test_a_day_on_which_clocks_change_with_a_take_over_in_its_midst(zone: str, day: str, hours: float) -> None:
    """Hourly: each hour there is. Twice at night: once each. Whoever leads, and however the process's own clock reads."""
    nightly = {f"at-{hour}": every(crontab(hour=hour, minute=30), timezone=zone, catch_up="all") for hour in (1, 2)}
    hourly = {"hourly": every(crontab(minute=15), timezone=zone, catch_up="all")}
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(timezone.utc)
    with hosts(hourly | nightly) as (beats, wrong):
        beats.clock.time = midnight.timestamp() - 1
        wrong["by"] = -HOUR
        first = beats.start()
        _hours(beats, 3.0)
        beats.kill(first)
        beats.pass_time(TTL)
        beats.start()
        _hours(beats, hours - 3.0 - TTL / HOUR)
        found = [moment for moment in _fired(beats, "hourly") if midnight <= moment < midnight + timedelta(hours=hours)]
        assert len(found) == len(set(found)) == _quarters(midnight, hours, zone)
        assert [len(_fired(beats, name)) for name in nightly] == [1, 1]


def _hours(beats: Fleet, hours: float) -> None:
    """Let hours pass in steps that are longer than a lease: the leader renews at each."""
    end = beats.clock() + hours * HOUR
    while beats.clock() < end:
        beats.clock.time = min(beats.clock() + 900.0, end)
        beats.run()


def _fired(beats: Fleet, entry: str) -> list[datetime]:
    sent = [one for _, one in beats.fired if one["reliable_entry"] == entry]
    return [datetime.fromisoformat(one["reliable_slot"]) for one in sent]


def _quarters(midnight: datetime, hours: float, zone: str) -> int:
    """Count how often the clock on the wall shows a quarter past, minute by minute."""
    moments = (midnight + timedelta(minutes=minute) for minute in range(int(hours * 60)))
    return sum(moment.astimezone(ZoneInfo(zone)).minute == 15 for moment in moments)
