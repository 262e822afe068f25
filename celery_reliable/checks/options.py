"""Find options of tasks, routes and entries that do not do what they look like."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.checks.findings import Finding
from celery_reliable.task import ReliableTask

if TYPE_CHECKING:
    from celery import Celery

_NAMED: Final = 3
_EVERYTHING: Final = (Exception, BaseException)


def option_findings(app: Celery) -> list[Finding]:
    """Look at what tasks, ``task_routes`` and ``beat_schedule`` say; imports and connects to nothing."""
    tasks = own_tasks(app)
    if not tasks:  # a process that only sends: what others run is not known here
        return []
    return [*_limits(app, tasks), *_retries(tasks), *_routes(app), *_queues(app, tasks), *_entries(app)]


def own_tasks(app: Celery) -> list[Any]:
    """Return the tasks of an app without Celery's own."""
    return [task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")]


def limit_of(app: Celery, task: Any) -> float | None:
    """Return the hard time limit under which a task runs; a 0 of its own switches the project's off."""
    limit = app.conf.task_time_limit if task.time_limit is None else task.time_limit
    return float(limit) if limit else None


def few(names: Iterable[str]) -> str:
    """Name a few."""
    found = list(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


# --- time limits


def _limits(app: Celery, tasks: list[Any]) -> Iterator[Finding]:
    off = [task.name for task in tasks if task.time_limit == 0 and app.conf.task_time_limit]
    if off:
        yield Finding(
            "time_limit_off",
            "warning",
            f"{few(off)}: time_limit=0 is no limit, not even the project's task_time_limit: a run that hangs holds its slot for "
            "good. Give it a number of seconds, or leave it out.",
        )
    endless = [task.name for task in tasks if limit_of(app, task) is None and task.name not in off]
    if endless:
        yield Finding(
            "no_time_limit",
            "info",
            f"{few(endless)}: no time limit: a run that hangs holds its slot until somebody looks. Set task_time_limit to the "
            "longest run at its worst and half as much again.",
        )
    late = [task.name for task in tasks if _is_late(app, task)]
    if late:
        yield Finding(
            "soft_limit_late",
            "warning",
            f"{few(late)}: soft_time_limit is not below time_limit: the process is killed before the task is told, so that it "
            "cannot save anything. Leave a minute between them.",
        )


def _is_late(app: Celery, task: Any) -> bool:
    soft = app.conf.task_soft_time_limit if task.soft_time_limit is None else task.soft_time_limit
    hard = limit_of(app, task)
    return bool(soft and hard and soft >= hard)


# --- retries


def _retries(tasks: list[Any]) -> Iterator[Finding]:
    anything = [task.name for task in tasks if any(one in _EVERYTHING for one in _retried(task))]
    if anything:
        yield Finding(
            "retries_anything",
            "warning",
            f"{few(anything)}: retries every Exception: a bug is tried again like an outage, and is told of only when all retries "
            "are spent. Name the errors that another attempt may cure.",
        )
    plain = [task for task in tasks if not isinstance(task, ReliableTask) and getattr(task, "autoretry_for", None)]
    in_step = [task.name for task in plain if not getattr(task, "retry_backoff", None)]
    if in_step:
        yield Finding(
            "retries_in_step",
            "warning",
            f"{few(in_step)}: autoretry_for without retry_backoff: what failed together is tried together again, after the same "
            "pause each time, and meets the same overload. Set retry_backoff=True; ReliableTask spreads retries by itself.",
        )


def _retried(task: Any) -> tuple[Any, ...]:
    settings = task.reliable_settings.retry_on if isinstance(task, ReliableTask) else ()
    return (*(getattr(task, "autoretry_for", None) or ()), *settings)


# --- routes and queues


def _routes(app: Celery) -> Iterator[Finding]:
    names = list(app.tasks)
    unmet = [str(given) for given, _ in _routed(app) if isinstance(given, str) and not fnmatch.filter(names, given)]
    if unmet:
        yield Finding(
            "route_unmet",
            "info",
            f"task_routes: {few(unmet)} fits no task of this app: a task that was renamed goes to the default queue, where its "
            "worker may not be. Correct the name, or remove the route if the task runs elsewhere.",
        )


def _queues(app: Celery, tasks: list[Any]) -> Iterator[Finding]:
    if not app.conf.task_queues:
        return
    entries = [entry for entry in _scheduled(app).values() if isinstance(entry, Mapping)]
    used = [
        *(getattr(task, "queue", None) for task in tasks),  # no attribute of Celery's Task
        *(route if isinstance(route, str) else route.get("queue") for _, route in _routed(app)),
        *((entry.get("options") or {}).get("queue") for entry in entries),
    ]
    declared = {queue if isinstance(queue, str) else queue.name for queue in _declared(app)}
    missing = dict.fromkeys(name for name in used if isinstance(name, str) and name not in declared)
    if not missing:
        return
    if app.conf.task_create_missing_queues:
        yield Finding(
            "queue_undeclared",
            "info",
            f"queue {few(missing)} is not among task_queues: a worker without -Q does not consume it, and it is made without the "
            "arguments that yours have. Add it.",
        )
        return
    yield Finding(
        "queue_undeclared",
        "error",
        f"queue {few(missing)} is not among task_queues, and task_create_missing_queues is off: whoever sends there gets "
        "QueueNotFound. Add it.",
    )


def _declared(app: Celery) -> Iterable[Any]:
    given = app.conf.task_queues
    return given.keys() if isinstance(given, Mapping) else given


def _routed(app: Celery) -> Iterator[tuple[Any, Any]]:
    """Iterate over (name or pattern, route) of the routes that are data; functions are not asked."""
    given = app.conf.task_routes or ()
    for one in [given] if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else []:
        if isinstance(one, Mapping):
            yield from one.items()


# --- the schedule


def _entries(app: Celery) -> Iterator[Finding]:
    wanted = {name: _task_of(entry) for name, entry in _scheduled(app).items()}
    unknown = [f"{name!r} ({task})" for name, task in wanted.items() if task and task not in app.tasks]
    if unknown:
        yield Finding(
            "entry_without_task",
            "warning",
            f"beat_schedule: {few(unknown)} names no task of this app: each slot sends a message that no worker here can run. "
            "Correct the name, or import the module (imports, include).",
        )


def _scheduled(app: Celery) -> Mapping[str, Any]:
    schedule: Mapping[str, Any] = app.conf.beat_schedule or {}
    return schedule


def _task_of(entry: Any) -> str:
    return str(entry.get("task") if isinstance(entry, Mapping) else getattr(entry, "task", "")) or ""
