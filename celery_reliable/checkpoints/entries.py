"""Write what is saved as bytes, in place or aside.

An entry is the JSON of its value, or ``!``, a JSON head and, after a line break, the value's JSON if that is not kept
aside. The head has ``v`` (version), ``at`` (positions of loops), ``b`` (path, SHA-256 and size of the blob) and ``n``
(no value at all), each only where it is not the usual one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_reliable.blobs import BlobRef, Blobs
from celery_reliable.errors import ConfigurationError

FIRST_VERSION = 1
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Position:
    """How far a loop is: ``count`` items are done, ``mark`` is the last one's."""

    name: str
    count: int = 0
    mark: Any = None  # any JSON value: a key made by the project
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A state and the positions of the loops around it. ``text`` and ``blob`` None: no state was saved yet."""

    text: bytes | None = None
    version: int = FIRST_VERSION
    positions: tuple[Position, ...] = ()
    blob: BlobRef | None = None

    @property
    def has_state(self) -> bool:
        """Whether a state was saved."""
        return self.text is not None or self.blob is not None

    @property
    def has_content(self) -> bool:
        """Whether anything was saved."""
        return self.has_state or bool(self.positions)

    def to_bytes(self) -> bytes:
        """Encode; `from_bytes` gives an equal entry."""
        head: dict[str, Any] = {}
        if self.version != FIRST_VERSION:
            head["v"] = self.version
        if self.positions:
            head["at"] = [[one.name, one.count, one.mark, one.ended] for one in self.positions]
        if self.blob is not None:
            head["b"] = [self.blob.path, self.blob.sha256, self.blob.size]
        elif self.text is None:
            head["n"] = 1
        text = self.text or b""
        return b"!%s\n%s" % (json.dumps(head, separators=(",", ":")).encode(), text) if head else text

    @classmethod
    def from_bytes(cls, raw: bytes) -> Entry:
        """Decode what `to_bytes` made."""
        if raw[:1] != b"!":
            return cls(raw)
        head_text, _, text = raw[1:].partition(b"\n")
        head = json.loads(head_text)
        positions = tuple(Position(*one) for one in head.get("at", ()))
        blob = BlobRef(*head["b"]) if "b" in head else None
        return cls(None if blob or "n" in head else text, head.get("v", FIRST_VERSION), positions, blob)


@dataclass(frozen=True, slots=True)
class Room:
    """Where values go: up to ``limit`` bytes into the store, above it aside, for ``ttl`` seconds at least."""

    limit: int
    blobs: Blobs | None
    ttl: float


def put_aside(text: bytes, *, what: str, kind: str, room: Room) -> BlobRef | None:
    """Keep a value aside if it is too large for the store; None: it is not. Raises `ConfigurationError`, `Transient`."""
    if len(text) <= room.limit:
        return None
    if room.blobs is None:
        msg = (
            f"{what}: expected at most {room.limit} bytes of JSON (claim_check_threshold), found {len(text)}; keep less, such "
            "as a position instead of the data, or set reliable_blob_url to a folder for large ones"
        )
        raise ConfigurationError(msg)
    return room.blobs.put(text, kind=kind, ttl=room.ttl)


def taken_back(ref: BlobRef, *, room: Room) -> bytes:
    """Return a value that was put aside. Raises `BlobLost`, `Transient`, `ConfigurationError`."""
    if room.blobs is None:
        msg = f"blob {ref.path}: expected the reliable_blob_url with which it was written, found none; set it"
        raise ConfigurationError(msg)
    return room.blobs.get(ref)


def kept_aside(entries: Iterable[bytes]) -> list[BlobRef]:
    """Return the blobs to which entries refer."""
    return [blob for raw in entries if raw[:1] == b"!" and (blob := Entry.from_bytes(raw).blob) is not None]


# --- JSON


def encoded(value: Any, *, what: str) -> bytes:
    """Return a value as JSON. Raises `ConfigurationError` that names what is not plain data, and where it is."""
    found = _foreign(value, path="", depth=0)
    if found:
        msg = f"{what}: expected plain data, found {found}; keep numbers, texts, lists, and dicts with texts as keys"
        raise ConfigurationError(msg)
    return json.dumps(value, separators=(",", ":")).encode()


def _foreign(value: Any, *, path: str, depth: int) -> str:
    """Name the first thing that JSON cannot carry, with its place; "" if there is none."""
    if value is None or isinstance(value, str | int | float):
        return ""
    place = path or "the whole of it"
    if depth > _DEEPEST:
        return f"more than {_DEEPEST} levels at {place[:200]}"
    if isinstance(value, list | tuple):
        return _first(_foreign(item, path=f"{path}[{index}]", depth=depth + 1) for index, item in enumerate(value))
    if isinstance(value, dict):
        return _foreign_in(value, path=path, depth=depth)
    return f"{type(value).__qualname__} at {place}"


def _foreign_in(value: Mapping[Any, Any], *, path: str, depth: int) -> str:
    for name in value:
        if not isinstance(name, str):
            return f"a key of type {type(name).__qualname__} ({name!r}) at {path or 'the whole of it'}"
    return _first(
        _foreign(item, path=f"{path}.{name}" if path else name, depth=depth + 1) for name, item in value.items()
    )


def _first(found: Iterable[str]) -> str:
    return next(filter(None, found), "")
