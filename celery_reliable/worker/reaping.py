"""Notice soon that a pool child has died."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

_INTERVAL = 0.5


class Reaping(bootsteps.StartStopStep):
    """Look for dead pool children twice a second, so that their work is taken up within one.

    Celery looks when the pipe that the child held is closed, and stops watching the pipe (5.7,
    ``AsynPool._event_process_exit``). The kernel closes it a moment before it reports the death: a look in between finds
    nothing, and on a busy host that is usual. The next one came up to five seconds later.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Look again with each new connection: Celery cancels the timers of the last one."""
        look = getattr(getattr(parent.pool, "_pool", None), "maintain_pool", None)
        if look is not None:
            hub.call_repeatedly(_INTERVAL, look)
