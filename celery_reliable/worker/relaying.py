"""Publish what waits in the outbox, from every worker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable.errors import StoreError
from celery_reliable.relay import Relay
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.forks import AFTER_FORKS

EACH = 1.0  # seconds between two looks


class Relaying(bootsteps.StartStopStep):
    """A thread of the worker's parent, there only if the store has an outbox and ``reliable_relay_rate`` is not 0."""

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the worker; nothing connects yet."""
        super().__init__(parent, **kwargs)
        self._app = parent.app
        self._background = Background(self._run, name="reliable-relay")

    def include_if(self, parent: Any) -> bool:
        """Take part where there is something to relay."""
        runtime = runtime_of(parent.app)
        return runtime.store.outbox is not None and runtime.settings.relay_rate > 0

    def start(self, parent: Any) -> None:
        """Start the thread."""
        self._background.begin()

    def stop(self, parent: Any) -> None:
        """End the thread; what it has taken and not published is another's in ten seconds."""
        self._background.end(patience=1.0)

    terminate = stop

    def _run(self) -> None:
        runtime = runtime_of(self._app)
        if runtime.store.outbox is None:
            return
        relay = Relay(self._app, runtime.store.outbox)
        while not self._background.wait(EACH):
            try:
                relay.look(limit=runtime.settings.relay_rate)
            except StoreError:
                continue  # the lease keeper says so
