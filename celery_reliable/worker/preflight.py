"""Refuse to start a worker whose settings are wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import SecurityError
from click import get_current_context
from click.core import ParameterSource
from kombu import Connection

from celery_reliable import internals
from celery_reliable.errors import ConfigurationError, StoreError
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.waiting import quiet_waits

if TYPE_CHECKING:
    from celery import Celery
    from celery.worker import WorkController

# kombu sweeps for unacknowledged messages every interval * throttle seconds (100 by default), and a sweeper that was
# killed keeps everybody else from sweeping for mutex_expire seconds (300 by default).
REDIS_TRANSPORT_OPTIONS = {"unacked_restore_interval": 5, "unacked_restore_throttle": 1, "unacked_mutex_expire": 30}


class StartRefused(ConfigurationError, SecurityError):
    """The worker's settings are wrong.

    A SecurityError too: it is the one error that ``celery worker`` shows as a message, without a traceback (5.7,
    ``celery/bin/worker.py``).
    """


class Preflight(bootsteps.Step):
    """Check the settings and the store's layout, and complete what depends on the worker, before anything starts.

    A bootstep's ``__init__`` is the first place of ours whose errors Celery does not swallow; all of them run before
    any step starts. Our other worker steps require this one, so that they find the settings checked.
    """

    requires = ()

    def __init__(self, parent: WorkController, **kwargs: Any) -> None:
        """Raise `StartRefused` with every problem in its text."""
        super().__init__(parent, **kwargs)
        try:
            check_settings(parent.app)
            check_layout(parent.app)
        except ConfigurationError as exc:
            raise StartRefused(*exc.args) from exc
        complete_transport_options(parent.app)
        correct_prefetch(parent)
        quiet_waits()
        internals.free_locks_in_children()


def check_settings(app: Celery) -> None:
    """Raise ConfigurationError for wrong settings, and for wrong options of a registered task."""
    runtime = runtime_of(app)
    if runtime.blobs is not None:
        runtime.blobs.check()
    _ = runtime.admission, runtime.lanes, runtime.rights, runtime.switches, runtime.redact
    for task in app.tasks.values():
        if hasattr(type(task), "reliable_settings"):
            _ = task.reliable_settings
            task.shape.check(task.payload_version)


def check_layout(app: Celery) -> None:
    """Raise ConfigurationError for a store that newer code has laid out. Of one that is away, the worker's steps tell."""
    with suppress(StoreError):
        problem = runtime_of(app).store.newer_layout()
        if problem:
            raise ConfigurationError(problem)


def complete_transport_options(app: Celery) -> None:
    """Make kombu's recovery of unacknowledged messages prompt, on Redis; the project's own options win.

    Merged by code, for this driver only: other brokers read options of the same names in their own way. The worker is
    the only one to recover messages, and only here it is certain which broker it will use.
    """
    if Connection(app.conf.broker_read_url).get_transport_cls().driver_type != "redis":
        return
    app.conf.broker_transport_options = {**REDIS_TRANSPORT_OPTIONS, **(app.conf.broker_transport_options or {})}


def correct_prefetch(worker: Any) -> None:  # Any: the multiplier of a WorkController is not in the stubs
    """Give the worker the configured prefetch multiplier, unless its command line names one.

    ``celery worker`` reads the setting while it parses its options, when a project that is wired by a bound task alone
    is not wired yet (5.7, ``celery/bin/worker.py``).
    """
    context = get_current_context(silent=True)
    if context is not None and context.get_parameter_source("prefetch_multiplier") is ParameterSource.DEFAULT:
        worker.prefetch_multiplier = worker.app.conf.worker_prefetch_multiplier
