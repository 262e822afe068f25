"""Tell on which dependencies tasks rely: the names of their breakers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery

WORDS: Mapping[str, str] = {"closed": "closed", "open": "open", "half_open": "half open", "held_open": "held open"}


def of_tasks(app: Celery, names: Iterable[str]) -> tuple[str, ...]:
    """Return the breakers that these tasks name, each once; a task that is not registered names none."""
    settings = (getattr(app.tasks.get(name), "reliable_settings", None) for name in names)
    return tuple(dict.fromkeys(one.breaker for one in settings if one is not None and one.breaker is not None))


def by_breaker(app: Celery) -> dict[str, list[str]]:
    """Return the tasks of each breaker."""
    app.loader.import_default_modules()
    found: dict[str, list[str]] = {}
    for name in app.tasks:
        for breaker in of_tasks(app, [name]):
            found.setdefault(breaker, []).append(name)
    return found


def phases(app: Celery, tasks: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return, by breaker, its state and how many of the calls of these tasks would meet it. Raises what the store raises."""
    concerned = Counter(breaker for name in tasks for breaker in of_tasks(app, [name]))
    runtime = runtime_of(app)
    known, now = (runtime.breakers.known(), runtime.store.now()) if concerned else ({}, 0)
    return {
        name: (known[name].phase(now) if name in known else "closed", count)
        for name, count in sorted(concerned.items())
    }
