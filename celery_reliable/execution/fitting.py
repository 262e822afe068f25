"""Give a body its arguments as it takes them now: lifted when the message is older, without what newer code added.

The message stays as it was: a retry, a dead letter and a replay carry it on unchanged, to whatever code comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Reject

from celery_reliable import claim_check, internals, signature_versions
from celery_reliable.errors import BlobLost, ConfigurationError, SignatureRefused, Transient
from celery_reliable.execution import burial, overlapping
from celery_reliable.execution.delivery import SHORTEST_WAIT
from celery_reliable.payloads import ARGUMENTS_HEADER, VERSION_HEADER, Envelope
from celery_reliable.publishing import LIVE_RECORD_TTL, arguments_in, check_seal
from celery_reliable.submission import blob_ttl
from celery_reliable.worker.waiting import GiveBack, Hold

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery
    from celery_reliable.upgrades import Fitted

_OF_ARGUMENTS = (VERSION_HEADER, ARGUMENTS_HEADER)
_LONGEST_WAIT = 15.0
_CANVAS = ("callbacks", "errbacks", "chain", "chord")
_WAIT = 5.0  # seconds until newer arguments look for a newer worker again


def date_canvas(delivery: Delivery) -> None:
    """Note in the signatures that came with a message that their arguments are of the first version, where it is so."""
    request = delivery.request
    canvas = [getattr(request, name) for name in _CANVAS if getattr(request, name)]
    if canvas:
        signature_versions.write_first(canvas, version_of=delivery.task.version_of)


def take_replaced(delivery: Delivery, raw: bytes) -> None:
    """Take the arguments of a later submission in the message's place (``on_conflict="replace"``)."""
    envelope, request = Envelope.from_bytes(raw), delivery.request
    try:
        check_seal(delivery.task.app, envelope)
    except SignatureRefused as exc:
        burial.bury(delivery, exc, "rejected")
    headers = envelope.options.get("headers") or {}
    version = headers.get(VERSION_HEADER) or 1
    if version > delivery.task.payload_version:
        _leave_to_newer(delivery)
    args, kwargs = arguments_in(envelope, accept=delivery.task.app.conf.accept_content)
    request.args, request.kwargs = delivery.whole = delivery.args, delivery.kwargs = tuple(args), dict(kwargs)
    delivery.version, delivery.aside_header = version, headers.get(ARGUMENTS_HEADER)
    request.headers = _headers(request.headers, version=version, aside=delivery.aside_header)


def _headers(headers: Mapping[str, Any] | None, *, version: int, aside: Any) -> dict[str, Any]:
    """Return headers of a message that say of its arguments what is true of them."""
    others = {name: value for name, value in (headers or {}).items() if name not in _OF_ARGUMENTS}
    return {
        **others,
        **({VERSION_HEADER: version} if version > 1 else {}),
        **({ARGUMENTS_HEADER: aside} if aside is not None else {}),
    }


# --- arguments kept aside


def fetch(delivery: Delivery) -> None:
    """Read the arguments that are kept aside. Lost ones end the job; a folder that is away makes it wait."""
    if delivery.aside_header is None:
        return
    try:
        aside = claim_check.Aside.of({ARGUMENTS_HEADER: delivery.aside_header})
        assert aside is not None  # noqa: S101  # the header is there
        delivery.whole = _whole(delivery, aside)
    except Transient as exc:
        _wait_for_folder(delivery, exc)
    except (BlobLost, ConfigurationError) as exc:
        delivery.emit("blob_failed", what="arguments", error=str(exc))
        burial.bury(delivery, exc, "permanent")
    except Exception as exc:  # noqa: BLE001  # whatever a decoder raises: it cannot read it later either
        burial.bury(delivery, exc, "undecodable")


def _whole(delivery: Delivery, aside: claim_check.Aside) -> claim_check.Arguments:
    runtime, app = delivery.runtime, delivery.task.app
    found = claim_check.whole(aside, delivery.args, delivery.kwargs, app=app, runtime=runtime)
    if runtime.blobs is not None and not runtime.blobs.lasts(aside.ref, ttl=blob_ttl(runtime) - LIVE_RECORD_TTL):
        with suppress(Transient):  # it could be read, and that it is to last longer is for later
            _keep_longer(delivery, aside)
    return found


