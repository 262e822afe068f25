"""Tell a fleet that fell silent from a holder that did."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pulse:
    """When the fleet was last heard, and from when until when no ended lease may be taken."""

    last: float = -math.inf
    gap_from: float = -math.inf
    gap_until: float = -math.inf

    def beat(self, *, now: float, ttl: float) -> Pulse:
        """Hear the fleet; after a silence of half a ttl a grace begins."""
        if now - self.last > ttl / 2:
            return Pulse(last=now, gap_from=now, gap_until=now + ttl)
        return replace(self, last=now)

    def meet_ended_lease(self, *, now: float, ttl: float) -> Pulse:
        """Begin a grace when the fleet is silent and this silence has had none yet."""
        silent = now - self.last > ttl / 2
        if silent and now >= self.gap_until and self.gap_from <= self.last:
            return replace(self, gap_from=now, gap_until=now + ttl)
        return self
