"""Decide, before Celery looks at it, whether a message can run in this worker.

Celery finds most of what follows too late: an exception leaves the consumer and ends the worker, or the message is
rejected, which is deletion on Redis. `inspect` is a pure function: a message's headers and decoded body in, None or a
`Refusal` out. It never raises, whatever the message holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from celery_reliable import internals, keys
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.signing import refused
from celery_reliable.stores.base import Kind

RefusalReason = Literal["unregistered", "incompatible", "undecodable", "invalid", "rejected"]

Knows = Callable[[str], int | None]
"""The payload version of a task that this worker has registered, None for every other name."""

_PARTS = 3  # args, kwargs, embed
_LONGEST = 512
_KINDS: Final = frozenset(get_args(Kind))
_LARGEST = 2**53
_COUNTS: Final = ("retries", "replaced_task_nesting")
_TEXTS: Final = ("root_id", "parent_id", "group", "shadow", "origin")
_NO_LIMITS: Final = (None, [None, None])
_NONE: Final = type(None)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as far as it could be read: its headers, its decoded body, and why the body could not be decoded."""

    headers: Any
    body: Any
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message cannot run here. ``task`` and ``task_id`` are "" where the message names none that can be used."""

    reason: RefusalReason
    why: str
    task: str = ""
    task_id: str = ""
    version: int = 0

    @property
    def parks(self) -> bool:
        """Whether another worker may know what this one does not."""
        return self.reason in ("unregistered", "incompatible")


def inspect(incoming: Incoming, *, knows: Knows) -> Refusal | None:
    """Return why a message cannot run in this worker, None when it can.

    A message of which nothing but the task is unknown is ``unregistered``; one that names a newer payload version than
    the task has here is ``incompatible``. Both may run elsewhere. Everything else can run nowhere.
    """
    if not incoming.failure and _is_ordinary(incoming) and knows(incoming.headers["task"]):
        return None
    fields = fields_of(incoming)
    task, task_id = _name(fields.get("task")), _name(fields.get("id"))
    if incoming.failure:
        return Refusal("undecodable", incoming.failure, task, task_id)
    problem = next(_problems(incoming, fields), "")
    if problem:
        return Refusal("invalid", problem, task, task_id)
    version, known = fields.get(VERSION_HEADER) or 1, knows(task)
    if known is None:
        return Refusal("unregistered", f"no task {task!r} is registered in this worker", task, task_id, version)
    if version > known:
        why = f"the payload has version {version}, this worker's {task} knows {known}"
        return Refusal("incompatible", why, task, task_id, version)
    return None


def unsigned(headers: Any, fault: str) -> Refusal:
    """Refuse a message whose signature is missing or wrong. What it says of itself is shown to people, and not believed."""
    said = headers if isinstance(headers, Mapping) else {}
    why = str(refused("a message that names itself a call of " + (_name(said.get("task")) or "no task"), fault))
    return Refusal("rejected", why, _name(said.get("task")), _name(said.get("id")))


def fields_of(incoming: Incoming) -> Mapping[Any, Any]:
    """Return where a message names task and id: its headers, or its body in Celery's first protocol."""
    headers = incoming.headers if isinstance(incoming.headers, Mapping) else {}
    if "task" in headers or not isinstance(incoming.body, Mapping):
        return headers
    return {**incoming.body, **{name: headers[name] for name in (VERSION_HEADER, keys.HEADER) if name in headers}}


def _name(value: object) -> str:
    """Return a task's name or id, "" for what cannot be one."""
    return value if isinstance(value, str) and _is_encodable(value) else ""


def identity_in(fields: Mapping[Any, Any]) -> keys.Identity | None:
    """Return what a message says about its job; None for one without our header, or with a broken one."""
    if not _name(fields.get("id")) or not _is_count(fields.get("replaced_task_nesting") or 0):
        return None
    if next(_wrong_identity(fields), ""):
        return None
    nesting = int(fields.get("replaced_task_nesting") or 0)
    return keys.identity_of(fields.get(keys.HEADER), task_id=fields.get("id", ""), nesting=nesting)


