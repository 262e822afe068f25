"""Say what is due in a drain, by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

CLEAN_UP = 1.0
"""Seconds that an interrupted body has to save a checkpoint."""
LAST_RESORT = 1.2
"""Seconds after the deadline when the watchdog ends the process, whatever state it is in."""
DEAF = 1.5
"""Seconds after the deadline when a process is ended that has not heard the signal yet: C keeps its interpreter."""
END = 1.9
"""Seconds after the deadline when C ends the process, if it heard and no thread of Python can run any more."""
LATEST = 2.0
"""Seconds after the deadline within which the process is gone."""
_LONGEST_STOP = 5.0  # seconds that Celery's shutdown may take once nothing runs


@dataclass
class Course:
    """When a drain began, and when each of its steps is due. Monotonic seconds."""

    timeout: float
    clock: Callable[[], float] = time.monotonic
    began: float | None = field(default=None, init=False)
    finished: float | None = field(default=None, init=False)

    def begin(self, *, at: float | None = None) -> bool:
        """Note the first order to stop, given ``at`` or now. False for a repeated one. Safe in a signal handler."""
        if self.began is not None:
            return False
        self.began = self.clock() if at is None else at
        return True

    def finish(self) -> None:
        """Note that nothing runs any more."""
        if self.finished is None:
            self.finished = self.clock()

    def is_past(self, extra: float) -> bool:
        """Whether the drain timeout was over ``extra`` seconds ago."""
        return self.began is not None and self.clock() >= self.began + self.timeout + extra

    def until(self, extra: float) -> float:
        """Return the seconds until the drain timeout was over ``extra`` seconds ago, counted from now if none began."""
        now = self.clock()
        return (now if self.began is None else self.began) + self.timeout + extra - now

    @property
    def must_leave(self) -> bool:
        """Whether the process has to end now: bodies, broker or Celery's shutdown hold it."""
        hangs = self.finished is not None and self.clock() >= self.finished + _LONGEST_STOP
        return hangs or self.is_past(LAST_RESORT)
