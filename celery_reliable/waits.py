"""Say in a message how long it waits and since when by the store's clock, and read that by the clock of who receives it.

Celery writes an ETA by the clock of the sender, and the worker that receives it compares it with its own: a sender whose
clock is an hour ahead makes others wait for an hour. A wait beside it needs neither clock. It travels in our header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from celery_reliable.keys import HEADER

_FIELD: Final = "w"
_EXPIRY: Final = "x"
_LARGEST: Final = 2**53
_LONGEST: Final = 1e9  # seconds: thirty years, so that any sum is still a date


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a message waits, and when that began: microseconds of the store's clock, 0 where it is not known."""

    seconds: float
    since: int = 0

    def beside(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return our header with this wait in it."""
        return {**header, _FIELD: [self.since, self.seconds]}

    def left(self, *, now: int) -> float:
        """Return how much of it is left; never more than the whole, wherever a clock was put meanwhile."""
        return min(max(self.seconds - (now - self.since) / 1e6, 0.0), self.seconds)


def wait_in(headers: Mapping[str, Any]) -> Wait | None:
    """Return the wait of a message; None for one that says none, and for what another message or another hand wrote."""
    header = headers.get(HEADER)
    if not isinstance(header, dict) or header.get("i") != headers.get("id"):
        return None
    match header.get(_FIELD):
        case [int(since), int() | float() as seconds] if 0 <= since < _LARGEST and 0 < seconds < _LONGEST:
            return Wait(seconds, since)
    return None


def expiring(header: Mapping[str, Any], *, since: int, seconds: float) -> dict[str, Any]:
    """Return our header with the moment, by the store's clock, from which nobody wants the message to run."""
    return {**header, _EXPIRY: since + int(min(max(seconds, 0.0), _LONGEST) * 1e6)}


def without_expiry(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return our header without that moment."""
    return {name: value for name, value in header.items() if name != _EXPIRY}


def with_expiry_of(received: object, header: dict[str, Any]) -> dict[str, Any]:
    """Return our header for the next message of a job, with the moment from which nobody wants it."""
    moment = received.get(_EXPIRY) if isinstance(received, dict) and received.get("i") == header["i"] else None
    return header if moment is None else {**header, _EXPIRY: moment}


def expiry_in(headers: Mapping[str, Any]) -> int | None:
    """Return that moment of a message; None for one that says none, and for what another message or another hand wrote."""
    header = headers.get(HEADER)
    if not isinstance(header, dict) or header.get("i") != headers.get("id"):
        return None
    moment = header.get(_EXPIRY)
    return moment if type(moment) is int and 0 < moment < _LARGEST else None


def eta_here(eta: str, wait: Wait, *, store_now: int | None, here: datetime) -> str:
    """Return the ETA of a message as the clock ``here`` will show it.

    ``store_now`` is the store's clock at this moment. Where one end does not know that, the ETA stays as it is, except
    that it is never further away than the whole wait.
    """
    if store_now is not None and wait.since:
        return (here + timedelta(seconds=wait.left(now=store_now))).isoformat()
    latest = here + timedelta(seconds=wait.seconds)
    try:
        return latest.isoformat() if datetime.fromisoformat(eta) > latest else eta
    except (ValueError, TypeError):  # written in another way, or without a zone
        return eta