def parts_of(body: object) -> tuple[Any, Any, Any] | None:
    """Return args, kwargs and embed of a body of either protocol, None for every other body."""
    if isinstance(body, Mapping):
        return body.get("args", ()), body.get("kwargs", {}), body
    if isinstance(body, list | tuple) and len(body) == _PARTS:
        return body[0], body[1], body[2]
    return None


def canvas_in(embed: object) -> dict[str, Any]:
    """Return what is to be told of a message's end, as far as it is well-formed: chord, chain and errbacks."""
    found = embed if isinstance(embed, Mapping) else {}
    names = ("errbacks", "chain", "chord")
    return {name: found[name] for name in names if found.get(name) and not next(_wrong_embed({name: found[name]}), "")}


# --- what no worker can run


def _is_ordinary(incoming: Incoming) -> bool:
    """Tell, in a few microseconds, that `_problems` would find none: what nearly every message is."""
    headers, body = incoming.headers, incoming.body
    if type(headers) is not dict or type(body) is not list or len(body) != _PARTS:
        return False
    if not _are_ordinary(tuple(headers), tuple(map(type, headers.values()))):
        return False
    args, kwargs, embed = body
    return (
        _is_plain(headers["task"])
        and _is_plain(headers["id"])
        and headers.get("timelimit") in _NO_LIMITS
        and 0 <= headers.get("retries", 0) < _LARGEST
        and 0 <= headers.get("replaced_task_nesting", 0) < _LARGEST
        and type(args) is list
        and type(kwargs) is dict
        and (not kwargs or all(type(name) is str for name in kwargs))
        and type(embed) is dict
        and embed.get("callbacks") is embed.get("errbacks") is embed.get("chain") is embed.get("chord") is None
        and _is_ordinary_identity(headers.get(keys.HEADER), headers["id"])
    )


@lru_cache(maxsize=64)
def _are_ordinary(names: tuple[Any, ...], types: tuple[type, ...]) -> bool:
    """Look at what the headers of one producer's messages have in common: their names, and the types of the values."""
    of = dict(zip(names, types, strict=True)).get
    return (
        of("task") is of("id") is str
        and of("eta", _NONE) is of("expires", _NONE) is of(VERSION_HEADER, _NONE) is _NONE
        and all(of(name, int) is int for name in _COUNTS)
        and all(of(name, str) in (str, _NONE) for name in _TEXTS)
        and of("stamped_headers", list) in (list, _NONE)
        and of("stamps", dict) is dict
    )


def _is_ordinary_identity(header: object, task_id: object) -> bool:
    if header is None:
        return True
    if type(header) is not dict or header.get("i") != task_id or header.get("k", "own") not in _KINDS:
        return False
    of = header.get
    return (
        type(of("s", 0)) is type(of("l", 0)) is type(of("n", 0)) is int
        and 0 <= of("s", 0) < _LARGEST
        and 0 <= of("l", 0) < _LARGEST
        and 0 <= of("n", 0) < _LARGEST
        and _is_plain(of("key", "k"))
        and (of("f", "") == "" or _is_plain(header["f"]))
    )


def _is_plain(text: object) -> bool:
    return type(text) is str and 0 < len(text) <= _LONGEST and text.isascii()


def _problems(incoming: Incoming, fields: Mapping[Any, Any]) -> Iterator[str]:
    if not isinstance(incoming.headers, Mapping):
        yield f"headers: expected a mapping, found {_shown(incoming.headers)}"
    if "task" not in fields:
        yield "no task is named: this is not a Celery message"
    if not _name(fields.get("task")):
        yield f"task: expected a text of 1 to {_LONGEST} bytes, found {_shown(fields.get('task'))}"
    if not _name(fields.get("id")):
        yield f"id: expected a text of 1 to {_LONGEST} bytes, found {_shown(fields.get('id'))}"
    yield from _wrong_headers(fields)
    yield from _wrong_identity(fields)
    yield from _wrong_body(incoming.body, in_body=fields is not incoming.headers)


