"""What the tests of flow control share on Redis and RabbitMQ: one tenant that floods, and looks at who ran when."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from celery_reliable.flow.places import SHELF as PLACES
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.notes import every
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery import Celery

    from tests.integration.apps.stage import Stage

DEADLINE = 40.0


def flood_past_a_limit(app: Celery, stage: Stage, label: str, *, seconds: float) -> None:
    """Have a tenant submit twelve jobs under a limit of three: the rest wait in no slot, so another tenant's runs at once.

    Returns when all are done, each of the last nine in so many ``seconds``, and every place is free.
    """
    flood, other = {"id": f"{label}:flood"}, {"id": f"{label}:other"}
    results = [app.tasks["placed"].delay(label, flood) for _ in range(3)]
    stage.wait_entries(label, 3, timeout=DEADLINE)
    results += [app.tasks["placed"].delay(label, flood, seconds) for _ in range(9)]
    for result in results[3:]:
        stage.wait_event("limit_waits", result.id, timeout=DEADLINE)
    assert app.tasks["placed"].delay(f"{label}:2", other, 0.01).get(timeout=DEADLINE) is None
    assert len(stage.entries(label)) == 3
    stage.open(f"{label}:{flood['id']}")
    for result in results:
        result.get(timeout=DEADLINE)
    assert most_at_once(stage, label) == 3
    wait_until(lambda: not every(runtime_of(app).store.notes, PLACES), DEADLINE, "all places free")


def most_at_once(stage: Stage, label: str) -> int:
    """Return how many runs there were at one time, by the ledger."""
    steps = [1 if entry["step"] == "start" else -1 for entry in stage.entries(label)]
    return max(itertools.accumulate(steps))
