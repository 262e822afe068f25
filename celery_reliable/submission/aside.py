"""Keep aside what is too large for a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601

from celery_reliable import claim_check, internals, overlap
from celery_reliable.keys import Identity
from celery_reliable.payloads import ARGUMENTS_HEADER
from celery_reliable.publishing import LIVE_RECORD_TTL, plain_options
from celery_reliable.runtime import Runtime
from celery_reliable.submission.calls import SIGNATURES, Call, headers_given

if TYPE_CHECKING:
    from celery_reliable.task import ReliableTask


def lightened(call: Call, identity: Identity, *, runtime: Runtime) -> Call:
    """Return the call with its large arguments kept aside, and those of all that is chained to it. Raises `Transient`."""
    if call.has_canvas:
        names = [name for name in SIGNATURES if call.options.get(name)]
        lightened = {
            name: claim_check.changed_signatures(
                call.options[name], lambda one: _lightened_signature(one, call, runtime=runtime)
            )
            for name in names
        }
        call = replace(call, options={**call.options, **lightened})
    if call.task.keeps_arguments_inline or overlap.KEY_HEADER in headers_given(call):
        return call
    arguments = internals.dumped_arguments(call.task, call.args, call.kwargs)
    made = _kept(arguments, call.task, call, owner=identity.task_id, runtime=runtime)
    if made is None:
        return call
    if call.aside is not None:  # what came from the step before is large, too
        arguments = internals.dumped_arguments(call.task, *call.whole(runtime))
        _drop(made, runtime=runtime)
        made = _kept(arguments, call.task, call, owner=identity.task_id, runtime=runtime) or made
    return replace(call, args=(), kwargs={}).with_headers(**{ARGUMENTS_HEADER: made.to_header()})


def _lightened_signature(signature: dict[str, Any], call: Call, *, runtime: Runtime) -> dict[str, Any]:
    """Return a signature that carries where its arguments are, if they are large and its task can read them."""
    task: Any = call.task.app.tasks.get(signature["task"])  # Any: a task of any class
    options = signature.get("options") or {}
    headers = options.get("headers") or {}
    if getattr(task, "keeps_arguments_inline", True) or ARGUMENTS_HEADER in headers:
        return signature
    arguments = internals.dumped_arguments(
        task, tuple(signature.get("args") or ()), dict(signature.get("kwargs") or {})
    )
    owner = str(options.get("task_id") or "")
    made = _kept(arguments, task, call, owner=owner, runtime=runtime, again=runtime.bodies_aside)
    if made is None:
        return signature
    options = {**options, "headers": {**headers, ARGUMENTS_HEADER: made.to_header()}}
    return {**signature, "args": [], "kwargs": {}, "options": options}


def _kept(
    arguments: claim_check.Arguments,
    task: ReliableTask,
    call: Call,
    *,
    owner: str,
    runtime: Runtime,
    again: dict[Any, claim_check.Aside] | None = None,
) -> claim_check.Aside | None:
    return claim_check.kept(
        arguments,
        limit=task.reliable_settings.claim_check_threshold,
        serializer=str(call.options.get("serializer") or task.serializer or task.app.conf.task_serializer),
        ttl=_seconds_until_due(call.options) + blob_ttl(runtime),
        owner=owner,
        runtime=runtime,
        again=again,
    )


def blob_ttl(runtime: Runtime) -> float:
    """Return how long arguments are kept aside: as long as a message waits and runs, and then its dead letter."""
    return runtime.settings.dead_letter_ttl + 2 * LIVE_RECORD_TTL


def _seconds_until_due(options: Mapping[str, Any]) -> float:
    if not (options.get("eta") or options.get("countdown")):
        return 0.0
    due: Any = maybe_iso8601(plain_options({name: options.get(name) for name in ("eta", "countdown")}).get("eta"))
    if due is None:
        return 0.0
    aware = due if due.tzinfo else due.replace(tzinfo=timezone.utc)
    return max(float((aware - datetime.now(timezone.utc)).total_seconds()), 0.0)


def forget(call: Call, identity: Identity, *, runtime: Runtime) -> None:
    """Remove what was kept aside for a call that is not published."""
    aside = call.aside
    if aside is not None and aside.owner == identity.task_id:
        _drop(aside, runtime=runtime)


def _drop(aside: claim_check.Aside, *, runtime: Runtime) -> None:
    if runtime.blobs is not None:
        runtime.blobs.remove(aside.ref)
