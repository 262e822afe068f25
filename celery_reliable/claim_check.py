"""Keep large arguments aside: the message says where they are, and has none of its own.

A message may have arguments besides: the result of the step before. They come first by position, and win by name, as
Celery puts them before the arguments of a signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import serialization

from celery_reliable.blobs import BlobRef
from celery_reliable.errors import BlobLost, ConfigurationError
from celery_reliable.payloads import ARGUMENTS_HEADER

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.runtime import Runtime

_REMEMBERED = 64  # jobs: a canvas has few bodies
_MEMBERS = ("tasks", "header", "body")
_OPTIONS = ("link", "link_error", "chain", "chord")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Aside:
    """Arguments that are kept aside. ``owner`` is the only job that needs them, "" where that is not known."""

    ref: BlobRef
    content_type: str
    content_encoding: str
    owner: str = ""

    def to_header(self) -> list[Any]:
        """Return the value of the header, some 200 bytes."""
        ref = self.ref
        return [ref.path, ref.sha256, ref.size, self.content_type, self.content_encoding, self.owner]

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Aside | None:
        """Return what headers say; None without any. Raises `BlobLost` for what cannot be read."""
        found = (headers or {}).get(ARGUMENTS_HEADER)
        if found is None:
            return None
        try:
            path, sha256, size, content_type, encoding, owner = found
            return cls(BlobRef(str(path), str(sha256), int(size)), str(content_type), str(encoding), str(owner))
        except (TypeError, ValueError) as exc:
            msg = f"header {ARGUMENTS_HEADER}: expected where the arguments are kept, found {type(found).__name__} ({exc})"
            raise BlobLost(msg) from exc


def kept(
    arguments: Arguments,
    *,
    limit: int,
    serializer: str,
    ttl: float,
    owner: str,
    runtime: Runtime,
    again: MutableMapping[Any, Aside] | None = None,
) -> Aside | None:
    """Keep arguments aside if they are larger than ``limit``; None: they are not, or there is no folder.

    ``again`` remembers what one job was given: every member of a chord carries the same body. Raises what the serializer
    raises, and `Transient` when the folder cannot be reached.
    """
    if runtime.blobs is None:
        return None
    content_type, encoding, body = serialization.dumps(arguments, serializer)
    raw = body.encode() if isinstance(body, str) else bytes(body)
    if len(raw) <= limit:
        return None
    name = owner, hashlib.sha256(raw).digest()
    known = again.get(name) if again is not None and owner else None
    made = known or Aside(runtime.blobs.put(raw, kind="arguments", ttl=ttl), content_type, encoding, owner)
    if again is not None and owner:
        _remember(again, name, made)
    return made


def _remember(again: MutableMapping[Any, Aside], name: Any, made: Aside) -> None:
    if len(again) >= _REMEMBERED:
        again.clear()
    again[name] = made


def whole(aside: Aside, args: Any, kwargs: Any, *, app: Celery, runtime: Runtime) -> Arguments:
    """Return the arguments of a message with those that are kept aside.

    Raises `BlobLost`, `Transient`, `ConfigurationError` without a folder, and what kombu raises for content that may not be
    accepted.
    """
    if runtime.blobs is None:
        msg = f"blob {aside.ref.path}: expected the reliable_blob_url with which it was written, found none; set it"
        raise ConfigurationError(msg)
    accept = serialization.prepare_accept_content(app.conf.accept_content)
    raw = runtime.blobs.get(aside.ref)
    found = serialization.loads(raw, aside.content_type, aside.content_encoding, accept=accept)
    try:
        more, named = found
        merged = (*args, *more), {**named, **kwargs}
    except (TypeError, ValueError) as exc:
        msg = f"blob {aside.ref.path}: expected arguments, found something else ({exc}); submit the work again"
        raise BlobLost(msg) from exc
    return merged


def changed_signatures(
    found: Any, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:  # Any: as Celery has them
    """Return signatures, and all that they hold, changed; those that were given stay as they are."""
    if isinstance(found, list | tuple):
        return [changed_signatures(one, change) for one in found]
    if not isinstance(found, Mapping) or not isinstance(found.get("task"), str):
        return found
    copied = dict(found)
    for holder, names in (("kwargs", _MEMBERS), ("options", _OPTIONS)):
        inner = copied.get(holder)
        if isinstance(inner, Mapping):
            changed = {name: changed_signatures(inner[name], change) for name in names if inner.get(name)}
            copied[holder] = {**inner, **changed}
    return change(copied)
