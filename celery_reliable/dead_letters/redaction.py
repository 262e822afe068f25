"""Hide from people what a project says they must not see in arguments; the stored letter stays as it is.

A redacted letter is for the eye alone: it has other arguments than the call, and must not be replayed.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from celery_reliable.dead_letters.record import DeadLetter
from celery_reliable.payloads import Envelope, RawMessage

Redact = Callable[[str, list[Any], dict[str, Any]], tuple[Any, Any]]
"""Called as ``redact(task_name, args, kwargs)``; returns args and kwargs as they may be seen. It may change what it gets."""

HIDDEN: Final = "(hidden)"
_PARTS: Final = 2
_REPRESENTATIONS: Final = frozenset({"argsrepr", "kwargsrepr"})
logger = logging.getLogger("celery_reliable")


def seen(letter: DeadLetter, redact: Redact | None) -> DeadLetter:
    """Return a letter as it may be shown. Never raises: of arguments that the hook cannot judge nothing is shown."""
    if redact is None:
        return letter
    return replace(
        letter,
        envelope=_envelope(letter.envelope, redact),
        original=_envelope(letter.original, redact),
        raw=_raw(letter.raw),
    )


def _envelope(envelope: Envelope | None, redact: Redact) -> Envelope | None:
    if envelope is None:
        return None
    options = _seen_in(dict(envelope.options), redact)
    try:
        args, kwargs, *rest = json.loads(envelope.body)
    except (ValueError, TypeError):
        return replace(envelope, body=_blank(envelope.body), options=options)
    args, kwargs = arguments(envelope.task, args, kwargs, redact)
    return replace(envelope, body=json.dumps([args, kwargs, *_seen_in(rest, redact)]), options=options)


def _seen_in(value: Any, redact: Redact) -> Any:  # Any: what JSON holds
    """Go through all that is chained to a call: each signature has arguments of its own."""
    if isinstance(value, list | tuple):
        return [_seen_in(one, redact) for one in value]
    if not isinstance(value, Mapping):
        return value
    others = {
        name: HIDDEN if name in _REPRESENTATIONS else _seen_in(one, redact)
        for name, one in value.items()
        if name not in ("args", "kwargs")
    }
    if "task" not in value or not ("args" in value or "kwargs" in value):
        kept = {name: _seen_in(value[name], redact) for name in ("args", "kwargs") if name in value}
        return {**others, **kept}
    args, kwargs = arguments(str(value["task"]), value.get("args") or [], value.get("kwargs") or {}, redact)
    return {**others, "args": args, "kwargs": _seen_in(kwargs, redact)}


def arguments(task: str, args: Any, kwargs: Any, redact: Redact) -> tuple[Any, Any]:
    """Return arguments as they may be seen; of those that the hook cannot judge nothing."""
    try:
        args, kwargs = redact(task, list(args), dict(kwargs))
        return json.loads(json.dumps([list(args), dict(kwargs)], default=str))  # type: ignore[no-any-return]
    except Exception as exc:  # noqa: BLE001  # a project's code; what it raises may hold the arguments, so it is not told
        logger.warning("reliable_redact failed, nothing is shown", extra={"reliable_error": type(exc).__name__})
        return [HIDDEN], {}


def _raw(raw: RawMessage | None) -> RawMessage | None:
    """Hide the bytes of a message of which nobody knows where its arguments are."""
    if raw is None:
        return None
    headers = {name: HIDDEN if name in _REPRESENTATIONS else value for name, value in raw.headers.items()}
    return replace(raw, body=_blank(raw.body), headers=headers)


def _blank(body: str) -> str:
    """Return a text of the same size, in base64 if that is what it was."""
    try:
        return base64.b64encode(b"*" * len(base64.b64decode(body, validate=True))).decode()
    except ValueError:
        return "*" * len(body)
