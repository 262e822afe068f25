"""Ask for the right to run beside jobs of the same kind, give it back, and skip what may not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast

from celery.exceptions import Ignore

from celery_reliable import internals
from celery_reliable.errors import StoreError
from celery_reliable.execution import telling
from celery_reliable.lifetimes import marker_ttl
from celery_reliable.overlap import KEY_HEADER, POLL, Claimant, Policy, Skip, Wait
from celery_reliable.slots import skips
from celery_reliable.slots.skips import ENTRY_HEADER, SLOT_HEADER
from celery_reliable.worker import stops

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery

REPLACED = "a newer one replaces it"


def enter(delivery: Delivery, me: Claimant | None) -> None:
    """Return when the job may run; otherwise let its message wait, or skip it."""
    if me is None:
        return
    run = delivery.run
    has_run = run.attempt > 1 or run.delivery > 1 or run.snoozes > 0 or run.checks > 0
    policy = cast("Policy", delivery.overlap)
    step = delivery.insist("overlap", lambda: delivery.runtime.rights.enter(me, policy=policy, has_run=has_run))
    if isinstance(step, Wait):
        _release(delivery)
        delivery.hold("overlap_waits", POLL)
    if isinstance(step, Skip):
        skip(delivery, step.reason)


def claimant(delivery: Delivery) -> Claimant | None:
    """Return this job as it is known under its overlap key; None when jobs of this task may overlap.

    Raises whatever an upgrade or a project's callable raises, and TypeError for arguments that do not fit.
    """
    if delivery.overlap == "allow":
        return None
    # of the arguments in the message, as the worker's parent sees them; a replaced submission has others
    args, kwargs, version = delivery.given
    rule = delivery.request.get(KEY_HEADER)
    name = delivery.task.overlap_name(args, kwargs, rule=rule, version=version)
    return Claimant(name, delivery.job, delivery.identity.task_id, delivery.settings.lease_ttl)


def is_replaced(delivery: Delivery) -> bool:
    """Tell whether this run was asked to stop for a newer job."""
    return delivery.overlap != "allow" and stops.asked(delivery.token) == stops.REPLACED


def leave(delivery: Delivery) -> None:
    """Give the right back, for the job has ended. Best effort: it ends by itself."""
    _try(delivery, delivery.runtime.rights.leave)


def rest(delivery: Delivery, *, seconds: float, has_run: bool) -> None:
    """Keep the right until the next attempt. Best effort: another job may come before it."""
    _try(delivery, lambda me: delivery.runtime.rights.rest(me, seconds=seconds, has_run=has_run))


def _try(delivery: Delivery, action: Callable[[Claimant], None]) -> None:
    try:
        me = claimant(delivery)
    except Exception:  # noqa: BLE001  # as for `claimant`
        return  # there is no key, so there was no right
    if me is None:
        return
    try:
        action(me)
    except StoreError:
        delivery.emit("store_unavailable", verb="overlap", wait=0.0)


# --- skip


def skip(delivery: Delivery, reason: str) -> NoReturn:
    """End a job as skipped: recorded in the store, told to its canvas, acked."""
    settings, job = delivery.settings, delivery.job
    _release(delivery)
    ttl = marker_ttl(job.kind, settings, ledger=delivery.runtime.ledger and job.stamp > 0)
    settle = delivery.runtime.store.settle
    task_id = delivery.identity.task_id
    delivery.insist("settle", lambda: settle(job, task_id=task_id, state="skipped", ttl=ttl))
    leave(delivery)
    delivery.emit("skipped", policy=delivery.overlap, reason=reason)
    _tell_beat(delivery, reason)
    report(delivery, reason)


def _tell_beat(delivery: Delivery, reason: str) -> None:
    """Let `reliable beat why` know, if it was a slot of an entry. Best effort."""
    entry, slot = (delivery.request.get(name) for name in (ENTRY_HEADER, SLOT_HEADER))
    if entry is None or slot is None:
        return
    store = delivery.runtime.store
    try:
        skips.skipped(store.notes, entry, slot=slot, reason=reason, now=store.now())
    except StoreError:
        delivery.emit("store_unavailable", verb="overlap", wait=0.0)


def report(delivery: Delivery, reason: str) -> NoReturn:
    """Tell the caller and whatever waits for this job that it was skipped: as revoked, with the reason."""
    with telling.chord_told(delivery) as chord:
        try:
            internals.mark_skipped(delivery.task, f"skipped: {reason}", chord=chord)
        except Exception as exc:  # noqa: BLE001  # whatever stops it, the message comes back and tells it again
            delivery.wait_to_publish("skip", exc)
    raise Ignore


def _release(delivery: Delivery) -> None:
    """Give the claim back unused."""
    if not delivery.release():
        leave(delivery)
        delivery.drop("revoked")
