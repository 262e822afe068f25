"""Carry a call, or a message that is none, as it came, so that it can be published again, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION_HEADER = "reliable_payload_version"
"""Says which version of its task's payload a message has; not sent for version 1."""

ARGUMENTS_HEADER = "reliable_arguments"
"""Says where the arguments are kept, in a message that is not to carry them."""

PARKED_HEADER = "reliable_parked"
"""Tells in a message that is back in its queue since when and how often it was parked. Taken out before it runs."""

SIGNATURE_HEADER = "reliable_signature"
"""Proves that a holder of ``reliable_signing_keys`` has made the message as it is."""

_OF_THE_JOURNEY = ("redelivered", PARKED_HEADER)  # headers that change with each delivery, besides brokers' own "x-..."
_PLAIN_BELOW = 1024  # bytes: compressing less costs a producer 30 microseconds and saves little of what soon goes
_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Envelope:
    """One call: the task, its serialised arguments and the options of its ``apply_async``.

    ``body`` is ``(args, kwargs)`` as the serializer named by ``content_type`` wrote it, base64 when it is binary
    (``content_encoding`` "binary"). ``options`` is JSON-able: queue, routing_key, exchange, priority, headers, link,
    link_error, chain, chord, group_id, root_id, parent_id, time limits, and ``eta`` and ``expires`` as ISO texts. ``seal`` proves that a holder of ``reliable_signing_keys`` wrote all
    the rest; "" without such keys.
    """

    task: str
    task_id: str
    body: str
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    options: Mapping[str, Any] = field(default_factory=dict)
    seal: str = ""

    def to_bytes(self) -> bytes:
        """Encode as JSON, compressed (zlib level 1) when that pays."""
        fields = [self.task, self.task_id, self.body, self.content_type, self.content_encoding, dict(self.options)]
        if self.seal:
            fields.append(self.seal)
        text = _compact(fields).encode()
        return text if len(text) < _PLAIN_BELOW else zlib.compress(text, 1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Envelope:
        """Decode what `to_bytes` made. Raises ValueError on anything else."""
        try:
            text = raw if raw[:1] == b"[" else zlib.decompress(raw)
            task, task_id, body, content_type, content_encoding, options, *seal = json.loads(text)
        except (zlib.error, ValueError, TypeError) as exc:
            msg = f"not an envelope: {raw[:40]!r}"
            raise ValueError(msg) from exc
        return cls(task, task_id, body, content_type, content_encoding, options, *seal[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """One message as it lay in its queue, whoever sent it, with all that is needed to put it back there.

    ``body`` is base64. ``headers`` and ``properties`` are JSON-able; values that JSON does not know are tagged as the
    broker library's own JSON tags them. ``item``: the body is a whole item of a queue that is no message at all, so
    that there is nothing to put back.
    """

    queue: str
    body: str
    content_type: str = ""
    content_encoding: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    item: bool = False

    @property
    def content(self) -> bytes:
        """The bytes of the body."""
        return base64.b64decode(self.body)

    @property
    def digest(self) -> str:
        """The same for the same message when it comes again; other messages have others."""
        said = {name: value for name, value in self.headers.items() if name not in _OF_THE_JOURNEY}
        said = {name: value for name, value in said.items() if not name.startswith("x-")}
        text = json.dumps([self.queue, self.body, self.content_type, said], sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
