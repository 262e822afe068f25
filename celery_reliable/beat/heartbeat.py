"""Write a beat's sign of life: it goes stale when the loop does not come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from celery.utils.nodenames import node_format

from celery_reliable.beat.leadership import Member
from celery_reliable.heartbeats import HeartbeatFile, LifeSign, Process
from celery_reliable.runtime import Runtime


class BeatSign:
    """Rewrite ``reliable_heartbeat_file`` every ``reliable_heartbeat_interval``, when the loop comes by.

    The state is ``leading``, ``standby`` or ``store_down``. What goes wrong with the file is told once, and beat goes on.
    """

    def __init__(self, runtime: Runtime, *, me: Member, clock: Callable[[], float]) -> None:
        """Take the path; nothing is written yet. ``%n`` in it is ``celerybeat``."""
        self._runtime, self._me, self._clock = runtime, me, clock
        self._node = f"celerybeat@{me.host}"
        path = runtime.settings.heartbeat_file
        self._file = HeartbeatFile(Path(node_format(path, self._node))) if path else None
        self._next = float("-inf")
        self._told = False

    def show(self, state: str) -> None:
        """Write the sign if it is time to."""
        if self._file is None or self._clock() < self._next:
            return
        self._next = self._clock() + self._runtime.settings.heartbeat_interval
        try:
            keeper = self._file.write(self._sign(state))
        except OSError as exc:
            self._tell("heartbeat_unwritten", place=str(self._file.path), error=str(exc))
            return
        if keeper is None:
            self._told = False
        else:
            self._tell("heartbeat_shared", place=str(self._file.path), node=self._node, keeper=keeper.node)

    def remove(self) -> None:
        """Take the file away: this beat ends."""
        if self._file is not None:
            self._file.remove()

    def _sign(self, state: str) -> LifeSign:
        return LifeSign(
            role="beat",
            node=self._node,
            state=state,
            owner=self._me.token,
            process=Process.current(),
            at=time.time(),
            clock=time.monotonic(),
            interval=self._runtime.settings.heartbeat_interval,
        )

    def _tell(self, event: str, **facts: str) -> None:
        if not self._told:
            self._told = True
            self._runtime.events.emit(event, **facts)