def _wrong_headers(fields: Mapping[Any, Any]) -> Iterator[str]:
    for name in ("retries", "replaced_task_nesting", VERSION_HEADER):
        if not _is_count(fields.get(name) or 0):
            yield f"{name}: expected a whole number, found {_shown(fields[name])}"
    if not _is_timelimit(fields.get("timelimit")):
        yield f"timelimit: expected two numbers, found {_shown(fields['timelimit'])}"
    for name in ("eta", "expires"):
        if fields.get(name) is not None and not internals.is_moment(fields[name]):
            yield f"{name}: expected an ISO 8601 time, found {_shown(fields[name])}"
    for name in _TEXTS:
        if not isinstance(fields.get(name), str | None):
            yield f"{name}: expected a text, found {_shown(fields[name])}"
    for name, kind, expected in (("stamped_headers", list | tuple, "a list"), ("stamps", Mapping, "a mapping")):
        if not isinstance(fields.get(name), kind | None):
            yield f"{name}: expected {expected}, found {_shown(fields[name])}"


def _wrong_identity(fields: Mapping[Any, Any]) -> Iterator[str]:
    """Look at our own header; a foreign or inherited one is none, as `keys.identity_of` has it."""
    header = fields.get(keys.HEADER)
    if not isinstance(header, dict) or header.get("i") != fields.get("id"):
        return
    texts = (header.get("key", "k"), header.get("f", ""))
    if not all(isinstance(text, str) and _is_encodable(text) for text in texts) or not texts[0]:
        yield f"{keys.HEADER}: key and fingerprint: expected texts, found {_shown(texts)}"
    if header.get("k", "own") not in _KINDS:
        yield f"{keys.HEADER}: kind: expected one of {', '.join(sorted(_KINDS))}, found {_shown(header['k'])}"
    for name in ("s", "l", "n"):
        if not _is_count(header.get(name) or 0):
            yield f"{keys.HEADER}: {name}: expected a whole number, found {_shown(header[name])}"


def _wrong_body(body: object, *, in_body: bool) -> Iterator[str]:
    parts = parts_of(body)
    if parts is None or (isinstance(body, Mapping) and "args" not in body and not in_body):
        yield f"body: expected [args, kwargs, embed], found {_shown(body)}"
        return
    args, kwargs, embed = parts
    if not isinstance(args, list | tuple):
        yield f"args: expected a list, found {_shown(args)}"
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        yield f"kwargs: expected a mapping of names, found {_shown(kwargs)}"
    yield from _wrong_embed(embed)


def _wrong_embed(embed: object) -> Iterator[str]:
    if not isinstance(embed, Mapping | None):
        yield f"embed: expected a mapping, found {_shown(embed)}"
        return
    for name in ("callbacks", "errbacks", "chain"):
        members = (embed or {}).get(name)
        if not isinstance(members, list | tuple | None) or not all(map(_is_signature, members or ())):
            yield f"{name}: expected a list of signatures, found {_shown(members)}"
    chord = (embed or {}).get("chord")
    if chord is not None and not _is_signature(chord):
        yield f"chord: expected a signature, found {_shown(chord)}"


def _is_signature(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("task"), str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_timelimit(value: object) -> bool:
    if value is None:
        return True
    numbers = all(isinstance(one, int | float | None) for one in value) if isinstance(value, list | tuple) else False
    return numbers and len(value) == 2  # type: ignore[arg-type]  # noqa: PLR2004  # hard and soft


def _is_encodable(text: str) -> bool:
    try:
        return len(text.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _shown(value: object) -> str:
    """Name a type; never the value, which may be an argument of the call."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return "nothing" if value is None else type(value).__name__
