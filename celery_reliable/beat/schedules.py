"""Turn Celery's schedules into sequences of slots."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery.utils.time import remaining

from celery_reliable import keys
from celery_reliable.slots.crontab import Crontab
from celery_reliable.slots.sequences import SECOND, ByCrontab, Computed, Every, Once, Sequence

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SUN_APART = 60 * SECOND  # two events of the sun are hours apart: what comes sooner is the same, computed again
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def sequence_of(given: Any, *, zone: tzinfo | None = None) -> Sequence:  # Any: whatever an entry has for a schedule
    """Return the slots of a schedule. ``zone`` replaces the zone of a crontab.

    Crontabs, intervals, events of the sun and single moments have slots of their own. For any other schedule a slot is
    what its ``remaining_estimate`` says comes next, or, when it has none, the second in which its ``is_due`` says yes.
    """
    if _is_plain_crontab(given):
        return ByCrontab(_crontab_of(given, zone=zone or given.tz))
    if _is_plain_interval(given):
        return Computed(_rounded(given)) if given.relative else Every(_micros(given.run_every))
    if hasattr(given, "clocked_time"):  # django-celery-beat's
        return Once(_moment(given.clocked_time))
    if isinstance(given, solar):
        return Computed(lambda moment: _estimated(given, moment + _SUN_APART))
    if isinstance(given, BaseSchedule):
        return Computed(lambda moment: _estimated(given, moment), typical=60 * SECOND)
    return Computed(lambda moment: _asked(given, moment), typical=60 * SECOND)


def _is_plain_crontab(given: Any) -> bool:
    return isinstance(given, crontab) and _is_celerys_own(given, crontab, "remaining_estimate", "remaining_delta")


def _is_plain_interval(given: Any) -> bool:
    return isinstance(given, schedule) and _is_celerys_own(given, schedule, "remaining_estimate")


def _is_celerys_own(given: Any, cls: type, *methods: str) -> bool:
    return all(getattr(type(given), name) is getattr(cls, name) for name in methods)


def _crontab_of(given: crontab, *, zone: tzinfo) -> Crontab:
    return Crontab(
        tuple(sorted(given.minute)),
        tuple(sorted(given.hour)),
        frozenset(given.day_of_month),
        frozenset(given.month_of_year),
        frozenset(given.day_of_week),
        timezone.utc if str(zone) in ("UTC", "Etc/UTC") else zone,
    )


def _rounded(given: schedule) -> Callable[[int], int]:
    """Follow an interval that is rounded to its unit (``relative=True``)."""

    def following(moment: int) -> int:
        start = _datetime(moment).astimezone(given.tz)
        return moment + _micros(remaining(start, given.run_every, start, relative=True))

    return following


def _estimated(given: BaseSchedule, moment: int) -> int:
    """Ask what remains, with the clock of the schedule standing at the moment."""
    start = _datetime(moment)
    still = _frozen(given, start)
    try:
        left = still.remaining_estimate(start)
    except NotImplementedError:
        return _asked(given, moment)
    found = moment + _micros(left)
    second = (found + SECOND // 2) // SECOND * SECOND
    return second if second > moment else -(-found // SECOND) * SECOND


def _asked(given: Any, moment: int) -> int:
    """Ask a schedule that knows only whether it is due."""
    due, wait = given.is_due(_datetime(moment))
    now = _moment(datetime.now(timezone.utc))
    return now // SECOND * SECOND if due else now + int(max(float(wait), 0.0) * SECOND)


def _frozen(given: BaseSchedule, now: datetime) -> Any:
    clone = object.__new__(type(given))
    clone.__dict__.update(given.__dict__)
    clone.nowfun = lambda: now
    return clone


# --- which definition of an entry this is


def version_of(entry: Any, *, schedule: str) -> str:
    """Return 8 characters that change with an entry's task, arguments or schedule, whose text is given."""
    text = f"{entry.task}\0{_text(entry.args)}\0{_text(entry.kwargs)}\0{schedule}"
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def _text(arguments: Any) -> str:
    if not arguments:
        return ""
    try:
        return keys.canonical(arguments)
    except (TypeError, ValueError):
        return _ADDRESS.sub("", repr(arguments))


def text_of(given: Any, *, zone: tzinfo | None = None) -> str:
    """Return a text that tells one schedule from another, the same in every process."""
    if isinstance(given, crontab):
        return f"{given!r} {given.tz}\0{zone or ''}"
    if isinstance(given, schedule):
        return f"every {given.run_every} {given.relative}\0{zone or ''}"
    return f"{type(given).__qualname__} {_ADDRESS.sub('', repr(given))}\0{zone or ''}"


def mark_of(given: Any) -> Hashable | None:
    """Return what schedules that are alike have in common, in less time than reading one takes; None: nothing does."""
    if _is_plain_crontab(given):
        mark: Hashable = (type(given), given.__reduce__()[1], given.tz)  # what it is made from
    elif _is_plain_interval(given):
        mark = (type(given), given.run_every, given.relative, given.tz)
    else:
        return None
    try:
        hash(mark)
    except TypeError:  # a field may be a list
        return None
    return mark


def words_of(given: Any) -> str:
    """Return a schedule in words for people."""
    return " ".join(_ADDRESS.sub("", repr(given)).strip("<>").split())


# --- times


def _datetime(moment: int) -> datetime:
    return _EPOCH + timedelta(microseconds=moment)


def _moment(when: datetime) -> int:
    aware = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return _micros(aware - _EPOCH)


def _micros(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)


moment_of, datetime_of = _moment, _datetime
