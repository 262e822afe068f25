"""Share the kill switches of the fleet: one note for each queue, looked at once a second by each of its workers.

While all is well nothing is written: a worker reads the notes of its queues in one call. Runs that went well are counted in
the worker and told with the next one that failed, since only then do they change anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from celery_reliable.errors import StoreError
from celery_reliable.flow.switching import RUNNING, SECOND, Switch, after, stopped
from celery_reliable.flow.window import Pair
from celery_reliable.settings.policies import KillSwitch
from celery_reliable.stores.notes import Notes, Write

SHELF: Final = "kill_switches"

_TRIES: Final = 20
_HELD_FOR: Final = 30 * 86_400.0  # seconds that an operator's word lasts
_NOTHING: Final[Pair] = (0, 0)

Emit = Callable[..., None]
"""Says an event; see `Events.emit`."""


class Switches:
    """The kill switches kept in one store, for one process. `look` is for one thread.

    When the store is away queues are consumed, unless one was last seen stopped and its time is not over, or an operator has
    stopped it; the event ``kill_switch_unknown`` says so.
    """

    __slots__ = ("_at", "_away", "_clock", "_emit", "_known", "_mine", "_notes", "_now", "_worker", "policies")

    def __init__(
        self,
        notes: Notes,
        *,
        now: Callable[[], int],
        policies: Mapping[str, KillSwitch],
        worker: str,
        emit: Emit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the notes, the server's clock, what names this process, and its clock."""
        self._notes, self._now, self._worker, self._emit, self._clock = notes, now, worker, emit, clock
        self.policies = policies
        self._known: dict[str, Switch] = {}
        self._mine: dict[str, tuple[Pair, float]] = {}
        self._at = (0, 0.0)
        self._away = False

    # --- a worker

    def look(self, ended: Mapping[str, Pair]) -> frozenset[str]:
        """Tell how many runs of this worker's queues ended (well, failed) since the last look; return which are stopped.

        One round trip, and one or two more when something changes. Never raises what the store raises.
        """
        for queue, pair in ended.items():
            self._count(queue, pair)
        try:
            self._step(list(ended))
            self._away = False
        except StoreError as exc:
            if not self._away:
                self._emit("kill_switch_unknown", queues=sorted(ended), error=str(exc))
            self._away = True
        now = self._at[0] + int((self._clock() - self._at[1]) * SECOND)
        return frozenset(queue for queue in ended if not self._lets(queue, now=now))

    def _lets(self, queue: str, *, now: int) -> bool:
        known = self._known.get(queue, RUNNING)
        return known.lets(self._worker, now=now) or (self._away and known.phase(now) == "tried")

    def _count(self, queue: str, pair: Pair) -> None:
        """Add to what is not told yet; what went well long ago says nothing any more."""
        now = self._clock()
        (well, failed), since = self._mine.get(queue, (_NOTHING, now))
        if now - since > self.policies[queue].window:
            well, since = 0, now
        self._mine[queue] = (well + pair[0], failed + pair[1]), since

    def _step(self, queues: list[str]) -> None:
        for _ in range(_TRIES):
            found = self._notes.read(SHELF, queues)
            now = self._now()
            self._at = now, self._clock()
            before = {queue: Switch.from_bytes(found[queue].value) for queue in queues if queue in found}
            steps = {queue: self._after(queue, before.get(queue, RUNNING), now=now) for queue in queues}
            changed = [queue for queue in queues if steps[queue] != before.get(queue, RUNNING)]
            writes = [
                self._note(queue, steps[queue], expected=found[queue].version if queue in found else 0, now=now)
                for queue in changed
            ]
            answers = self._notes.write(SHELF, writes) if writes else []
            lost = {queue for queue, answer in zip(changed, answers, strict=True) if answer is None}
            for queue in queues:
                if queue not in lost:
                    self._know(queue, before.get(queue, RUNNING), steps[queue])
            queues = [queue for queue in queues if queue in lost]
            if not queues:
                return

    def _after(self, queue: str, switch: Switch, *, now: int) -> Switch:
        ended = self._mine.get(queue, (_NOTHING, 0.0))[0]
        return after(switch, ended, worker=self._worker, policy=self.policies[queue], now=now)

    def _know(self, queue: str, before: Switch, step: Switch) -> None:
        """Take a step that is written, or that changed nothing. Runs that went well while all is well are kept for later."""
        self._known[queue] = step
        (_, failed), _ = self._mine.get(queue, (_NOTHING, 0.0))
        if failed or step != RUNNING or before != RUNNING:
            self._mine.pop(queue, None)
        if step.until > before.until:
            facts = {"failed": step.judged[1], "runs": sum(step.judged), "wait": self.policies[queue].pause}
            self._emit("queue_stopped", queue=queue, by="failures", **facts)
        if before.until and not step.until:
            self._emit("queue_resumed", queue=queue, by="trial")

    # --- operate

    def known(self, queues: Iterable[str] | None = None) -> dict[str, Switch]:
        """Return the switches of queues, all that have a policy if not given. Raises what the store raises."""
        names = list(self.policies if queues is None else queues)
        found = self._notes.read(SHELF, names)
        return {name: Switch.from_bytes(found[name].value) if name in found else RUNNING for name in names}

    def stop(self, queue: str, *, seconds: float | None = None) -> None:
        """Stop a queue by hand: for some time, after which it is tried, or (None) until `start`, for 30 days at most."""
        now = self._now()
        switch = replace(RUNNING, held=True) if seconds is None else stopped(seconds=seconds, now=now)
        self._notes.write(SHELF, [self._note(queue, switch, expected=None, now=now)])
        wait = _HELD_FOR if seconds is None else seconds
        self._emit("queue_stopped", queue=queue, by="hand", failed=0, runs=0, wait=wait)

    def start(self, queue: str) -> None:
        """Let a queue be consumed again at once, and forget its failures."""
        self._notes.write(SHELF, [self._note(queue, RUNNING, expected=None, now=0)])
        self._emit("queue_resumed", queue=queue, by="hand")

    def _note(self, queue: str, switch: Switch, *, expected: int | None, now: int) -> Write:
        policy = self.policies[queue]
        left = max(switch.until - now, 0) / SECOND
        ttl = _HELD_FOR if switch.held else left + 2 * (policy.window + policy.pause)
        value = None if switch == RUNNING else switch.to_bytes()
        return Write(name=queue, value=value, ttl=ttl, expected=expected)
