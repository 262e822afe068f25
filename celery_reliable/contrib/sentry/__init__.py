"""Tell Sentry what ended badly, and whether the schedule is kept.

    sentry_sdk.init(dsn=..., integrations=[CeleryIntegration()])
    app.conf.reliable_event_hooks = [
        "celery_reliable.contrib.sentry:report",  # dead letters
        "celery_reliable.contrib.sentry:check_in",  # cron monitors
    ]

Either works without the other, and is imported only when it is named. Needs sentry-sdk 2.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_reliable.contrib.sentry.check_ins import check_in
    from celery_reliable.contrib.sentry.failures import report

__all__ = ["check_in", "report"]

_ELSEWHERE = {"check_in": "check_ins", "report": "failures"}


def __getattr__(name: str) -> object:
    """Import a hook on first use."""
    if name not in _ELSEWHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
