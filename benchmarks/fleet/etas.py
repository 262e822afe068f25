"""Kill a worker that holds thousands of messages with an ETA, and see whether they run on time elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from benchmarks.fleet.crew import PATIENCE, Crew, crew, until

_BOUND = 2.0  # seconds that a recovery may take beyond the lease


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late each task ran, in seconds, against its ETA or the moment when the dead worker's work must be back."""

    lateness: tuple[float, ...]
    runs: int

    @property
    def worst(self) -> float:
        """The latest."""
        return max(self.lateness)

    def at(self, share: float) -> float:
        """Return what this share of them was late at most."""
        return sorted(self.lateness)[round(share * (len(self.lateness) - 1))]


def after_a_kill(*, count: int, lease_ttl: float = 15.0, spread: float = 60.0, allowance: float = 90.0) -> Punctuality:
    """Kill the only worker that holds them, ``lease_ttl`` + 2 s before the first is due; then one falls due after another.

    ``allowance``: seconds to submit and to receive them all.
    """
    with crew(reliable_lease_ttl=lease_ttl) as made:
        holder = made.start(concurrency=2)
        first = time.time() + allowance + lease_ttl + _BOUND
        due = {number: first + spread * number / count for number in range(count)}
        _submit(made, due)
        until(lambda: made.waiting() == 0, "all held", patience=allowance)
        made.start(concurrency=2)
        kill_at = first - lease_ttl - _BOUND
        if time.time() > kill_at:
            msg = f"expected all to be held within {allowance:g} s, found {time.time() - kill_at:.1f} s more; raise the allowance"
            raise RuntimeError(msg)
        time.sleep(kill_at - time.time())
        holder.kill()
        until(lambda: made.count() >= count, "all run", patience=lease_ttl + spread + PATIENCE)
        entries = made.entries()
        return Punctuality(tuple(one.wall - due[one.number] for one in entries), len(entries))


def _submit(made: Crew, due: Mapping[int, float]) -> None:
    for number, moment in due.items():
        eta = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=moment)
        made.submit("mark", number, eta=eta)
