"""Say which calls are the same job.

A key is *declared* by the project (template, ``"arguments"``, callable, per call), *derived* from the run or the scope
in which the call is made, or the call's *own* task id. The scheme has a version, so that it can change without taking
old messages for new jobs.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import inspect
import json
import secrets
import string
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast

from celery_reliable.errors import ConfigurationError
from celery_reliable.payloads import SIGNATURE_HEADER
from celery_reliable.stores.base import Job, Kind

HEADER = "reliable"
TOKEN = "reliable_token"  # noqa: S105  # a name, not a secret: where request and message have the token of a delivery
MOMENT = "reliable_moment"
"""Where a request has the moment that its run has reserved (`flow.rates`)."""
MAX_KEY_BYTES = 512
MAX_ID_BYTES = 255
_NAMESPACE = uuid.UUID("c3f0f5f8-3a0e-5b7c-9d51-5e1a1be5f0a1")
_SCHEME = "1"
_LONGEST_ENTRY = 300  # bytes of an entry's name that stand in a key as they are

KeyRule = str | Callable[..., str] | None


def new_token() -> str:
    """Return 12 characters that no other delivery has."""
    return secrets.token_urlsafe(9)


# --- arguments


@dataclass(frozen=True, slots=True)
class Bound:
    """A call bound to its task's signature: ``arguments`` with the defaults filled in, ``said`` without them."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    said: Mapping[str, Any]

    @classmethod
    def of(cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Bind a call. Raises TypeError as the call itself would."""
        arguments = bind(signature, args, kwargs)
        return cls(args, kwargs, arguments, said(signature, arguments))


def bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind a call to the task's signature, defaults filled in, so that ``f(1)`` and ``f(x=1)`` are one call.

    Raises TypeError as the call itself would.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def said(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not their defaults: what a call says, also after the task got another parameter.

    Two versions of the code must make one key of one call, while a deploy rolls and when a parent runs again after it.
    """
    return {name: value for name, value in arguments.items() if not _is_default(value, signature.parameters[name])}


def _is_default(value: object, parameter: inspect.Parameter) -> bool:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL or parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return not value
    default = parameter.default
    return value is default or (type(value) in _COMPARED and type(value) is type(default) and value == default)


_COMPARED = (str, int, float, bool, list, dict)


def canonical(value: object) -> str:
    """Return one text for equal arguments, the same before and after JSON. Raises TypeError for what JSON cannot carry."""
    return _encoder.encode(value)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value, key=canonical)
    if isinstance(value, bytes):
        return value.hex()
    if type(value).__module__ in ("datetime", "decimal", "uuid"):
        return str(value)
    msg = f"a {type(value).__qualname__} has no canonical form; give the task a callable idempotency_key"
    raise TypeError(msg)


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain, ensure_ascii=False)


def fingerprint(task: str, arguments: Mapping[str, Any], *, only: Sequence[str] | None = None) -> str:
    """Return 8 characters that differ when the arguments (or those named by ``only``) differ; "" if that cannot be told."""
    chosen = arguments if only is None else {name: arguments.get(name) for name in only}
    try:
        text = f"{task}\0{canonical(chosen)}"
    except TypeError:
        return ""
    return base64.urlsafe_b64encode(_hash(text, size=6)).decode()


def _hash(text: str, *, size: int) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=size).digest()


# --- declared keys


def check_rule(
    rule: object, *, task: str, signature: inspect.Signature, option: str = "idempotency_key", plain: bool = False
) -> None:
    """Refuse a rule that could never give a key, when the task is registered. Raises `ConfigurationError`.

    ``plain``: a template without any argument is fine.
    """
    if rule is None or rule == "arguments" or callable(rule):
        return
    if not isinstance(rule, str):
        msg = f"task {task}: {option}: expected a template, 'arguments' or a callable, found {type(rule).__name__}"
        raise ConfigurationError(msg)
    names = _names_in(rule, task=task, option=option)
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    unknown = sorted(names - {parameter.name for parameter in parameters})
    if unknown or not (names or plain):
        found = f"no argument named {', '.join(unknown)}" if unknown else "a template without any argument"
        known = ", ".join(signature.parameters) or "none"
        msg = (
            f"task {task}: {option}={rule!r}: expected names of its arguments ({known}), found {found}; "
            "write the argument's name in braces"
        )
        raise ConfigurationError(msg)


