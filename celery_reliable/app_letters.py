"""Open the dead letters of an app: publish replays through it, and judge calls by the code that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.result import denied_join_result
from kombu.exceptions import BatchPublishError, ContentDisallowed, DecodeError, EncodeError, OperationalError

from celery_reliable import internals
from celery_reliable.dead_letters import DeadLetter, DeadLetters, arguments_of
from celery_reliable.dead_letters.redaction import seen
from celery_reliable.errors import IncompatiblePayload, ReliableError
from celery_reliable.payloads import SIGNATURE_HEADER, VERSION_HEADER, Envelope, RawMessage
from celery_reliable.publishing import publish_envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.task import ReliableTask

if TYPE_CHECKING:
    from celery import Celery

_TOGETHER = 10_000  # messages; more than are ever sent at once


def letters_of(app: Celery) -> DeadLetters:
    """Return the dead letters of an app, its task modules imported so that its tasks are known."""
    app.loader.import_default_modules()
    return known_letters_of(app, alone=True)


def known_letters_of(app: Celery, *, alone: bool = False) -> DeadLetters:
    """Return the dead letters of an app whose task modules are imported already.

    ``alone``: nothing in this process waits for a result meanwhile, so that many can be sent at once.
    """
    runtime = runtime_of(app)
    return DeadLetters(
        runtime.store,
        events=runtime.events,
        publish=partial(_publish, app),
        publish_all=partial(_publish_all, app) if alone else None,
        publish_raw=partial(_publish_raw, app),
        objection=partial(_objection, app),
        fingerprint=partial(_fingerprint, app),
        signer=runtime.signer,
    )


def seen_by(app: Celery) -> Callable[[DeadLetter], DeadLetter]:
    """Return what makes of a letter the one that may be shown (``reliable_redact``). Replay the letter itself, never this one."""
    redact = runtime_of(app).redact
    return lambda letter: seen(letter, redact)


def _publish_all(app: Celery, envelopes: Sequence[Envelope]) -> None:
    """Publish several calls, where the transport can in one round trip; of a call that is at fault none is sent so.

    When it is uncertain what arrived, all are published once more, each by itself and with Celery's retries: a second copy
    is refused by its claim.
    """
    try:
        # Denied: Celery would listen on the backend for each result, and nobody here reads it.
        with denied_join_result(), app.producer_or_acquire() as producer, producer.batch(max_size=_TOGETHER):
            addresses: set[Any] = set()
            for envelope in envelopes:
                # What one has declared, the next ones to the same address need not.
                known: dict[str, Any] = {"declare": []} if (address := _address(envelope)) in addresses else {}
                _publish(app, envelope, producer=producer, retry=False, **known)
                addresses.add(address)
    except BatchPublishError:
        for envelope in envelopes:
            _publish(app, envelope)


def _address(envelope: Envelope) -> tuple[Any, ...]:
    """Return all that decides to which queue a call goes."""
    return (envelope.task, *(str(envelope.options.get(name)) for name in ("queue", "exchange", "routing_key")))


def _publish(app: Celery, envelope: Envelope, **options: Any) -> None:
    """Publish one call, saying of which letter it could not be done when the call itself is at fault."""
    try:
        publish_envelope(app, envelope, **options)
    except (EncodeError, DecodeError, ContentDisallowed, TypeError, ValueError) as exc:
        raise ReliableError(
            f"task {envelope.task} as {envelope.task_id} cannot be published: {exc!r}. Its letter stays replaying: "
            "discard it, or leave it out with --status dead."
        ) from exc


def _publish_raw(app: Celery, raw: RawMessage) -> None:
    """Put a message back into its queue as it was, signed if this app signs."""
    signer, headers = runtime_of(app).signer, dict(raw.headers)
    if signer is not None:
        headers[SIGNATURE_HEADER] = signer.sign(headers, raw.content, (raw.content_type, raw.content_encoding))
    with app.connection_for_write() as connection:
        try:
            connection.connect()
            internals.put_back(connection.default_channel, raw, headers=headers)
        except internals.away() as exc:
            raise OperationalError(str(exc)) from exc


def _objection(app: Celery, envelope: Envelope) -> str:
    """Say why this app's code could not run a call; "" when it could."""
    task: Any = app.tasks.get(envelope.task)  # Any: celery-types does not know `__header__`
    if task is None:
        return "no such task is registered here (see `imports` and `include`)"
    version = _version_of(envelope)
    if version > getattr(task, "payload_version", 1):
        return f"it has payload version {version}, and this code knows up to {task.payload_version}"
    found = arguments_of(envelope)
    if found is None:
        return ""
    try:
        if not isinstance(task, ReliableTask):
            task.typing and task.__header__(*found[0], **found[1])
        elif task.checks_arguments:
            task.check_arguments(*found, version=version)
    except (TypeError, IncompatiblePayload) as exc:
        return f"the arguments do not fit it ({exc})"
    return ""


def _fingerprint(app: Celery, envelope: Envelope) -> str:
    """Return the fingerprint of an edited call, so that its key compares what will run."""
    task, found = app.tasks.get(envelope.task), arguments_of(envelope)
    if not isinstance(task, ReliableTask) or found is None:
        return ""
    try:
        return task.fingerprint_of(task.bound(*found, version=_version_of(envelope)))
    except (TypeError, ReliableError):  # a forced misfit: nothing to compare
        return ""


def _version_of(envelope: Envelope) -> int:
    return (envelope.options.get("headers") or {}).get(VERSION_HEADER) or 1