def _keep_longer(delivery: Delivery, aside: claim_check.Aside) -> None:
    """Write anew what a letter of this job, or its next run, would find swept. The old copy is left to the sweep."""
    runtime = delivery.runtime
    assert runtime.blobs is not None  # noqa: S101  # it was read from there
    ref = runtime.blobs.put(runtime.blobs.get(aside.ref), kind="arguments", ttl=blob_ttl(runtime))
    delivery.aside_header = replace(aside, ref=ref).to_header()
    delivery.request.headers = _headers(delivery.request.headers, version=delivery.version, aside=delivery.aside_header)


def _wait_for_folder(delivery: Delivery, exc: Transient) -> NoReturn:
    """Let the message wait as a snooze does: no attempt is spent, and there is an end to it."""
    wait = delivery.runtime.random.uniform(SHORTEST_WAIT, _LONGEST_WAIT)
    delivery.emit("blob_failed", what="arguments", error=str(exc))
    if delivery.run.snoozes >= delivery.settings.max_snoozes:
        burial.bury(delivery, exc, "exhausted")
    if not delivery.release("snooze", delay=wait):
        overlapping.leave(delivery)
        delivery.drop("revoked")
    overlapping.rest(delivery, seconds=wait, has_run=False)
    raise Reject(Hold(wait, f"arguments not read: {exc}"), requeue=True) from exc


def forget(delivery: Delivery) -> None:
    """Remove the arguments of a job that is done, where no other job may need them."""
    header, blobs = delivery.aside_header, delivery.runtime.blobs
    if header is None or blobs is None:
        return
    aside = claim_check.Aside.of({ARGUMENTS_HEADER: header})
    if aside is not None and aside.owner == delivery.identity.task_id:
        blobs.remove(aside.ref)


def sent_on(
    delivery: Delivery, call: claim_check.Arguments, *, headers: Mapping[str, Any] | None
) -> tuple[Any, Any, dict[str, Any]]:
    """Return arguments that a body gave for its next run, and the headers that say of them what is so."""
    task, runtime = delivery.task, delivery.runtime
    call = internals.dumped_arguments(task, *call)
    aside = None
    if not task.keeps_arguments_inline:
        aside = claim_check.kept(
            call,
            limit=delivery.settings.claim_check_threshold,
            serializer=str(task.serializer or task.app.conf.task_serializer),
            ttl=blob_ttl(runtime),
            owner=delivery.identity.task_id,
            runtime=runtime,
        )
    given = delivery.request.headers if headers is None else headers
    said = _headers(given, version=task.payload_version, aside=aside and aside.to_header())
    return (*call, said) if aside is None else ((), {}, said)


# --- the body's


def fitted(delivery: Delivery) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for the body. Raises `IncompatiblePayload`, and what an upgrade raises to be tried again."""
    task, version = delivery.task, delivery.version
    shape, known = task.shape, task.payload_version
    args, kwargs = delivery.whole
    if shape.takes(kwargs, version=version, known=known):
        return args, kwargs
    found = shape.fitted(args, kwargs, version=version, known=known)
    if version < known:
        delivery.emit("upgraded", from_version=version, version=known)
    if found.dropped:
        _tell_dropped(delivery, found)
    return found.args, found.kwargs


def _tell_dropped(delivery: Delivery, found: Fitted) -> None:
    """Tell of each job, and warn of each argument once in this process."""
    runtime, task = delivery.runtime, delivery.task.name
    delivery.emit("arguments_dropped", arguments=found.dropped)
    for name in found.dropped:
        if (task, name) not in runtime.warned and len(runtime.warned) < _MOST_WARNINGS:
            runtime.warned.add((task, name))
            runtime.events.emit("argument_unknown", task=task, argument=name)


_MOST_WARNINGS = 1000  # names come from messages: whoever sends them must not fill this process's memory


def _leave_to_newer(delivery: Delivery) -> NoReturn:
    """Give claim and message back: newer code has replaced the arguments, and this worker cannot know what they mean."""
    if not delivery.release():
        overlapping.leave(delivery)
        delivery.drop("revoked")
    delivery.emit("not_yet", wait=_WAIT)
    raise Reject(GiveBack("the arguments are newer than this worker's code", after=_WAIT), requeue=True)
