"""Judge the store's server by what it tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from celery_reliable.checks.findings import Finding, Severity
from celery_reliable.runtime import runtime_of
from celery_reliable.settings import resolve_store_url

if TYPE_CHECKING:
    from celery import Celery

_CODES: Final = (
    ("maxmemory-policy", "store_evicts"),
    ("appendonly", "store_volatile"),
    ("is needed", "store_old"),
    ("keys of a cache", "store_is_cache"),
    ("of maxmemory", "store_nearly_full"),
    ("keys lie in the database", "store_many_keys"),
    ("tables are missing", "store_no_tables"),
)
_WARNINGS: Final = ("store_volatile", "store_is_cache", "store_nearly_full", "store_many_keys", "store_no_tables")


def server_findings(app: Celery) -> list[Finding]:
    """Ask the store's server. Raises `StoreError`."""
    return [*map(store_finding, runtime_of(app).store.findings()), *_cache(app)]


def store_finding(text: str) -> Finding:
    """Return the finding that a sentence of a store is, with its code."""
    code = next((code for words, code in _CODES if words in text), "store_finding")
    severity: Severity = "warning" if code in _WARNINGS else "error"
    return Finding(code, severity, f"store: {text}.")


def _cache(app: Celery) -> Iterator[Finding]:
    """Compare the store's address with those of Django's caches, where there is a Django."""
    with suppress(Exception):  # no Django, or one that is not configured
        from django.conf import settings  # noqa: PLC0415  # only where there is one

        conf = app.conf
        url = resolve_store_url(
            runtime_of(app).settings.store_url, result_backend=conf.result_backend, broker_url=conf.broker_write_url
        )
        locations = [one.get("LOCATION") for one in settings.CACHES.values()]
        flat = [place for one in locations for place in (one if isinstance(one, list | tuple) else [one])]
        if url.rstrip("/") in {str(place).rstrip("/") for place in flat}:
            yield Finding(
                "store_is_cache",
                "error",
                "the store is the Redis database of a Django cache: cache.clear() there forgets every job. Give "
                "reliable_store_url a database of its own.",
            )
