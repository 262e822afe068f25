"""Remove blobs that nobody can refer to any more, once an hour, by one worker of the fleet."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable import keys
from celery_reliable.errors import ReliableError
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.forks import AFTER_FORKS

EACH = 3600.0
_ROLE = "blobs"


class BlobSweep(bootsteps.StartStopStep):
    """A thread that exists only where ``reliable_blob_url`` is set."""

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the worker's app."""
        super().__init__(parent, **kwargs)
        self._app = parent.app
        self._background = Background(self._run, name="reliable-blobs")

    def include_if(self, parent: Any) -> bool:
        """Take part where there is a folder for blobs."""
        return runtime_of(parent.app).settings.blob_url is not None

    def start(self, parent: Any) -> None:
        """Begin with a sweep."""
        self._background.begin()

    def stop(self, parent: Any) -> None:
        """End the thread; a sweep under way ends with the process."""
        self._background.end()

    terminate = stop

    def _run(self) -> None:
        runtime, token = runtime_of(self._app), keys.new_token()
        while True:
            sweep(runtime, token=token)
            if self._background.wait(EACH):
                return


def sweep(runtime: Runtime, *, token: str) -> int:
    """Sweep once, if no other worker did within the hour. What fails now is tried again in an hour."""
    try:
        mine = runtime.store.lead(_ROLE, token=token, ttl=EACH, pulse_ttl=runtime.settings.lease_ttl) != "no"
        removed = runtime.blobs.sweep() if mine and runtime.blobs is not None else 0
    except ReliableError as exc:
        runtime.events.emit("blob_failed", task="", task_id="", key="", what="sweep", error=str(exc))
        return 0
    if removed:
        runtime.events.emit("blobs_swept", count=removed)
    return removed
