"""Reach what an app keeps to itself: its settings, its tasks, its queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from celery import Task, current_app
from celery.app import utils as app_utils
from kombu import Exchange

if TYPE_CHECKING:
    from celery import Celery


def loaded_app() -> Celery | None:
    """Return the app that this process has made; None when there is only the one that Celery makes up.

    ``celery._state`` (5.7) answers with an app named "default" that is nobody's current one when it is asked for an app
    and has none: whatever is submitted with it goes to a broker on this host.
    """
    app: Celery = current_app._get_current_object()  # noqa: SLF001
    return None if app.main == "default" and not app.set_as_current else app


def command_context(app: Celery) -> Any:
    """Return what ``celery -A proj`` gives its commands as ``ctx.obj``: ``celery.bin.base.CLIContext`` (5.7)."""
    from celery.bin.base import CLIContext  # noqa: PLC0415  # the command line, which nobody else needs

    return CLIContext(app=app, no_color=False, workdir=None)


def register_alias(app: Celery, cls: type[Task], name: str) -> bool:
    """Register a task under one more name; False when another task has it.

    ``app._tasks`` (5.7) is what ``app.tasks`` gives without finalising the app, which is not possible while a task is
    bound. The entry is an instance of its own: workers keep a tracer, which knows the name, on each.
    """
    known = app._tasks.get(name)  # noqa: SLF001
    if known is None:
        app._tasks[name] = cls()  # noqa: SLF001
    return known is None or type(known) is cls


def declare_like(app: Celery, queue: str, names: Iterable[str]) -> None:
    """Let an app know queues that are like another one, each reached by its own name alone.

    A copy of a kombu ``Queue`` (5.7) has its arguments, so type, priorities and limits. The exchange is one of the queue's own, as
    ``Queues.new_missing`` (5.7) has it; Celery sends to such a queue by the default exchange. Raises `KeyError` for an unknown one.
    """
    model = app.amqp.queues[queue]
    for name in names:
        made = copy(model)
        made.name = made.routing_key = name
        made.exchange, made.bindings, made.alias = Exchange(name, type="direct"), set(), None
        app.amqp.queues.add(made)


def consume_also(app: Celery, more: Callable[[str], Iterable[str]]) -> None:
    """Have a worker that has not begun to consume take more queues with each that it was told to.

    ``Queues.select_add`` (5.7) adds to those of ``-Q``, or to all that it consumes without it.
    """
    queues = app.amqp.queues
    for name in [name for queue in list(queues.consume_from) for name in more(queue)]:
        queues.select_add(queues[name])


def hide_settings(*words: str) -> None:
    """Have Celery hide settings whose names hold one of these words in ``celery report`` and ``celery inspect conf``.

    ``celery.app.utils.HIDDEN_SETTINGS`` (5.7) knows the names of Celery's own, for this process alone.
    """
    known: re.Pattern[str] = app_utils.HIDDEN_SETTINGS
    missing = [word for word in words if word not in known.pattern]
    if missing:
        app_utils.HIDDEN_SETTINGS = re.compile("|".join([known.pattern, *missing]), known.flags)


@contextmanager
def changed_settings(app: Celery, settings: Mapping[str, Any]) -> Iterator[None]:
    """Give an app other settings for a block of code, servers among them; after it, all are as they were.

    ``Settings.changes`` (5.7) holds what was set, once the configuration has been read. Connections are made anew at
    both ends.
    """
    _ = app.conf.broker_url  # reads it
    changes = app.conf.changes
    before = dict(changes)
    app.conf.update(settings)
    _forget_connections(app)
    try:
        yield
    finally:
        _forget_connections(app)
        changes.clear()
        changes.update(before)


def _forget_connections(app: Celery) -> None:
    """Close what an app keeps open, and forget it, as ``Celery._after_fork`` (5.7) does; the backend it keeps two ways."""
    if app._pool is not None:  # noqa: SLF001
        app._pool.force_close_all()  # noqa: SLF001
    app._after_fork()  # noqa: SLF001
    backend = app._backend  # noqa: SLF001
    # A result that is collected later would look for a server that is gone (Redis, ``AsyncResult.__del__``).
    getattr(getattr(backend, "result_consumer", None), "subscribed_to", set()).clear()
    app._backend_cache = None  # noqa: SLF001
    vars(app._local).pop("backend", None)  # noqa: SLF001
