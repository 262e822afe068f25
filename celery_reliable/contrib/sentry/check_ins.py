"""Check in at a Sentry monitor for each slot of the schedule, and out when its job has ended for good.

Guarantee: a slot of a `ReliableTask` is one check-in, whoever leads, however often its message is delivered: in progress
from its first run on, ok when it is done or was skipped because another job of its kind runs, error when it is a dead
letter. Retries, snoozes and drains say nothing. The monitor is made of the entry: its name, its crontab and zone, or its
interval. Limits: Sentry knows no sun, no interval of less than a minute or of broken minutes, and no crontab that
restricts both day fields; such entries have no monitor. A slot that is revoked, or expires, ends nothing: Sentry misses it.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from celery import current_task
from sentry_sdk.crons import MonitorStatus, capture_checkin

from celery_reliable.slots.sequences import Rhythm
from celery_reliable.slots.skips import ENTRY_HEADER, SCHEDULE_HEADER, SLOT_HEADER

_ENDS: Final[Mapping[str, str]] = {
    "done": MonitorStatus.OK,
    "replayed_outcome": MonitorStatus.OK,
    "skipped": MonitorStatus.OK,
    "buried": MonitorStatus.ERROR,
    "reported_again": MonitorStatus.ERROR,
}
_SKIPPED: Final = "overlap: "
_UNITS: Final = (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60))
_ZONE: Final = 5  # words before it
_LONGEST_SLUG: Final = 50
_MARGIN: Final = 300.0  # seconds: another beat takes over, a queue is busy for a moment
_USUAL: Final = 1800.0  # seconds that Sentry waits for an end when nobody says how long
_LONGEST: Final = 40_320  # minutes that Sentry waits at most


class CheckIns:
    """An event hook; `check_in` is one, for the setting ``reliable_event_hooks``."""

    events = frozenset({"claimed", "slot_dropped", *_ENDS})

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take one event of celery_reliable."""
        if event == "slot_dropped":
            _skipped_by_beat(fields)
            return
        request = current_task.request if current_task else None
        # a submission inside a run may be skipped, too
        if request is None or request.id != fields["task_id"] or not request.get(SLOT_HEADER):
            return
        if event in _ENDS:
            _send(request, _ENDS[event])
        elif fields["attempt"] == 1 and not request.reliable_execution.delivery.run.snoozes:
            # once more after a run that was killed: its word may have died with it
            _send(request, MonitorStatus.IN_PROGRESS)


check_in: Final = CheckIns()


def _send(request: Any, status: str) -> None:
    schedule = schedule_of(request.get(SCHEDULE_HEADER))
    if schedule is None:
        return
    margin = _MARGIN + float(
        request.get("reliable_start_deadline") or current_task.reliable_settings.start_deadline or 0
    )
    config = {**schedule, "checkin_margin": _minutes(margin), "max_runtime": _minutes(longest(current_task))}
    _capture(request.get(ENTRY_HEADER), request.get(SLOT_HEADER), status, config)


def _skipped_by_beat(fields: Mapping[str, Any]) -> None:
    """Tell of a slot that was not even sent. What beat drops for another reason did not happen: Sentry misses it."""
    schedule = schedule_of(fields["schedule"])
    if schedule is not None and fields["reason"].startswith(_SKIPPED):
        _capture(fields["entry"], fields["slot"], MonitorStatus.OK, schedule)


def _capture(entry: str, slot: str, status: str, config: Mapping[str, Any]) -> None:
    digest = hashlib.blake2b(f"{entry}\0{slot}".encode(errors="surrogatepass"), digest_size=16).digest()
    capture_checkin(
        monitor_slug=slug_of(entry),
        check_in_id=uuid.UUID(bytes=digest).hex,
        status=status,
        monitor_config=dict(config),  # type: ignore[arg-type]  # a TypedDict of sentry-sdk's own
    )


def slug_of(entry: str) -> str:
    """Return the name of an entry's monitor: what Sentry allows of the entry's, and a digest where that is not enough."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", entry.lower()).strip("-")
    if plain and not plain.isdigit() and len(plain) <= _LONGEST_SLUG:
        return plain
    digest = hashlib.blake2b(entry.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    begin = plain[: _LONGEST_SLUG - len(digest) - 1].rstrip("-") if not plain.isdigit() else ""
    return f"{begin or 'entry'}-{digest}"


def schedule_of(rhythm: Rhythm) -> dict[str, Any] | None:
    """Return what a monitor knows of the schedule; None for one that Sentry cannot express."""
    if isinstance(rhythm, str):
        *fields, zone = rhythm.split(" ", _ZONE)
        return {"schedule": {"type": "crontab", "value": " ".join(fields)}, "timezone": zone}
    for unit, seconds in _UNITS:
        if rhythm and rhythm % seconds == 0:
            return {"schedule": {"type": "interval", "value": int(rhythm // seconds), "unit": unit}}
    return None


def longest(task: Any) -> float:
    """Return how long a job may take from its first run to its end, in seconds: all runs, and the waits between them."""
    settings, limit = task.reliable_settings, task.time_limit or task.app.conf.task_time_limit
    if settings.retry_for is not None:
        return float(settings.retry_for + (limit or _USUAL))
    retries = min(settings.max_retries, 1000)
    waits = sum(min(settings.retry_backoff_max, settings.retry_backoff * 2.0**retry) for retry in range(retries))
    return float(waits + (limit * (retries + 1) if limit else _USUAL))


def _minutes(seconds: float) -> int:
    return min(math.ceil(seconds / 60), _LONGEST)
