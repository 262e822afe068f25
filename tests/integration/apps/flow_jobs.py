"""Tasks behind breakers, limits and budgets, and the app of a worker that runs them.

``celery -A tests.integration.apps.flow_jobs worker``
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from celery_reliable import Permanent, ReliableTask, Transient
from tests.integration.apps.jobs import make_app, note, stage_of, variant
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery

CONF: dict[str, Any] = {
    "reliable_breakers": {"bank": {"failures": 3, "open_for": 2, "probes": 1}, "shop": {"open_for": 2}},
}


def calling(self: Any, label: str, name: str) -> str:
    """Call a dependency, which is well once the test says so."""
    note(self, label, name=name)
    if not stage_of(self).is_open(f"{label}:well"):
        raise Transient("down")
    return name


def placed(self: Any, label: str, tenant: dict[str, Any], seconds: float = 0.0) -> None:
    """Take some time, or as long as the test wants."""
    note(self, label, step="start", tenant=tenant["id"])
    if seconds:
        time.sleep(seconds)
    else:
        stage_of(self).pass_gate(f"{label}:{tenant['id']}")
    note(self, label, step="end", tenant=tenant["id"])


def indexed(self: Any, label: str, name: str) -> str:
    """Run one at a time for each label, as long as the test wants."""
    note(self, label, step="start", name=name)
    stage_of(self).pass_gate(f"{label}:index")
    note(self, label, step="end", name=name)
    return name


def mailed(self: Any, label: str) -> None:
    """Note when it began, by the clock that all processes share."""
    note(self, label)


def owned(self: Any, label: str, tenant: str, fails: str = "") -> str:
    """Note whose it is and where it came from, and fail at first, or for good, if asked to."""
    note(self, label, tenant=tenant, queue=self.request.delivery_info["routing_key"])
    if fails == "once" and self.attempt == 1:
        raise Transient("again")
    if fails == "until well" and not stage_of(self).is_open(f"{label}:well"):
        raise Permanent("not yet")
    return tenant


def streaming(self: Any, label: str) -> None:
    """Submit one more of its kind: a stream that never ends while the test wants it."""
    note(self, label, tenant="stream")
    if not stage_of(self).is_open(f"{label}:enough"):
        info = self.request.delivery_info
        self.apply_async((label,), queue=info["routing_key"], priority=info["priority"])


TASKS: tuple[Any, ...] = (
    (owned, {"fairness_key": "tenant:{tenant}"}),
    (streaming, {}),
    (placed, {"concurrency_limit": 3, "concurrency_key": "tenant:{tenant[id]}"}),
    (variant(placed, "placed_alone"), {"concurrency_limit": 1, "concurrency_key": "alone:{tenant[id]}"}),
    (indexed, {"on_conflict": "queue_one", "idempotency_key": "index:{label}"}),
    (
        variant(placed, "placed_by_code"),
        {"concurrency_limit": 1, "concurrency_key": lambda label, tenant: tenant["id"]},
    ),
    (mailed, {"fleet_rate_limit": "600/m"}),
    (variant(calling, "calling_bank"), {"breaker": "bank", "max_retries": 50}),
    (variant(calling, "calling_shop"), {"breaker": "shop"}),
    (variant(calling, "calling_with_budget"), {"retry_budget": 0, "max_retries": 50}),
)


def add_tasks(app: Celery) -> Celery:
    """Register the tasks above."""
    for body, options in TASKS:
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if VARIABLE in os.environ:
    app = add_tasks(make_app(Stage.from_environment()))
