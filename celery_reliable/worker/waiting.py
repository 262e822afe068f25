"""Say, as the reason of a Celery `Reject`, how a message goes on living."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from celery.exceptions import Reject, Retry


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


class Snoozed(Retry):
    """Celery's Retry for a run that is none: no attempt is spent, and nothing has failed."""


class QuietWaits(logging.Filter):
    """Keep Celery's log from one warning, with a traceback, for each message that waits: every wait is an event of ours.

    Celery (5.7, ``celery.app.trace``) writes it for every `Reject`; five thousand tasks behind an open breaker would write it
    every half minute. Of what is given back the line stays, without its traceback.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop or shorten a record of ours."""
        exc = record.exc_info[1] if record.exc_info else None
        reason = exc.reason if isinstance(exc, Reject) else None
        if isinstance(reason, GiveBack):
            record.exc_info = None
        return not isinstance(reason, Hold)


def quiet_waits() -> None:
    """Filter the log of this process, and of the pool children that it forks. May be called twice."""
    tracer = logging.getLogger("celery.app.trace")
    if not any(isinstance(one, QuietWaits) for one in tracer.filters):
        tracer.addFilter(QuietWaits())