def _names_in(template: str, *, task: str, option: str) -> set[str]:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as exc:
        msg = f"task {task}: {option}={template!r} is not a template: {exc}; double a brace that is meant literally"
        raise ConfigurationError(msg) from exc
    return {name.split(".")[0].split("[")[0] for name in fields}


def declared_key(rule: KeyRule, bound: Bound, *, task: str, named: str = "", option: str = "idempotency_key") -> str:
    """Return the key that the rule gives for this call. Raises `ConfigurationError` when it gives none.

    ``named`` is the task's name as keys have it, where that is not its present one.
    """
    arguments = bound.arguments
    if callable(rule):
        return checked_key(rule(*bound.args, **bound.kwargs), task=task, option=option)
    if rule == "arguments":
        digest = base64.urlsafe_b64encode(_hash(canonical(bound.said), size=16)).decode()[:22]
        return f"{named or task}:{digest}"
    extra = {name: value for value in arguments.values() if isinstance(value, dict) for name, value in value.items()}
    try:
        return checked_key(cast("str", rule).format(**{**extra, **arguments}), task=task, option=option)
    except (KeyError, AttributeError, IndexError, ValueError) as exc:
        msg = f"task {task}: {option}={rule!r} cannot be filled in: {exc!r}; found arguments {sorted(arguments)}"
        raise ConfigurationError(msg) from exc


def checked_key(key: object, *, task: str, option: str = "idempotency_key") -> str:
    """Return the key, or raise `ConfigurationError` for an empty, foreign or overlong one."""
    if isinstance(key, str) and 0 < len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES:
        return key
    found = f"{len(key.encode(errors='surrogatepass'))} bytes" if isinstance(key, str) else repr(type(key).__name__)
    msg = (
        f"task {task}: {option}: expected a text of 1 to {MAX_KEY_BYTES} bytes, found {found}; "
        "name the few arguments that identify the job, or hash long ones"
    )
    raise ConfigurationError(msg)


def checked_id(task_id: str, *, task: str) -> str:
    """Return the task id, or raise `ConfigurationError` for an overlong one."""
    if len(task_id.encode(errors="surrogatepass")) <= MAX_ID_BYTES:
        return task_id
    msg = f"task {task}: task_id: expected at most {MAX_ID_BYTES} bytes, found {len(task_id)} characters; use a UUID"
    raise ConfigurationError(msg)


# --- derived keys


@dataclass(slots=True)
class Parent:
    """The run or scope in which calls are made: the same calls get the same ids each time it runs.

    ``checks`` is the number of checkpoints saved so far; the count of equal calls starts again at each.
    """

    key: str
    checks: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def child_id(self, task: str, arguments: str) -> str:
        """Return the id of the next such call."""
        call = f"{task}\0{arguments}"
        self.seen[call] = self.seen.get(call, 0) + 1
        return derived_id(self.key, str(self.checks), call, str(self.seen[call]))

    def checked(self) -> None:
        """Note that a checkpoint was saved."""
        self.checks += 1
        self.seen.clear()


_parent: ContextVar[Parent | None] = ContextVar("celery_reliable_parent", default=None)


def current_parent() -> Parent | None:
    """Return the run or scope around this call, if any."""
    return _parent.get()


