"""Find settings by which something is kept for ever, or for so long that it comes to the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.checks.findings import Finding
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.settings import Settings

_DAY: Final = 86_400.0
_YEAR: Final = 365 * _DAY
_LONGEST_PARKED: Final = 90 * _DAY
_MOST_LETTERS: Final = 10_000_000
_MOST_RETRIES: Final = 10_000
_BYTES_OF_A_KEY: Final = 165  # `benchmarks/memory.py`


def retention_findings(app: Celery) -> list[Finding]:
    """Look at what is kept of tasks that have ended, and at retries without an end."""
    settings = runtime_of(app).settings
    tasks = {name: one.reliable_settings for name, one in app.tasks.items() if hasattr(type(one), "reliable_settings")}
    return [
        *_of_results(app),
        *_of_letters(settings),
        *_of_keys(settings, tasks),
        *_of_retries(settings, tasks),
    ]


def _of_results(app: Celery) -> Iterator[Finding]:
    given = app.conf.result_expires
    if not app.conf.result_backend or app.conf.task_ignore_result:
        return
    if not given:
        yield Finding(
            "results_kept_for_ever",
            "error",
            f"result_expires is {given!r}: results are never removed, and the backend grows with every task. Set it to the "
            "longest time after which somebody still asks for a result, such as 86400, or ignore_result for tasks of which "
            "nobody does.",
        )
    elif _seconds(given) > _YEAR:
        yield Finding(
            "results_kept_too_long",
            "warning",
            f"result_expires is {_days(_seconds(given))}: results of that time are all kept. Set it to the longest time after "
            "which somebody still asks for one.",
        )


def _seconds(given: Any) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def _of_letters(settings: Settings) -> Iterator[Finding]:
    if settings.dead_letter_ttl > _YEAR:
        yield Finding(
            "letters_kept_too_long",
            "warning",
            f"reliable_dead_letter_ttl is {_days(settings.dead_letter_ttl)}: a call that old is seldom worth a replay, and its "
            "arguments are kept that long, personal data included. Set it to some weeks, and export what has to be kept longer "
            "(`dlq list --json`).",
        )
    if settings.dead_letter_max > _MOST_LETTERS:
        yield Finding(
            "letters_too_many",
            "warning",
            f"reliable_dead_letter_max is {settings.dead_letter_max:,}: at some 2 KB each these are "
            f"{settings.dead_letter_max * 2 / 1e6:,.0f} GB of the store's memory before the oldest go. Set it to what the store "
            "can hold.",
        )
    if settings.park_ttl > _LONGEST_PARKED:
        yield Finding(
            "parked_too_long",
            "warning",
            f"reliable_park_ttl is {_days(settings.park_ttl)}: for so long nobody is told of a call whose task does not exist. "
            "Set it to the longest time that a deploy takes.",
        )


def _of_keys(settings: Settings, tasks: dict[str, Settings]) -> Iterator[Finding]:
    for where, ttl in _differing(settings, tasks, "idempotency_ttl"):
        if ttl > _YEAR:
            yield Finding(
                "keys_kept_too_long",
                "warning",
                f"{where}idempotency_ttl is {_days(ttl)}: every finished key is kept that long, some {_BYTES_OF_A_KEY} bytes each, "
                f"{_BYTES_OF_A_KEY * ttl / _DAY / 1e9 * 1e6:,.0f} GB at a million a day, and results beside them. Set it to the "
                "longest time after which the same call may be made again, or use the inbox, whose markers lie in your database.",
            )


def _of_retries(settings: Settings, tasks: dict[str, Settings]) -> Iterator[Finding]:
    for where, most in _differing(settings, tasks, "max_retries"):
        name = where.removeprefix("task ").partition(":")[0]
        if most > _MOST_RETRIES and tasks.get(name, settings).retry_for is None and name != "celery.chord_unlock":
            yield Finding(
                "retries_unbounded",
                "warning",
                f"{where}max_retries is {most:,} and retry_for is not set: a call that always fails is never a dead letter that "
                "somebody sees. Set retry_for to the time after which it is too late anyway.",
            )


def _differing(settings: Settings, tasks: dict[str, Settings], name: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the values of a setting: the project's, and those of tasks that have another one."""
    general = getattr(settings, name)
    yield "reliable_", general
    for task, own in sorted(tasks.items()):
        if getattr(own, name) != general:
            yield f"task {task}: ", getattr(own, name)


def _days(seconds: float) -> str:
    return f"{seconds / _DAY:,.0f} days"
