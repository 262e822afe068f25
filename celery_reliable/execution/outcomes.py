"""Keep a large result aside: for replays, and for those who ask the result backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery_reliable import blobs, internals, large_results
from celery_reliable.errors import BlobLost, ConfigurationError, Transient
from celery_reliable.execution import burial
from celery_reliable.publishing import DAY

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery


def packed(delivery: Delivery, outcome: bytes | None, *, ttl: float) -> bytes | None:
    """Return what the done marker keeps: the outcome, or where it is kept aside.

    The body has run, so a folder that cannot be reached changes nothing: the outcome stays beside the marker.
    """
    limit = delivery.settings.claim_check_threshold
    if outcome is None or len(outcome) <= limit:
        return outcome
    try:
        return _aside(delivery, outcome, ttl=ttl)
    except (Transient, ConfigurationError) as exc:
        delivery.emit("blob_failed", what="result", error=str(exc))
    return outcome


def _aside(delivery: Delivery, outcome: bytes, *, ttl: float) -> bytes:
    if delivery.runtime.blobs is None:
        delivery.emit("result_oversized", size=len(outcome), limit=delivery.settings.claim_check_threshold)
        return outcome
    task = delivery.task
    lives = max(ttl, large_results.life(task.backend) if internals.keeps_result(task) else 0.0)
    delivery.kept = delivery.runtime.blobs.put(outcome, kind="results", ttl=lives + DAY)
    return delivery.kept.to_bytes()


def told(delivery: Delivery, result: Any) -> Any:
    """Return what the result backend is given of a result that is kept aside: a reference, or the result itself."""
    task = delivery.task
    found = large_results.reference(task.backend, delivery.kept, blobs=delivery.runtime.blobs)
    if found is None or (delivery.request.chord and internals.joins_under_claim(task.backend, delivery.request)):
        return result
    return found


def unpacked(delivery: Delivery, outcome: bytes) -> bytes:
    """Return the outcome itself. One that is lost ends the delivery as failed; a folder that is away makes it wait."""
    if not outcome.startswith(blobs.MARK):
        return outcome
    delivery.kept = blobs.BlobRef.from_bytes(outcome)
    try:
        return delivery.runtime.blob(delivery.kept)
    except Transient as exc:
        delivery.emit("blob_failed", what="result", error=str(exc))
        delivery.wait_to_publish("result", exc)
    except (BlobLost, ConfigurationError) as exc:
        delivery.emit("blob_failed", what="result", error=str(exc))
        _report_lost(delivery, exc)


def _report_lost(delivery: Delivery, exc: Exception) -> NoReturn:
    """Say that a job is done and its result lost: what follows it cannot be sent."""
    delivery.end_entry()
    raise burial.reported(delivery, exc)
