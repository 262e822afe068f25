"""Let a process that a worker forks go on where a thread of its parent was at work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from threading import Lock, RLock
from typing import Any

from celery import _state, signals
from celery.utils.dispatch.signal import Signal

_PACKAGES = ("celery", "celery_reliable", "kombu")


@cache
def free_locks_in_children() -> None:
    """Have each process that this one forks from now on begin with free locks. May be called twice.

    A fork copies a lock that a thread has just then, and not the thread: nobody would ever free it, and a pool child would
    stand still in its task until the time limit. Each read of a cached property of kombu's (5.7) takes one, the first read of
    one of Python's before 3.12, each signal of Celery's (5.7) one of its own, each event that of its app's clock, and each
    ``task-sent`` that of a dispatcher. Celery makes kombu's pools anew in a child, and Python frees the locks of logging.
    """
    os.register_at_fork(before=_locked, after_in_child=_free_locks)


def _free_locks() -> None:
    properties, sent = _locked()
    for found in properties:
        found.lock = RLock()
    for signal in sent:
        signal.lock = Lock()
    for app in _state._get_active_apps():  # noqa: SLF001
        app.clock.mutex = Lock()
        amqp = vars(app).get("amqp")
        if amqp is not None and "_event_dispatcher" in vars(amqp):
            amqp._event_dispatcher.mutex = Lock()  # noqa: SLF001


@cache
def _locked() -> tuple[list[Any], list[Any]]:
    """Return the cached properties and the signals that have locks.

    Found once, before the first fork: a child that looked through all classes would copy the memory they lie in.
    """
    return [found for found in _cached_properties() if hasattr(found, "lock")], _of_kind(Signal, signals)


def _cached_properties() -> Iterator[Any]:
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in _PACKAGES and module is not None:
            for owner in _of_kind(type, module):
                yield from _of_kind(cached_property, owner)


def _of_kind(kind: type, owner: Any) -> list[Any]:
    """Return what an owner has of a kind: by ``type``, since ``isinstance`` has a proxy of Celery's look up what it stands for."""
    return [found for found in vars(owner).values() if issubclass(type(found), kind)]
