"""End a call that would not run before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery_reliable import overlap
from celery_reliable.errors import StoreError
from celery_reliable.keys import Identity
from celery_reliable.runtime import Runtime
from celery_reliable.submission.calls import Call, headers_given, overlap_of

if TYPE_CHECKING:
    from celery.result import AsyncResult


def foreseen_skip(call: Call, identity: Identity, *, runtime: Runtime) -> str:
    """Say why a call would be skipped if a worker had it now; "" if it may run, or if only the worker can tell.

    A declared key may join its own job, something chained must be told by the worker, and what is due later meets others.
    """
    policy = overlap_of(call)
    later = call.options.get("eta") or call.options.get("countdown")
    if policy not in ("forbid", "queue") or identity.job.kind == "declared" or call.has_canvas or later or call.aside:
        return ""
    try:
        rule = headers_given(call).get(overlap.KEY_HEADER)
        name = call.task.overlap_name(call.args, call.kwargs, rule=rule, version=call.version)
        me = overlap.Claimant(name, identity.job, identity.task_id, call.task.reliable_settings.lease_ttl)
        return runtime.rights.foresee(me, policy=cast("overlap.Policy", policy))
    except (StoreError, TypeError):
        return ""


def skip(call: Call, identity: Identity, reason: str) -> AsyncResult[Any]:
    """Record a call that will not run before it is sent, as a worker would."""
    task = call.task
    ignored = call.options.get("ignore_result", task.ignore_result)
    task.backend.mark_as_revoked(identity.task_id, reason, store_result=not ignored)
    result = task.AsyncResult(identity.task_id)
    result.reliable_skipped = reason.partition(": ")[2]  # for beat, which keeps what became of a slot
    return result
