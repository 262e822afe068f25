"""Find settings that are right alone and wrong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_reliable.settings.model import Settings


def between(settings: Settings, *, labels: Mapping[str, str]) -> list[str]:
    """Say which settings contradict each other; ``labels`` are their names in messages."""
    found = [_short_marker(settings, labels), _short_runtime(settings, labels), _low_cap(settings, labels)]
    return [problem for problem in found if problem]


def _short_marker(settings: Settings, labels: Mapping[str, str]) -> str | None:
    """Compare the life of the done marker with that of its message: a late copy without a marker runs the task again."""
    window = settings.retry_window()
    needed = window + settings.visibility_timeout
    if settings.idempotency_ttl > needed:
        return None
    source = "max_retries" if settings.retry_for is None else "retry_for"
    return (
        f"{labels['idempotency_ttl']}: expected more than {_number(needed)} seconds (retries for {_number(window)} by "
        f"{labels[source]}, then the broker's visibility_timeout of {_number(settings.visibility_timeout)}), found "
        f"{_number(settings.idempotency_ttl)}; raise it, or shorten the retries"
    )


def _short_runtime(settings: Settings, labels: Mapping[str, str]) -> str | None:
    if settings.max_runtime >= settings.lease_ttl:
        return None
    return _too_small("max_runtime", settings.max_runtime, "lease_ttl", settings.lease_ttl, labels=labels)


def _low_cap(settings: Settings, labels: Mapping[str, str]) -> str | None:
    if settings.retry_backoff_max >= settings.retry_backoff:
        return None
    return _too_small(
        "retry_backoff_max", settings.retry_backoff_max, "retry_backoff", settings.retry_backoff, labels=labels
    )


def _too_small(name: str, found: float, other: str, least: float, *, labels: Mapping[str, str]) -> str:
    return (
        f"{labels[name]}: expected at least {labels[other]} ({_number(least)} seconds), found {_number(found)}; raise it, "
        f"or lower {labels[other]}"
    )


def _number(value: float) -> str:
    return f"{value:.12g}"
