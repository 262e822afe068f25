"""Share the breakers of the fleet: one note for each, seen by a process as it was a second ago at most.

While a dependency is well nothing is written: a process reads each breaker that it uses once a second. A failure is told
at once; successes are counted here and told with the next report, and once a second while failures are known, since only
then do they change anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from celery_reliable.errors import StoreError
from celery_reliable.flow.breaking import CALM, SECOND, Breaker, Told, opened, probed, told
from celery_reliable.flow.chance import Random
from celery_reliable.settings.policies import BreakerPolicy
from celery_reliable.stores.notes import Notes, Write, every

SHELF = "breakers"
CACHED = 1.0
"""Seconds for which a process believes what it has read."""

_TRIES = 20
_HELD_FOR = 30 * 86_400.0  # seconds that an operator's word lasts
_MOST_KNOWN = 1000  # names: some projects make them of arguments
_SHORTEST_WAIT = 1.0
_NO_POLICY = BreakerPolicy()


Emit = Callable[..., None]
"""Says an event; see `Events.emit`."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The dependency may be called. ``probe``: as one of the few that try whether it is well again."""

    name: str
    probe: str = ""


@dataclass(frozen=True, slots=True)
class Closed:
    """The dependency may not be called; ask again in so many seconds."""

    seconds: float


@dataclass(slots=True)
class _Seen:
    """What this process knows of one breaker, and what it has not told yet."""

    breaker: Breaker = CALM
    read_at: float = float("-inf")
    good: int = 0
    bad: int = 0
    mended: bool = False
    since: float = float("-inf")


