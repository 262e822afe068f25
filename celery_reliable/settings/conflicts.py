"""Find settings that are right alone and wrong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_reliable.settings.model import Settings


def between(settings: Settings, *, labels: Mapping[str, str]) -> list[str]:
    """Say which settings contradict each other; ``labels`` are their names in messages."""
    rules = (_short_marker, _short_runtime, _low_cap, _long_window, _two_windows, _unclear_conflict, _short_burst)
    return [problem for rule in rules if (problem := rule(settings, labels))]


def _long_window(settings: Settings, labels: Mapping[str, str]) -> str | None:
    """Compare a window with the life of the marker, without which the key would run again in it."""
    if settings.dedup_for is None or settings.idempotency_ttl >= settings.dedup_for:
        return None
    return _too_small("idempotency_ttl", settings.idempotency_ttl, "dedup_for", settings.dedup_for, labels=labels)


def _two_windows(settings: Settings, labels: Mapping[str, str]) -> str | None:
    if settings.dedup_for is None or settings.debounce is None:
        return None
    return (
        f"{labels['debounce']}: expected no {labels['dedup_for']} beside it, found both: the one runs what comes last in a "
        "burst, the other what comes first; remove one of them"
    )


def _unclear_conflict(settings: Settings, labels: Mapping[str, str]) -> str | None:
    """Let one option alone say what is to become of a second submission."""
    if settings.debounce is not None:
        name, others = "debounce", ["raise", "replace"]
    else:
        name, others = "dedup_for", ["queue_one"] if settings.dedup_for is not None else []
    if settings.on_conflict not in others:
        return None
    return (
        f"{labels[name]}: expected no {labels['on_conflict']}={settings.on_conflict!r} beside it, found both: they say different "
        "things of a second submission; remove one of them"
    )


def _short_burst(settings: Settings, labels: Mapping[str, str]) -> str | None:
    if settings.debounce_max is None:
        return None
    if settings.debounce is None:
        return f"{labels['debounce_max']}: expected {labels['debounce']} beside it, found none; give it, or remove this one"
    if settings.debounce_max >= settings.debounce:
        return None
    return _too_small("debounce_max", settings.debounce_max, "debounce", settings.debounce, labels=labels)


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
