"""Say how long the marker of a finished job lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_reliable.settings import Settings
    from celery_reliable.stores.base import Kind

_HOUR = 3600.0
_DAY = 24 * _HOUR


def marker_ttl(kind: Kind, settings: Settings, *, ledger: bool) -> float:
    """Return the life of a done marker in seconds, counted from the end.

    It must outlive every copy of the message. With a ledger, a late copy without a record is recognised by its age, so
    the marker of a task id needs only an hour.
    """
    if kind == "declared":
        return settings.idempotency_ttl
    if kind in ("derived", "slot"):
        return max(_DAY, settings.catch_up_window)
    return _HOUR if ledger else _DAY


def late_after(kind: Kind, settings: Settings, *, ledger: bool) -> float:
    """Return the age in seconds from which a message without a record is not run; 0 without a ledger: never."""
    return marker_ttl(kind, settings, ledger=True) if ledger else 0.0