class Breakers:
    """The breakers kept in one store, for one process. Safe for threads.

    When the store is away tasks run, as far as the breaker is concerned, unless it was last seen open and its time is not
    over; the event ``breaker_unknown`` says so. It never raises what the store raises.
    """

    __slots__ = ("_clock", "_emit", "_lock", "_notes", "_now", "_policies", "_random", "_seen", "_token")

    def __init__(
        self,
        notes: Notes,
        *,
        now: Callable[[], int],
        policies: Mapping[str, BreakerPolicy] | None,
        random: Random,
        token: Callable[[], str],
        emit: Emit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the notes, the server's clock, what names a probe, and the clock of this process."""
        self._clock = clock
        self._notes, self._now, self._policies = notes, now, policies or {}
        self._random, self._token, self._emit = random, token, emit
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    # --- ask

    def enter(self, name: str) -> Pass | Closed:
        """Ask whether a dependency may be called now. Tell `leave` how it went."""
        seen = self._looked(name)
        try:
            now = self._now()
            phase = seen.breaker.phase(now)
            if phase == "closed":
                return Pass(name)
            if phase == "half_open":
                return self._probe(name)
            return self._closed(seen.breaker, name, now=now)
        except StoreError as exc:
            self._say_unknown(name, exc)
            return Pass(name)

    def _looked(self, name: str) -> _Seen:
        """Return what is known, read again after a second."""
        with self._lock:
            seen = self._seen.get(name)
            if seen is None:
                seen = self._seen[name] = _Seen()
                if len(self._seen) > _MOST_KNOWN:
                    del self._seen[next(iter(self._seen))]
            if self._clock() - seen.read_at < CACHED:
                return seen
            seen.read_at = self._clock()  # before the look: the other threads go on with what is known
        try:
            seen.breaker = self._read(name)[0]
        except StoreError as exc:
            self._say_unknown(name, exc)
        return seen

    def _probe(self, name: str) -> Pass | Closed:
        token = self._token()
        for _ in range(_TRIES):
            breaker, version = self._read(name)
            now = self._now()
            if breaker.phase(now) == "closed":
                self._know(name, breaker)
                return Pass(name)
            after = (
                probed(breaker, token, policy=self.policy(name), now=now) if breaker.phase(now) == "half_open" else None
            )
            if after is None:
                return self._closed(breaker, name, now=now)
            if self._write(name, after, expected=version):
                return Pass(name, token)
        return Closed(self._jitter(_SHORTEST_WAIT))

    def _closed(self, breaker: Breaker, name: str, *, now: int) -> Closed:
        """Say when to ask again: not before the probes, and not all at once after it."""
        self._know(name, breaker)
        left = max(breaker.until - now, 0) / SECOND
        return Closed(left + self._jitter(self.policy(name).open_for / 2))

    def _jitter(self, most: float) -> float:
        return self._random.uniform(_SHORTEST_WAIT, max(most, 2 * _SHORTEST_WAIT))

    # --- tell

    def leave(self, given: Pass, *, well: bool | None) -> None:
        """Tell how a call ended: well, not well, or (None) that it says nothing about the dependency."""
        if given.probe:
            self._tell(given.name, Told(int(well is True), int(well is False), probe=given.probe))
            return
        if well is None:
            return
        report = self._due_report(given.name, well=well)
        if report is not None and not self._tell(given.name, report):
            with self._lock:
                self._seen.setdefault(given.name, _Seen()).bad += report.bad  # told with the next one

    def _due_report(self, name: str, *, well: bool) -> Told | None:
        """Count a call; return what is to be told now, None when it can wait."""
        with self._lock:
            seen, now = self._seen.setdefault(name, _Seen()), self._clock()
            if now - seen.since > self.policy(name).window:
                seen.good, seen.since = 0, now
            calm = seen.breaker.is_calm
            seen.good, seen.bad, seen.mended = (
                seen.good + well,
                seen.bad + (not well),
                seen.mended or (well and not calm),
            )
            if not seen.bad and (calm or now - seen.since < CACHED):
                return None
            report = Told(seen.good, seen.bad, mended=seen.mended)
            seen.good, seen.bad, seen.mended, seen.since = 0, 0, False, now
            return report

    def _tell(self, name: str, report: Told) -> bool:
        """Write what a report makes of a breaker. False: the store is away, or too many write at once."""
        policy = self.policy(name)
        try:
            for _ in range(_TRIES):
                before, version = self._read(name)
                after = told(before, report, policy=policy, now=self._now())
                if after == before or self._write(name, after, expected=version):
                    self._know(name, after)
                    self._say_change(name, before, after)
                    return True
        except StoreError as exc:
            self._say_unknown(name, exc)
        return False

    def _say_change(self, name: str, before: Breaker, after: Breaker) -> None:
        if after.until > before.until:
            failures = before.failures + 1
            self._emit("breaker_opened", breaker=name, failures=failures, wait=self.policy(name).open_for)
        if before.until and not after.until:
            self._emit("breaker_closed", breaker=name, by="probes")

    def _say_unknown(self, name: str, exc: StoreError) -> None:
        self._emit("breaker_unknown", breaker=name, error=str(exc))

    # --- operate

    def known(self) -> dict[str, Breaker]:
        """Return all breakers about which anything is known. Raises what the store raises."""
        return {name: Breaker.from_bytes(note.value) for name, note in every(self._notes, SHELF).items()}

    def open(self, name: str, *, seconds: float | None = None) -> None:
        """Open a breaker by hand: for some time, after which it is probed, or (None) until `close`, for 30 days at most."""
        policy = self.policy(name)
        breaker = (
            replace(CALM, held=True)
            if seconds is None
            else opened(policy=replace(policy, open_for=seconds), now=self._now())
        )
        self._write(name, breaker, expected=None)
        self._emit("breaker_opened", breaker=name, failures=0, wait=_HELD_FOR if seconds is None else seconds)

    def close(self, name: str) -> None:
        """Close a breaker by hand, and forget its failures."""
        self._notes.write(SHELF, [Write(name=name, value=None, ttl=1.0)])
        self._emit("breaker_closed", breaker=name, by="hand")

    # --- notes

    def policy(self, name: str) -> BreakerPolicy:
        """Return what the project says of a dependency."""
        return self._policies.get(name, _NO_POLICY)

    def _know(self, name: str, breaker: Breaker) -> None:
        with self._lock:
            seen = self._seen.setdefault(name, _Seen())
            seen.breaker, seen.read_at = breaker, self._clock()

    def _read(self, name: str) -> tuple[Breaker, int]:
        note = self._notes.read(SHELF, [name]).get(name)
        return (CALM, 0) if note is None else (Breaker.from_bytes(note.value), note.version)

    def _write(self, name: str, breaker: Breaker, *, expected: int | None) -> bool:
        policy = self.policy(name)
        left = max(breaker.until - self._now(), 0) / SECOND
        ttl = _HELD_FOR if breaker.held else left + 2 * (policy.window + policy.open_for)
        value = None if breaker == CALM else breaker.to_bytes()
        return self._notes.write(SHELF, [Write(name=name, value=value, ttl=ttl, expected=expected)]) != [None]
