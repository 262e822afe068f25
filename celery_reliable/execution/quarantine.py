"""Move a suspect to a queue of its own before it takes its neighbours down once more.

A suspect has been claimed so often without a verdict that one more loss makes it a dead letter. It is published, with its
own id, to the quarantine queue; its claim is given back first and counts as no delivery. Whoever dies in between leaves
the message where it was, and its next claim comes here again; two copies run once, as always.
"""

from __future__ import annotations

from typing import NoReturn

from celery.exceptions import Ignore, Reject

from celery_reliable import internals, keys
from celery_reliable.execution import overlapping
from celery_reliable.execution.delivery import Delivery
from celery_reliable.keys import HEADER
from celery_reliable.stores.base import Run
from celery_reliable.worker.waiting import Hold

_WAIT = 5.0  # seconds until a refused publish is tried again


def is_wanted(delivery: Delivery, run: Run) -> bool:
    """Tell whether a claim is a suspect's last, here and not in quarantine already."""
    settings = delivery.settings
    queue = settings.quarantine_queue
    if queue is None or run.delivery <= 1 or run.delivery < settings.max_deliveries:
        return False
    return bool((delivery.request.delivery_info or {}).get("routing_key") != queue)


def move(delivery: Delivery, run: Run) -> NoReturn:
    """Give the claim back, publish the message to the quarantine queue, and end this delivery."""
    delivery.run = run
    if not delivery.release():
        overlapping.leave(delivery)
        delivery.drop("revoked")
    _publish(delivery, run)
    raise Ignore


def _publish(delivery: Delivery, run: Run) -> None:
    queue, task = delivery.settings.quarantine_queue, delivery.task
    headers = {**keys.lasting(delivery.request.headers or {}), HEADER: delivery.header()}
    try:
        signature = task.signature_from_request(delivery.request, queue=queue, headers=headers)
        signature.options.pop("eta", None)
        with keys.within(None), internals.confirming_producer(task.app) as producer:
            signature.apply_async(producer=producer, retries=run.attempt - 1)
    except Exception as exc:  # whatever stops it, this message is still there
        delivery.emit("publish_failed", what="quarantine", wait=_WAIT)
        raise Reject(Hold(_WAIT, f"quarantine: not published: {exc}"), requeue=True) from exc
    delivery.emit("quarantined", queue=queue, delivery=run.delivery)
