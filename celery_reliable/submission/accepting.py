"""Have the store accept a call, and do what its answer asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu.utils import json as kombu_json

from celery_reliable import blobs, internals, large_results
from celery_reliable.errors import (
    DuplicateTask,
    PayloadMismatch,
    QueueFull,
    ReliableError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from celery_reliable.keys import Identity
from celery_reliable.publishing import LIVE_RECORD_TTL, envelope_of
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Existing, Mismatch, New, Submission, SubmitAnswer
from celery_reliable.submission.aside import forget
from celery_reliable.submission.calls import Call, facts_of
from celery_reliable.submission.identifying import in_life
from celery_reliable.submission.sending import headers_of, publish, withdraw

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_reliable.task import ReliableTask

REPLACING = ("replace", "queue_one")


def submitted(call: Call, identity: Identity, *, runtime: Runtime) -> SubmitAnswer:
    """Have the store accept a call."""
    facts = submission_of(call, identity, runtime=runtime)
    return answered(lambda: runtime.store.submit(identity.job, **facts), call, identity, runtime=runtime)


def submission_of(call: Call, identity: Identity, *, runtime: Runtime) -> Submission:
    """Return what a store is told of a call."""
    settings = call.task.reliable_settings
    told: Submission = {
        "task_id": identity.task_id,
        "fingerprint": identity.fingerprint,
        "envelope": _envelope_bytes(call, identity, runtime=runtime),
        "canvas": call.has_canvas,
        "ttl": LIVE_RECORD_TTL,
    }
    if settings.on_conflict in REPLACING:
        told |= {"replace": True, "swept": runtime.ledger, "delay": settings.debounce or 0.0}
        told |= {"delay_max": settings.longest_debounce, "ttl": LIVE_RECORD_TTL + settings.longest_debounce}
    return told


def _envelope_bytes(call: Call, identity: Identity, *, runtime: Runtime) -> bytes | None:
    """Return the call for the ledger, or None when nothing would read it."""
    if not runtime.ledger and call.task.reliable_settings.on_conflict not in REPLACING:
        return None
    args, kwargs = internals.dumped_arguments(call.task, call.args, call.kwargs)
    options = {**call.options, "headers": headers_of(call, identity)}
    envelope = envelope_of(call.task, args, kwargs, task_id=identity.task_id, options=options)
    if runtime.signer is not None:
        envelope = runtime.signer.sealed(envelope)
    return envelope.to_bytes()


def answered(ask: Callable[[], SubmitAnswer], call: Call, identity: Identity, *, runtime: Runtime) -> SubmitAnswer:
    """Return what the store says of a call; what may have been accepted without an answer is taken back."""
    try:
        return ask()
    except StoreFull as exc:
        msg = f"{call.task.name}: the store is at its memory limit, nothing was submitted; {exc}"
        raise QueueFull(msg) from exc
    except StoreUnavailable as exc:
        withdraw(call, identity, cause=exc, runtime=runtime)
        raise
    except StoreError:  # refused
        raise
    except BaseException as exc:  # a time limit, Ctrl-C: what it interrupted may have been accepted
        with suppress(StoreUnavailable):
            withdraw(call, identity, cause=exc, runtime=runtime)
        raise


def follow(call: Call, identity: Identity, answer: SubmitAnswer, *, runtime: Runtime) -> AsyncResult[Any]:
    """Do what the store's answer asks for."""
    match answer:
        case New(life):
            runtime.events.emit("submitted", **facts_of(call, identity))
            return publish(call, in_life(identity, life), runtime=runtime)
        case Existing():
            return _join(call, identity, answer, runtime=runtime)
        case Mismatch(existing_id):
            msg = (
                f"{call.task.name}: idempotency_key {identity.job.key!r} belongs to task {existing_id} with other "
                "arguments; use another key, or name the arguments that matter in fingerprint_args"
            )
            raise PayloadMismatch(msg, existing_id=existing_id)


def _join(call: Call, identity: Identity, found: Existing, *, runtime: Runtime) -> AsyncResult[Any]:
    """Meet a job that has the key: join it, unless the task says otherwise."""
    same = found.task_id == identity.task_id
    facts = facts_of(call, identity) | {"existing_id": found.task_id, "state": found.state}
    runtime.events.emit("child_known" if same and identity.job.kind == "derived" else "existing", **facts)
    settings = call.task.reliable_settings
    started = settings.on_conflict == "replace" and not found.replaced
    if not same and (settings.on_conflict == "raise" or started) and found.publish != "own":
        msg = f"{call.task.name}: {identity.job.key!r} is {found.state} as task {found.task_id} (on_conflict={settings.on_conflict})"
        raise DuplicateTask(msg, existing_id=found.task_id, state=found.state)
    if found.publish == "own":
        return publish(call, replace(identity, life=found.life), runtime=runtime)
    if found.publish == "same":
        again = replace(identity, task_id=found.task_id, life=found.life)
        return publish(call, again, runtime=runtime, withdraw=False)  # an earlier publish may have succeeded
    if not found.replaced:
        forget(call, identity, runtime=runtime)
    if found.outcome is not None:
        _store_result_again(call.task, found.task_id, found.outcome)
    return call.task.AsyncResult(found.task_id)


def _store_result_again(task: ReliableTask, task_id: str, outcome: bytes) -> None:
    """Give the backend a done job's result back, if it has forgotten it: the caller may wait for it."""
    aside = outcome.startswith(blobs.MARK)
    if task.ignore_result or (outcome[:1] == b"!" and not aside) or task.AsyncResult(task_id).state != "PENDING":
        return
    runtime = runtime_of(task.app)
    ref = blobs.BlobRef.from_bytes(outcome) if aside else None
    kept = large_results.reference(task.backend, ref, blobs=runtime.blobs)
    try:
        outcome = runtime.blob(ref) if ref and not kept else outcome
    except ReliableError as exc:  # the job is done all the same; who asks for its result waits in vain
        runtime.events.emit("blob_failed", task=task.name, task_id=task_id, key="", what="result", error=str(exc))
        return
    task.backend.store_result(task_id, kept or (kombu_json.loads(outcome) if outcome else None), "SUCCESS")
