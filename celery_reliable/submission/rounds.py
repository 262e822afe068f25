"""Submit a key that begins anew: when its job has begun, or its window is over (see `flow.rounds`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_reliable.errors import StoreError, StoreUnavailable
from celery_reliable.flow.rounds import Round, round_key
from celery_reliable.keys import Identity
from celery_reliable.runtime import Runtime
from celery_reliable.stores.base import Existing, Job, New, SubmitAnswer
from celery_reliable.submission.accepting import follow, submitted
from celery_reliable.submission.calls import Call
from celery_reliable.submission.sending import withdraw

if TYPE_CHECKING:
    from celery.result import AsyncResult

_ROUNDS = 100


def in_round(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Join the round of a key that has not begun, or begin the next one (see `flow.rounds`)."""
    name, rounds = identity.job.key, runtime.rounds
    for _ in range(_ROUNDS):
        number = rounds.present(name)
        this = replace(_of_round(identity, number), fingerprint="")
        answer = submitted(call, this, runtime=runtime)
        if not _has_begun(answer, this):
            return follow(call, this, answer, runtime=runtime)
        rounds.advance(name, begun=number)
    raise _overtaken(call, name)


def in_window(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Join the job that a key has in its window, or until it is done; begin the next one after that (see `flow.rounds`)."""
    name, rounds = identity.job.key, runtime.rounds
    for _ in range(_ROUNDS):
        present = rounds.look(name)
        this = _of_round(identity, present.number)
        if not present.window and _is_done(this, runtime=runtime):
            rounds.leave(name, done=present.number)
            continue
        answer = submitted(call, this, runtime=runtime)
        if isinstance(answer, New) or (
            not present.window and isinstance(answer, Existing) and answer.publish == "same"
        ):
            _open_window(call, this, present, name=name, runtime=runtime)
        return follow(call, this, answer, runtime=runtime)
    raise _overtaken(call, name)


def _is_done(identity: Identity, *, runtime: Runtime) -> bool:
    """Tell whether a job is done and was submitted under another id; the same id again is the same submission."""
    record = runtime.store.inspect(identity.job)
    return record.get("state") == "done" and record.get("task_id") != identity.task_id


def _open_window(call: Call, identity: Identity, known: Round, *, name: str, runtime: Runtime) -> None:
    """Open the window of a job that is about to be published."""
    try:
        runtime.rounds.open(name, known=known, ttl=call.task.reliable_settings.dedup_for or 0.0)
    except StoreError as exc:
        withdraw(call, identity, cause=exc, runtime=runtime)
        raise


def _of_round(identity: Identity, number: int) -> Identity:
    job = identity.job
    return replace(identity, job=Job(round_key(job.key, number), "declared", job.stamp))


def _overtaken(call: Call, name: str) -> StoreUnavailable:
    msg = f"{call.task.name}: {name!r} was begun {_ROUNDS} times while this call was submitted; submit it again"
    return StoreUnavailable(msg)


def _has_begun(answer: SubmitAnswer, identity: Identity) -> bool:
    """Tell whether a submission came too late for its round; the same id again is the same submission."""
    if not isinstance(answer, Existing) or answer.task_id == identity.task_id or answer.state == "revoked":
        return False
    return not answer.replaced
