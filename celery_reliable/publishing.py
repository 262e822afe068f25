"""Turn a call into an envelope, and publish what an envelope has."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from kombu import serialization
from kombu.utils import json as kombu_json

from celery_reliable import internals, keys, signing
from celery_reliable.keys import HEADER, Identity
from celery_reliable.payloads import Envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job

if TYPE_CHECKING:
    from celery import Celery, Task

DAY = 86_400.0
LIVE_RECORD_TTL = 7 * DAY
"""Life of a record that is not done, from its last change; renewals and releases begin it anew."""

_PLAIN = (str, int, float, bool, type(None))
_NOT_KEPT = ("producer", "connection", "publisher", "result_cls", "task_type", "add_to_parent", "retry", "retry_policy")


def envelope_of(task: Task, args: Any, kwargs: Any, *, task_id: str, options: Mapping[str, Any]) -> Envelope:
    """Return a call as it can be published again. Raises what the serializer raises for arguments it cannot carry."""
    wanted = internals.sending_options(task, options)
    serializer = wanted.get("serializer") or task.app.conf.task_serializer
    content_type, encoding, body = serialization.dumps((args, kwargs), serializer)
    if isinstance(body, bytes) and encoding == "binary":
        body = base64.b64encode(body).decode()
    elif isinstance(body, bytes):
        body = body.decode(encoding)
    return Envelope(task.name, task_id, body, content_type, encoding, plain_options(wanted))


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that matter later as plain JSON: times absolute, queues and exchanges by name."""
    kept = {name: value for name, value in options.items() if value is not None and name not in _NOT_KEPT}
    countdown = kept.pop("countdown", None)
    if countdown:
        kept["eta"] = datetime.now(timezone.utc) + timedelta(seconds=float(countdown))
    if isinstance(kept.get("expires"), int | float):
        kept["expires"] = datetime.now(timezone.utc) + timedelta(seconds=float(kept["expires"]))
    named = {name: _named(value) for name, value in kept.items()}
    if _is_plain(named):
        return named
    plain: dict[str, Any] = kombu_json.loads(kombu_json.dumps(named), object_hook=None)
    return plain


def _is_plain(value: Any) -> bool:  # Any: the values of apply_async's options
    """Tell, in a tenth of the time that writing it takes, whether JSON would give a value back as it is."""
    if type(value) is dict:
        return all(type(name) is str for name in value) and all(map(_is_plain, value.values()))
    return type(value) in _PLAIN or (type(value) is list and all(map(_is_plain, value)))


def _named(value: Any) -> Any:  # Any: the values of apply_async's options
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "maybe_bind"):  # kombu's Queue and Exchange
        return value.name
    return value


def arguments_in(envelope: Envelope, *, accept: Any = None) -> tuple[Any, Any]:
    """Return (args, kwargs) of an envelope. Raises what kombu raises for content it may not accept."""
    body: Any = envelope.body
    if envelope.content_encoding == "binary":
        body = base64.b64decode(body)
    accepted = serialization.prepare_accept_content(accept)  # content types and the short names of settings
    args, kwargs, *_ = serialization.loads(body, envelope.content_type, envelope.content_encoding, accept=accepted)
    return args, kwargs


def publish_envelope(app: Celery, envelope: Envelope, **changes: Any) -> None:
    """Publish a kept call under its own id, without submitting it again. Raises what publishing raises.

    ``changes`` are options of ``send_task`` that win over those of the envelope.
    Raises `SignatureRefused` for one that is not sealed, where the app signs (see `check_seal`).
    Arguments are not checked against the task's present signature: whether they fit is for the worker to find.
    """
    check_seal(app, envelope)
    args, kwargs = arguments_in(envelope, accept={envelope.content_type})
    sending = {"task_id": envelope.task_id, "add_to_parent": False}
    options = {**runtime_of(app).publish_options, **_addressed(envelope.options), **sending, **changes}
    app.send_task(envelope.task, args, kwargs, task_type=app.tasks.get(envelope.task), **options)


def sealed(app: Celery, envelope: Envelope) -> Envelope:
    """Return an envelope as it may be kept: with our seal, where the app signs."""
    signer = runtime_of(app).signer
    return envelope if signer is None else signer.sealed(envelope)


def check_seal(app: Celery, envelope: Envelope) -> None:
    """Refuse a kept call that no holder of our keys has written, where the app signs: publishing would sign it."""
    runtime = runtime_of(app)
    signer = runtime.signer
    if signer is None or signer.is_sealed(envelope):
        return
    if signer.enforces:
        raise signing.refused(f"the kept call of {envelope.task} as {envelope.task_id}", "no key of ours has sealed it")
    runtime.events.emit(
        "unsigned",
        task=envelope.task,
        task_id=envelope.task_id,
        key=envelope.task_id,
        reason="kept call without a seal",
    )


def _addressed(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that name their queue. A received message names none, but the default exchange and a routing key.

    Celery (5.7, ``send_task_message``) takes the default queue for it then; its own retries do as we do here.
    """
    received = options.get("exchange") == "" and options.get("routing_key") and not options.get("queue")
    return {**options, "queue": options["routing_key"]} if received else options


def identity_in(envelope: Envelope) -> Identity:
    """Say whose job an envelope is; its own, if it does not say so itself."""
    header = (envelope.options.get("headers") or {}).get(HEADER)
    nesting = int(envelope.options.get("replaced_task_nesting") or 0)
    found = keys.identity_of(header, task_id=envelope.task_id, nesting=nesting)
    return found or Identity(Job(keys.own_key(envelope.task_id, nesting), "given"), envelope.task_id)
