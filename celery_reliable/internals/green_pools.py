"""Keep green pools from standing still, or ending, on what gevent and eventlet do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu.utils import functional

if TYPE_CHECKING:
    from celery import Celery


def subscribe_only_to_wait(app: Celery) -> None:
    """Have this process subscribe to a result when somebody waits for it, not whenever a task is sent.

    On green pools Celery (5.7, Redis backend) subscribes for every task that a worker sends, and unsubscribes in
    ``AsyncResult.__del__``. The garbage collector may run that anywhere: inside gevent's own thread pool, which looks up
    the server's name, it waits for a lock that the same thread holds, and the worker stands still for ever. With this
    the collector only notes what to unsubscribe from, and the next look at the results does it.
    """
    make: Callable[[], Any] = app._get_backend  # noqa: SLF001  # each thread may have a backend of its own

    def calm_backend() -> Any:
        return _calm(make())

    app._get_backend = calm_backend  # noqa: SLF001
    _calm(app.backend)


def _calm(backend: Any) -> Any:
    consumer = getattr(backend, "result_consumer", None)
    pending = getattr(consumer, "_pending_unsubscribe", None)
    if consumer is not None and pending is not None:
        backend.on_task_call = _no_subscription
        consumer.cancel_for = lambda task_id: pending.add(consumer._get_key_for_task(task_id))  # noqa: SLF001
    return backend


def _no_subscription(producer: Any, task_id: str) -> None:
    """Stand for `on_task_call`."""


def sleep_cooperatively() -> None:
    """Have kombu sleep between two tries to connect as all do on a green pool: the other greenlets go on meanwhile.

    gevent (26.9, ``patch_all``) looks at every object before it patches ``time``. Celery's lazy ones (5.7) import kombu for it, and
    ``kombu.utils.functional`` (5.7) keeps the ``sleep`` that stops the process. A worker without its broker then stands still for
    up to half a minute at a time: its tasks, its heartbeat, and the renewal of its leases.
    """
    functional.sleep = time.sleep


def poll_open_sockets_only(poller: Any) -> None:
    """Take closed sockets out of a green worker's poller (``kombu.utils.eventio._select``, 5.7) before each look.

    kombu does so by waiting for each of them once the wait for all has failed. On eventlet (0.41, ``green.select``) a wait that
    fails leaves its listeners behind. The next socket that gets the number of the closed one has an error thrown
    into the greenlet that had waited, whatever that does by then: a worker that sleeps between two tries to connect ends.
    """
    poll = poller.poll

    def poll_open(timeout: float | None) -> Any:
        for descriptor in [*poller._rfd, *poller._wfd, *poller._efd]:  # noqa: SLF001
            try:
                os.fstat(descriptor)
            except OSError:
                poller.unregister(descriptor)
        return poll(timeout)

    poller.poll = poll_open
