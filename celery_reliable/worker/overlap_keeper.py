"""Renew the rights of what runs here one at a time, and pass on who is asked to stop."""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_reliable.errors import StoreError
from celery_reliable.overlap import POLL, Claimant, Right, job_name
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.forks import AFTER_FORKS
from celery_reliable.worker.request import ReliableRequest
from celery_reliable.worker.stops import LOST, REPLACED, Stops

_BEATS_MISSING = 3
_AFTER_LIMIT = 30.0  # seconds that a hard time limit has to take effect


class OverlapKeeper(bootsteps.StartStopStep):
    """A thread of the worker's parent, there from the first task on that has an ``overlap`` other than ``allow``.

    It looks each second while such a task runs: one round trip, a second one when rights are due. A body that holds its
    child's interpreter does not stop it. A run that is asked to stop, or whose right another job took while this process
    stood still, sees it as ``self.draining``.
    """

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Make the file of stops before the pool makes its children."""
        super().__init__(parent, **kwargs)
        self._app = parent.app
        self._background = Background(self._keep, name="reliable-overlap")
        self._stops = Stops()
        self._known: set[str] = set()
        self._missing: dict[str, int] = {}

    def start(self, parent: Any) -> None:
        """Have the thread started when it is needed: a task, or one message of it, says so."""
        runtime_of(self._app).keep_rights = self._background.begin

    def stop(self, parent: Any) -> None:
        """End the thread. Called at the end of a drain, when nothing runs that has rights."""
        runtime_of(self._app).keep_rights = None
        self._background.end(patience=1.0)
        self._stops.close()

    terminate = stop

    def _keep(self) -> None:
        while not self._background.wait(POLL):
            self.beat()

    def beat(self) -> None:
        """Renew and tell once. An outage of the store is no event of its own: the lease keeper says so."""
        running = self._running()
        self._forget_all_but({request.token for request, _ in running})
        if not running:
            return
        try:
            rights = runtime_of(self._app).rights.renew([claimant for _, claimant in running])
        except StoreError:
            return
        for request, claimant in running:
            self._tell(request, claimant, rights[job_name(claimant.job)])

    def _running(self) -> list[tuple[ReliableRequest, Claimant]]:
        mine = [one for one in _snapshot() if isinstance(one, ReliableRequest) and one._app is self._app]  # noqa: SLF001  # no public name (5.7)
        claimants = [(one, _claimant(one)) for one in mine]
        return [(one, claimant) for one, claimant in claimants if claimant is not None]

    def _tell(self, request: ReliableRequest, claimant: Claimant, right: Right | None) -> None:
        if right is not None:
            self._missing.pop(request.token, None)
            if right.stop:
                self._stops.ask(request.token, reason=REPLACED)
            return
        # One that begins or ends at this moment has no right, either; what is lost stays so.
        beats = self._missing[request.token] = self._missing.get(request.token, 0) + 1
        if beats == _BEATS_MISSING and request in state.active_requests:
            self._lost(request, claimant)

    def _lost(self, request: ReliableRequest, claimant: Claimant) -> None:
        self._stops.ask(request.token, reason=LOST)
        facts = {"task": request.name, "task_id": request.id, "key": request.job.key}
        runtime_of(self._app).events.emit("overlap_lost", **facts, overlap_key=claimant.name)

    def _forget_all_but(self, tokens: set[str]) -> None:
        for token in self._known - tokens:
            self._missing.pop(token, None)
            self._stops.forget(token)
        self._known = tokens


def _claimant(request: ReliableRequest) -> Claimant | None:
    """Return whose right a run may have; None where there is none, or no longer."""
    if request.overlap == "allow" or not request.accepted_at:
        return None
    settings, limit = request.settings, request.time_limits[0] or request.task.time_limit
    longest = limit + _AFTER_LIMIT if limit else settings.max_runtime
    name = request.overlap_name
    if name is None or time.monotonic() - request.accepted_at > longest:
        return None
    return Claimant(name, request.job, request.id, settings.lease_ttl)


def _snapshot() -> list[Any]:
    """Copy a WeakSet that the event loop changes meanwhile."""
    while True:
        try:
            return list(state.active_requests)
        except RuntimeError:
            continue
