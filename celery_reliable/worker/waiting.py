"""Say, as the reason of a Celery `Reject`, how a message goes on living."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the message in this worker, unacknowledged, and run it again after ``seconds``.

    ``counted``: the prefetch count rises by one meanwhile, as it does for an ETA, so that the worker goes on receiving.
    ``moment`` is what the next run finds in its request, if this worker still has the message then.
    """

    seconds: float
    why: str
    counted: bool = True
    moment: int = 0

    def __str__(self) -> str:
        """Show it in Celery's log line about the rejected task."""
        return f"waits {self.seconds:.1f} s ({self.why})"


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Return the message to the near end of its queue, at once or after some seconds in this worker."""

    why: str
    after: float = 0.0

    def __str__(self) -> str:
        """Show it in Celery's log line about the rejected task."""
        return f"given back ({self.why})"
