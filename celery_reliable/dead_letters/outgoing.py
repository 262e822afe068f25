"""Make the message of a replay out of a dead letter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from celery_reliable.dead_letters.record import (
    HEADER,
    JSON,
    LOOPS_HEADER,
    DeadLetter,
    Replay,
    arguments_of,
    reliable_header,
)
from celery_reliable.payloads import ARGUMENTS_HEADER, Envelope, RawMessage

_ADDRESS: Final = frozenset({"queue", "routing_key", "exchange", "exchange_type"})
_FORGOTTEN: Final = frozenset({"countdown", "eta", "expires", "retries"})
_TRACE: Final = frozenset({"sentry-trace", "baggage", "traceparent", "tracestate", "sentry-task-enqueued-time"})
_WATCHED: Final = frozenset({"reliable_schedule"})
"""By it somebody outside watches over a slot, whose end was told when the letter was written."""


def outgoing(letter: DeadLetter, *, replay: Replay, life: int, fingerprint: str) -> Envelope:
    """Return the call under its new id and life, due at once, its retries back at none.

    ``expires`` goes, since an expired call would never run. Link, chain, chord and group stay: what followed the call
    then follows it now. A replay begins a trace of its own: the old one ended with the letter, and so did its slot.
    """
    envelope = _body_of(letter)
    options = {name: value for name, value in envelope.options.items() if name not in _FORGOTTEN}
    headers = {**_unwatched(options.get("headers") or {}), LOOPS_HEADER: letter.loops + 1}
    header = _header(letter, replay=replay, life=life, fingerprint=fingerprint)
    options["headers"] = {**headers, HEADER: header} if header else headers
    return replace(envelope, task_id=replay.new_id, options=options)


def outgoing_raw(letter: DeadLetter, *, replay: Replay, life: int, fingerprint: str) -> RawMessage:
    """Return a message that could not be read as it was, under the new id and life if it had ours."""
    raw = letter.raw
    if raw is None or raw.item:
        msg = f"dead letter {letter.id} has no message to publish"
        raise ValueError(msg)
    headers = {**raw.headers, LOOPS_HEADER: letter.loops + 1}
    if raw.headers.get("id"):
        headers["id"] = replay.new_id
    header = _header(letter, replay=replay, life=life, fingerprint=fingerprint)
    return replace(raw, headers={**headers, HEADER: header} if header else headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be different about a call that is sent back. None: as it was."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    task: str | None = None
    queue: str | None = None

    def __bool__(self) -> bool:
        """Whether anything is to be different."""
        return any(part is not None for part in (self.args, self.kwargs, self.task, self.queue))


AS_IT_WAS: Final = Change()


def edited(letter: DeadLetter, change: Change) -> tuple[DeadLetter, Envelope]:
    """Return the changed letter, its envelope so far kept as ``original``, and the new envelope.

    What is not given stays as it was, down to values that only Celery's JSON knows. Raises ValueError when the part
    that has to stay cannot be read.
    """
    envelope = _body_of(letter)
    changed = _elsewhere(envelope, change)
    if change.args is not None or change.kwargs is not None:
        changed = _with_arguments(letter, changed, args=change.args, kwargs=change.kwargs)
    return replace(letter, envelope=changed, original=letter.original or envelope, task=changed.task), changed


def _elsewhere(envelope: Envelope, change: Change) -> Envelope:
    """Return the call for another task or queue; what addressed the old one goes."""
    options = dict(envelope.options)
    if change.queue is not None:
        options = {name: value for name, value in options.items() if name not in _ADDRESS} | {"queue": change.queue}
    return replace(envelope, task=change.task or envelope.task, options=options)


def _with_arguments(
    letter: DeadLetter, envelope: Envelope, *, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Envelope:
    found = arguments_of(envelope)
    if found is None and (args is None or kwargs is None):
        msg = f"the arguments are {letter.call()} and cannot be edited in part: give both args and kwargs"
        raise ValueError(msg)
    old_args, old_kwargs = found or ([], {})
    parts = [old_args if args is None else list(args), old_kwargs if kwargs is None else dict(kwargs)]
    rest = json.loads(envelope.body)[2:] if found is not None else []
    body = json.dumps([*parts, *rest], separators=(",", ":"))
    headers = envelope.options.get("headers") or {}
    inline = {name: value for name, value in headers.items() if name != ARGUMENTS_HEADER}
    options = {**envelope.options, "headers": inline}
    return replace(envelope, body=body, content_type=JSON, content_encoding="utf-8", options=options)


def _unwatched(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without those of tracing and monitoring; some tools write them at two levels."""
    kept = {name: value for name, value in headers.items() if name not in _TRACE | _WATCHED}
    if isinstance(kept.get("headers"), dict):
        kept["headers"] = _unwatched(kept["headers"])
    return kept


def _body_of(letter: DeadLetter) -> Envelope:
    if letter.envelope is None:
        msg = f"dead letter {letter.id} has no call to publish"
        raise ValueError(msg)
    return letter.envelope


def _header(letter: DeadLetter, *, replay: Replay, life: int, fingerprint: str) -> dict[str, Any]:
    """Return our header; {} for a message from elsewhere, which has none and whose id is its key."""
    header = dict(reliable_header(letter.envelope))
    if letter.key:
        header |= {"k": letter.kind, "key": letter.key}
    if not header:
        return {}
    stamp = round(replay.when * 1_000_000)
    return {**header, "s": stamp, "l": life, "f": fingerprint, "i": replay.new_id}
