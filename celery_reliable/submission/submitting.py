"""Go through a submission, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery_reliable import signature_versions
from celery_reliable.errors import DuplicateTask, PayloadMismatch, QueueFull, StoreError, StoreUnavailable
from celery_reliable.keys import HEADER, Identity
from celery_reliable.payloads import ARGUMENTS_HEADER, VERSION_HEADER
from celery_reliable.questions import Otherwise, Question
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import BeginSubmit, SubmitAnswer
from celery_reliable.submission.accepting import REPLACING, answered, follow, submission_of, submitted
from celery_reliable.submission.aside import forget, lightened
from celery_reliable.submission.calls import SIGNATURES, Call, facts_of, overlap_of
from celery_reliable.submission.identifying import identify, in_life
from celery_reliable.submission.promising import callers_transaction, promise
from celery_reliable.submission.queues import admit, in_lane
from celery_reliable.submission.rounds import in_round, in_window
from celery_reliable.submission.sending import publish
from celery_reliable.submission.skipping import foreseen_skip, skip

if TYPE_CHECKING:
    from celery.result import AsyncResult

_OF_ONE_MESSAGE: dict[str, None] = {HEADER: None, VERSION_HEADER: None, ARGUMENTS_HEADER: None}


def submit(call: Call) -> AsyncResult[Any]:
    """Submit a call and return its result handle.

    When this returns, the job is accepted and published, or the handle is that of the job which already has the key. In a
    transaction on the store's own database it is accepted by the commit, and published after that (see `promise`).
    Raises `DuplicateTask`, `PayloadMismatch`, `QueueFull`, `StoreUnavailable`, and what publishing raises; then the
    task will not run (or the message says that it may).
    """
    runtime = runtime_of(call.task.app)
    if HEADER in (call.options.get("headers") or {}):  # handed on from another message: what we said of that one
        call = call.with_headers(**_OF_ONE_MESSAGE)
    if call.has_canvas:
        canvas = [call.options.get(name) for name in SIGNATURES]
        signature_versions.write_versions(canvas, version_of=call.task.version_of)
    identity = identify(call, runtime=runtime)
    shed = admit(call, identity, admission=runtime.admission)
    if shed:
        runtime.events.emit("shed", **facts_of(call, identity), **shed)
        return skip(call, identity, f"shed: queue {shed['queue']} is full")
    call = in_lane(call, identity, runtime=runtime)
    transaction = callers_transaction(call, identity, runtime=runtime)
    if transaction is not None:
        return promise(call, identity, transaction, runtime=runtime)
    reason = foreseen_skip(call, identity, runtime=runtime)
    if reason:
        runtime.events.emit("skipped", **facts_of(call, identity), policy=overlap_of(call), reason=reason)
        return skip(call, identity, f"skipped: {reason}")
    if runtime.blobs is None:
        return _accepted(call, identity, runtime=runtime)
    return _accepted_light(call, identity, runtime=runtime)


def _accepted_light(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Keep what is too large for a message aside, and forget it again if the call is refused."""
    light = lightened(call, identity, runtime=runtime)
    try:
        return _accepted(light, identity, runtime=runtime)
    except StoreUnavailable:  # it may run all the same
        raise
    except (StoreError, DuplicateTask, PayloadMismatch, QueueFull):  # of others, `withdraw` knows whether it may run
        forget(light, identity, runtime=runtime)
        raise


def _accepted(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Have the store accept a call, and publish it."""
    if identity.job.kind != "declared" and not runtime.ledger:
        return publish(call, identity, runtime=runtime)
    settings = call.task.reliable_settings
    if identity.job.kind == "declared" and settings.on_conflict == "queue_one":
        return in_round(call, identity, runtime=runtime)
    if identity.job.kind == "declared" and settings.dedup_for is not None:
        return in_window(call, identity, runtime=runtime)
    begin = runtime.store.begin_submit
    asks_first = "connection" in call.options or "publisher" in call.options or settings.on_conflict in REPLACING
    if begin is None or asks_first:  # arguments once replaced are not taken back when no message can be built
        return follow(call, identity, submitted(call, identity, runtime=runtime), runtime=runtime)
    return _built_meanwhile(call, identity, begin, runtime=runtime)


def _built_meanwhile(call: Call, identity: Identity, begin: BeginSubmit, *, runtime: Runtime) -> AsyncResult[Any]:
    """Build the message of a key that nobody has had before while the store looks at the key.

    Its answer is seen before anybody is told of the message; another one than foreseen is followed as ever.
    """
    answer = begin(identity.job, **submission_of(call, identity, runtime=runtime))
    question = Question(
        lambda: answered(answer, call, identity, runtime=runtime),
        on_new=lambda: runtime.events.emit("submitted", **facts_of(call, identity)),
    )
    try:
        return publish(call, in_life(identity, 1), runtime=runtime, question=question)
    except Otherwise:
        found = cast("SubmitAnswer", question.answer)
    return follow(call, identity, found, runtime=runtime)
