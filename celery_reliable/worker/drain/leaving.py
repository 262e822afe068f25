"""Leave a process whose bodies, broker or store cannot be waited for: nothing here may take long."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from celery.worker import state

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import broker_driver
from celery_reliable.worker.drain.threads import original, start_thread
from celery_reliable.worker.request import ReliableRequest

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

_COVERS_EXIT = 1.0
"""Seconds for which a lease outlives a process that is about to go, with a body in it that cannot be ended."""
_PATIENCE = 0.25  # seconds for the broker and the store together
_CONNECT = 0.2


def release_leases(requests: Iterable[Any], *, bodies_are_gone: bool) -> None:
    """Give back the right to run of bodies that were ended from outside. Spends neither attempt nor delivery.

    A body that may still run keeps its right for as long as the process can need to end: nobody runs beside it.
    """
    for request in requests:
        if isinstance(request, ReliableRequest):
            _release(request, delay=0.0 if bodies_are_gone else _COVERS_EXIT)


def _release(request: ReliableRequest, *, delay: float) -> None:
    runtime = request.runtime
    facts = {"task": request.name, "task_id": request.id, "key": request.job.key}
    try:
        runtime.store.release(
            request.job,
            fence=None,
            token=request.token,
            outcome="interrupted",
            delay=delay,
            record_ttl=LIVE_RECORD_TTL + delay,
        )
    except StoreError:
        runtime.events.emit("store_unavailable", **facts, verb="release", wait=0.0)
        return
    runtime.events.emit("interrupted", **facts)


def kill_children(pool: Any, requests: Iterable[Any], *, patience: float = 0.3) -> bool:
    """Kill the children that run these requests. True when all of them are gone for certain."""
    processes = [_process_of(pool, request) for request in requests]
    for request in requests:
        with suppress(OSError):
            request.cancel(pool, signal="KILL", emit_retry=False)
    deadline = time.monotonic() + patience
    while any(_is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _process_of(pool: Any, request: Any) -> Any:
    """Find the child in billiard's own list (4.3), so that its exit code is read by whoever else waits for it."""
    return pool._pool._process_by_pid(request.worker_pid)[0]  # noqa: SLF001


def _is_alive(process: Any) -> bool:
    return process is not None and process.exitcode is None


def leave(app: Celery, *, pool: Any, held: Iterable[Any], cleanup: Callable[[], None]) -> NoReturn:
    """End the process with code 0; before that hand over what can be handed over in a moment.

    Messages go back by a connection of our own: the consumer's may be in use by a thread that is stuck. RabbitMQ does
    it by itself when the connection ends.
    """
    running = list(state.active_requests)
    gone = _kill_all(pool)
    _within(_PATIENCE, lambda: release_leases(running, bodies_are_gone=gone), lambda: give_back_apart(app, held))
    if running:
        logger.warning("drain: the process ends with tasks in it", extra={"reliable_running": len(running)})
    cleanup()
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # a closed or broken stream must not keep the process
            if stream is not None:
                stream.flush()
    os._exit(0)


def _kill_all(pool: Any) -> bool:
    """Kill every pool child. False where bodies are in this very process."""
    workers = getattr(pool, "_pool", None)
    processes = list(getattr(workers, "_pool", None) or ())
    if workers is not None and processes:
        # No others in their place (billiard 4.3): they would outlive us, each with the end of its pipe in the other's hands.
        workers._processes = 0  # noqa: SLF001
    pids = [process.pid for process in processes if getattr(process, "pid", None)]
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(OSError):
            _reap(pid)
    return bool(pids)


def _reap(pid: int, *, tries: int = 20) -> None:
    for _ in range(tries):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        original("time", "sleep")(0.005)


def _within(seconds: float, *actions: Callable[[], None]) -> None:
    """Run actions beside each other, and wait for them no longer than this."""
    left = [len(actions)]

    def run(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # whatever it is, the process ends now
            logger.exception("drain: hand-over failed")
        left[0] -= 1

    for action in actions:
        start_thread(lambda action=action: run(action))  # type: ignore[misc]  # binds the loop's variable
    deadline = time.monotonic() + seconds
    while left[0] and time.monotonic() < deadline:
        original("time", "sleep")(0.01)


def give_back_apart(app: Celery, messages: Iterable[Any]) -> None:
    """Give messages back, on Redis, by a connection of our own."""
    tags = [message.delivery_tag for message in messages]
    if not tags or broker_driver(app) != "redis":
        return
    options = {
        **(app.conf.broker_transport_options or {}),
        "socket_timeout": _CONNECT,
        "socket_connect_timeout": _CONNECT,
    }
    with app.connection_for_read(transport_options=options) as connection:
        internals.restore_all(connection.channel(), tags[::-1])
