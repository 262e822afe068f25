"""Let a job of a key that runs one at a time wait for the one before it (``on_conflict="queue_one"``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_reliable.errors import StoreError
from celery_reliable.flow.rounds import POLL, key_before
from celery_reliable.stores.base import ALIVE, Job

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery


def await_turn(delivery: Delivery) -> None:
    """Return when the round before has ended; else let the message wait.

    Before the claim, since a job that was claimed takes no newer arguments.
    """
    before = key_before(delivery.job.key)
    if before is None:
        return
    try:
        record = delivery.runtime.store.inspect(Job(before, "declared"))
    except StoreError as exc:
        delivery.wait_for_store("inspect", exc)
    if record.get("state") in ALIVE:
        delivery.hold("queue_waits", POLL)
