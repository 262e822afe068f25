"""Answer scrapes of a worker's or beat's numbers, where ``reliable_metrics_port`` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_reliable.runtime import runtime_of
from celery_reliable.worker.forks import AFTER_FORKS

if TYPE_CHECKING:
    from celery_reliable.runtime import Runtime


class MetricsServer(bootsteps.StartStopStep):
    """Share the counting with pool children before they are forked, answer once the worker starts."""

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Share; every ``__init__`` of a step comes before the pool is made."""
        super().__init__(parent, **kwargs)
        self._runtime = runtime_of(parent.app)
        if self._runtime.metrics is not None:
            self._runtime.metrics.share()

    def include_if(self, parent: Any) -> bool:
        """Take part where numbers are kept."""
        return runtime_of(parent.app).metrics is not None

    def start(self, parent: Any) -> None:
        """Begin to answer."""
        serve(self._runtime)

    def stop(self, parent: Any) -> None:
        """Stop to answer. Called at the end of a drain, when nothing runs any more."""
        self._runtime.metrics.close()

    terminate = stop


def serve(runtime: Runtime) -> None:
    """Answer scrapes, if numbers are kept; an address that is not free is told, and nothing else happens."""
    if runtime.metrics is None:
        return
    host, port = runtime.settings.metrics_host, runtime.settings.metrics_port
    try:
        runtime.metrics.serve(host, port)
    except OSError as exc:
        runtime.events.emit("metrics_unserved", place=f"{host}:{port}", error=str(exc))
