"""Renew the leases of everything that runs in this worker, from one thread, in one call."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.records import ENDED
from celery_reliable.worker.background import Background
from celery_reliable.worker.forks import AFTER_FORKS
from celery_reliable.worker.request import ReliableRequest

if TYPE_CHECKING:
    from celery_reliable.stores.base import Job

_RENEWALS = 3  # a lease survives two that fail
_AFTER_LIMIT = 30.0  # seconds that a hard time limit has to take effect


class LeaseKeeper(bootsteps.StartStopStep):
    """Beat the pulse, and renew each running task's lease, every third of ``reliable_lease_ttl``.

    A thread of the worker's parent: a busy event loop, a frozen broker or a body that holds the child's interpreter do
    not stop it. A task shorter than a third of the lease is never renewed. A lease is given up once its task has run
    for its hard time limit and 30 s, or for ``reliable_max_runtime`` without one.
    """

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the worker's app; the thread starts with the worker."""
        super().__init__(parent, **kwargs)
        self._app = parent.app
        self._background = Background(self._keep, name="reliable-lease-keeper")
        self._given_up: set[str] = set()
        self._lost_before: set[str] = set()
        self._told_lost: set[str] = set()

    def start(self, parent: Any) -> None:
        """Start the thread."""
        self._background.begin()

    def stop(self, parent: Any) -> None:
        """Let the last beat end. Called at the end of a drain, when nothing runs that would need another."""
        self._background.end(patience=1.0)

    terminate = stop

    def _keep(self) -> None:
        runtime = runtime_of(self._app)
        while True:
            self.beat()
            if self._background.wait(runtime.settings.lease_ttl / _RENEWALS):
                return

    def beat(self) -> None:
        """Renew once. An outage of the store is an event; the leases outlive two missed beats."""
        runtime = runtime_of(self._app)
        claims = self._claims()
        held = {job.key: request for job, _, _, request in claims}
        try:
            lost = runtime.store.renew([claim[:3] for claim in claims], pulse_ttl=runtime.settings.lease_ttl)
        except StoreError:
            runtime.events.emit("renew_failed", held=len(claims))
            return
        with suppress(StoreError):  # it was there a moment ago
            runtime.store.now()  # measured here, so that the consumer knows it without asking (`waits`)
        self._tell_lost([held[key] for key in lost])

    def _tell_lost(self, requests: list[ReliableRequest]) -> None:
        """Tell of each lost lease once, unless its job has ended: what follows it may still be sent."""
        tokens = {request.token for request in requests}
        self._told_lost &= tokens
        for request in requests:
            # One that ends at this moment looks lost, too; what is lost stays so until the next beat.
            if request.token in self._lost_before - self._told_lost and request in state.active_requests:
                self._tell_if_it_runs(request)
        self._lost_before = tokens

    def _tell_if_it_runs(self, request: ReliableRequest) -> None:
        runtime = runtime_of(self._app)
        with suppress(StoreError):  # the next beat asks again
            ended = runtime.store.inspect(request.job).get("state") in ENDED
            self._told_lost.add(request.token)
            if not ended:
                runtime.events.emit("lease_lost", task=request.name, task_id=request.id, key=request.job.key)

    def _claims(self) -> list[tuple[Job, str, float, ReliableRequest]]:
        ours = [one for one in internals.active_requests() if isinstance(one, ReliableRequest)]
        running = [one for one in ours if one._app is self._app]  # noqa: SLF001  # no public name (5.7)
        for request in running:
            request.look_at_memory()
        return [(one.job, one.token, one.settings.lease_ttl, one) for one in running if self._is_kept(one)]

    def _is_kept(self, request: ReliableRequest) -> bool:
        """Whether a renewal is due and the task within its time."""
        ran = time.monotonic() - request.accepted_at
        settings = request.settings
        limit = request.time_limits[0] or request.task.time_limit
        longest = limit + _AFTER_LIMIT if limit else settings.max_runtime
        if ran > longest:
            self._give_up(request)
            return False
        return bool(ran >= settings.lease_ttl / _RENEWALS / 2)

    def _give_up(self, request: ReliableRequest) -> None:
        if request.token not in self._given_up:
            self._given_up.add(request.token)
            runtime_of(self._app).events.emit(
                "runtime_exceeded", task=request.name, task_id=request.id, key=request.job.key
            )
