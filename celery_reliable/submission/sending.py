"""Publish what was accepted, or take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task

from celery_reliable import internals
from celery_reliable.errors import ReliableError, StoreError, StoreUnavailable
from celery_reliable.keys import HEADER, Identity
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.questions import Otherwise, Question
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.submission.aside import forget
from celery_reliable.submission.calls import Call, facts_of
from celery_reliable.waits import Wait, expiring

if TYPE_CHECKING:
    from celery.result import AsyncResult


def publish(
    call: Call, identity: Identity, *, runtime: Runtime, withdraw: bool = True, question: Question | None = None
) -> AsyncResult[Any]:
    """Publish a call. If that fails its submission is taken back, with ``withdraw``, before the error goes on.

    ``question`` is asked before anything of the message is told. Raises `Otherwise` when it is not answered as foreseen,
    what asking and publishing raise, and `StoreUnavailable` when it cannot be told whether the task will run.
    """
    options = {**runtime.publish_options, **call.options, "headers": headers_of(call, identity)}
    try:
        result = _sent(call, identity.task_id, options, question=question)
    except Otherwise:
        raise
    except BaseException as exc:  # whatever stops a publish: the caller is told no, so the job must not run
        unsent = question is not None and question.answer is None
        if withdraw and (unsent or isinstance(exc, Exception)):  # Ctrl-C in the middle of sending: it may have gone
            _take_back(call, identity, cause=exc, question=question, runtime=runtime)
        raise
    if identity.job.kind == "declared" and not runtime.ledger:
        _confirm(identity, runtime=runtime)
    return result


def _sent(call: Call, task_id: str, options: dict[str, Any], *, question: Question | None) -> AsyncResult[Any]:
    if "connection" in options or "publisher" in options:  # Celery finds out what to publish with
        return Task.apply_async(call.task, call.args, call.kwargs, task_id=task_id, **options)
    ask = None if question is None else question.see
    with internals.publishing(call.task.app, options.pop("producer", None), ask=ask) as producer:
        return Task.apply_async(call.task, call.args, call.kwargs, task_id=task_id, producer=producer, **options)


def headers_of(call: Call, identity: Identity) -> dict[str, Any]:
    """Return what travels with a call: whose job it is, and its payload's version unless that is the first."""
    countdown, expires, header = call.options.get("countdown"), call.options.get("expires"), identity.to_header()
    if countdown or expires:
        since = identity.job.stamp if runtime_of(call.task.app).ledger else 0  # else it is by our own clock
        header = _timed(header, countdown=countdown, expires=expires, since=since)
    headers = {**(call.options.get("headers") or {}), HEADER: header}
    headers.pop(VERSION_HEADER, None)
    return headers if call.version == 1 else {VERSION_HEADER: call.version, **headers}


def _timed(header: dict[str, Any], *, countdown: object, expires: object, since: int) -> dict[str, Any]:
    """Return a header that says by the store's clock what is told in seconds; a moment is taken as it is."""
    if countdown and isinstance(countdown, int | float):
        header = Wait(countdown, since).beside(header)
    if since and isinstance(expires, int | float):
        header = expiring(header, since=since, seconds=expires)
    return header


def _take_back(
    call: Call, identity: Identity, *, cause: BaseException, question: Question | None, runtime: Runtime
) -> None:
    """Withdraw what was not published. What tells the process to end is not hidden by a store that does not answer."""
    try:
        if question is None or question.accepted():
            withdraw(call, identity, cause=cause, runtime=runtime)
    except ReliableError:
        if isinstance(cause, Exception):
            raise


def withdraw(call: Call, identity: Identity, *, cause: BaseException, runtime: Runtime) -> None:
    """Take back a submission. Raises `StoreUnavailable`, from ``cause``, when it may run all the same."""
    try:
        gone = runtime.store.withdraw(identity.job, task_id=identity.task_id)
    except StoreError as exc:
        gone, cause = False, exc
    if gone:
        forget(call, identity, runtime=runtime)
        runtime.events.emit("withdrawn", **facts_of(call, identity))
        return
    runtime.events.emit("withdraw_failed", **facts_of(call, identity))
    msg = f"{call.task.name}[{identity.task_id}]: publishing failed and could not be taken back: the task may still run"
    raise StoreUnavailable(msg) from cause


def _confirm(identity: Identity, *, runtime: Runtime) -> None:
    """Note the broker's confirm; without it the next submission of the key merely publishes once more."""
    try:
        runtime.store.published(identity.job, task_id=identity.task_id)
    except StoreError:
        return