class within:  # noqa: N801  # a context manager, read as a word; a generator would cost three times as much per task
    """Make calls inside children of ``parent`` (None: of nobody)."""

    __slots__ = ("_parent", "_reset")

    def __init__(self, parent: Parent | None) -> None:
        """Take the parent; nothing changes before the block is entered."""
        self._parent = parent

    def __enter__(self) -> Parent | None:
        """Begin."""
        self._reset = _parent.set(self._parent)
        return self._parent

    def __exit__(self, *exc_info: object) -> None:
        """Go back to what was before."""
        _parent.reset(self._reset)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Give the submissions inside ids derived from ``name``, so that a repeated request submits the same jobs.

    Use the id of what is handled, such as the web request's or the webhook's: ``with scope(f"webhook-{event.id}"):``.
    Calls of one task with equal arguments are told apart by their order. Scopes do not nest: the inner one counts.

    .. versionadded:: 0.1
    """
    if not name:
        msg = "scope: expected the id of the request or event that is handled, found an empty text"
        raise ConfigurationError(msg)
    with within(Parent(f"scope:{name}")):
        yield


def derived_id(*parts: str) -> str:
    """Return a UUID made of the parts, the same each time."""
    return str(uuid.uuid5(_NAMESPACE, "\0".join((_SCHEME, *parts))))


# --- slots


class SlotKey(str):
    """The key of a slot, given to ``apply_async`` by beat: it replaces whatever key the task declares."""

    __slots__ = ()


def slot_text(slot: int) -> str:
    """Return a slot (microseconds since the epoch) as it stands in the header, in ISO 8601 and UTC."""
    return datetime.fromtimestamp(slot / 1_000_000, tz=timezone.utc).isoformat()


def slot_key(entry: str, schedule_version: str, slot: str) -> SlotKey:
    """Return the key of one slot of a schedule's entry."""
    name = entry if len(entry.encode(errors="surrogatepass")) <= _LONGEST_ENTRY else derived_id("entry", entry)
    return SlotKey(f"beat:{name}:{schedule_version}:{slot}")


def slot_id(key: SlotKey) -> str:
    """Return the task id of a slot, the same whoever fires it."""
    return derived_id("slot", key)


# --- what travels in the message


@dataclass(frozen=True, slots=True)
class Identity:
    """What a message says about its job. ``life`` 0: it carries none, it was sent from elsewhere."""

    job: Job
    task_id: str
    fingerprint: str = ""
    life: int = 0
    nesting: int = 0

    def to_header(self) -> dict[str, Any]:
        """Return the value of the ``reliable`` header; what is usual is left out."""
        header: dict[str, Any] = {"i": self.task_id, "s": self.job.stamp, "l": self.life}
        if self.job.kind != "own":
            header["k"] = self.job.kind
        if self.job.key != own_key(self.task_id, self.nesting):
            header["key"] = self.job.key
        if self.fingerprint:
            header["f"] = self.fingerprint
        if self.nesting:
            header["n"] = self.nesting
        return header


def own_key(task_id: str, nesting: int) -> str:
    """Return the key of a submission that is its own identity; `self.replace` publishes under its parent's id."""
    return f"{task_id}:{nesting}" if nesting else task_id


def identity_of(header: object, *, task_id: str, nesting: int = 0) -> Identity | None:
    """Read a ``reliable`` header. None for a missing one, a foreign one, and one inherited from another message."""
    if not isinstance(header, dict) or header.get("i") != task_id or header.get("n", 0) != nesting:
        return None
    kind = cast("Kind", header.get("k", "own"))
    job = Job(header.get("key") or own_key(task_id, nesting), kind, int(header.get("s") or 0))
    return Identity(job, task_id, header.get("f", ""), int(header.get("l") or 0), nesting)


def lasting(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without what belongs to one delivery alone: Celery (5.7) takes it for the message's own."""
    return {name: value for name, value in headers.items() if name not in (TOKEN, MOMENT, SIGNATURE_HEADER)}


def owner_of(token: str) -> str:
    """Return whose delivery has this token: it begins with its owner's (`Runtime.new_token`); "" for any other."""
    return token.rpartition(".")[0]
