"""Sign messages and kept calls with a shared secret, and tell which ones a holder of it has made.

The signature of a message covers its task, its id, what decides whether and when it runs, all of our headers, and a digest
of its body. What brokers and tracing tools write into a message on its way is not covered. The seal of an `Envelope` covers
all of it. Both are HMAC-SHA256; the first key signs, every key verifies, so that keys can be exchanged in a running fleet.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.errors import SignatureRefused
from celery_reliable.payloads import PARKED_HEADER, SIGNATURE_HEADER

if TYPE_CHECKING:
    from celery_reliable.payloads import Envelope, RawMessage

_OURS: Final = "reliable"
_COVERED: Final = frozenset(
    {
        "task",
        "id",
        "root_id",
        "parent_id",
        "group",
        "group_index",
        "retries",
        "eta",
        "expires",
        "timelimit",
        "ignore_result",
        "replaced_task_nesting",
    }
)
_NOT_COVERED: Final = frozenset({SIGNATURE_HEADER, PARKED_HEADER})
_MESSAGE: Final = b"celery_reliable message 1\0"
_ENVELOPE: Final = b"celery_reliable envelope 1\0"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode

REMEDY: Final = (
    "give its sender reliable_signing_keys (and install(app), where it binds no ReliableTask), or replay its letter with "
    "--sign if you know where it comes from"
)


class Signer:
    """The keys of one app. ``enforces``: what they did not sign is refused, not merely told of."""

    __slots__ = ("_keys", "enforces")

    def __init__(self, keys: Sequence[bytes], *, enforces: bool = True) -> None:
        """Take the keys; the first one signs."""
        self._keys, self.enforces = tuple(keys), enforces

    def __repr__(self) -> str:
        """Say how many keys there are, and none of them."""
        return f"<Signer: {len(self._keys)} keys, {'enforce' if self.enforces else 'warn'}>"

    def __reduce__(self) -> Any:
        """Refuse to be pickled: keys come from the settings of each process."""
        msg = "a Signer holds keys and is not pickled"
        raise TypeError(msg)

    # --- messages

    def sign(self, headers: Mapping[str, Any], body: str | bytes, content: Sequence[object]) -> str:
        """Return the signature of a message; ``content`` is its content type and encoding."""
        return self._made(_MESSAGE, _message(headers, body, content))

    def fault(self, headers: Any, body: Any, content: Sequence[object]) -> str:
        """Say why a message is not one that a holder of our keys made; "" when it is. Never raises."""
        given = headers.get(SIGNATURE_HEADER) if isinstance(headers, Mapping) else None
        if not isinstance(given, str):
            return "it has no signature"
        try:
            text = _message(headers, body, content)
        except (TypeError, ValueError, RecursionError, UnicodeError) as exc:
            return f"what its signature covers cannot be read ({type(exc).__name__})"
        if self._holds(_MESSAGE, text, given):
            return ""
        return "no key of reliable_signing_keys has made its signature, or it was changed after that"

    def fault_of_raw(self, raw: RawMessage) -> str:
        """Do as `fault` with a message as it lay in its queue."""
        return self.fault(raw.headers, raw.content, (raw.content_type, raw.content_encoding))

    # --- kept calls

    def sealed(self, envelope: Envelope) -> Envelope:
        """Return the envelope with our seal."""
        return replace(envelope, seal=self._made(_ENVELOPE, _call(envelope)))

    def is_sealed(self, envelope: Envelope) -> bool:
        """Tell whether a holder of our keys has sealed an envelope as it is now."""
        return self._holds(_ENVELOPE, _call(envelope), envelope.seal)

    # --- parts

    def _made(self, purpose: bytes, text: bytes) -> str:
        return _mac(self._keys[0], purpose, text)

    def _holds(self, purpose: bytes, text: bytes, given: str) -> bool:
        if not given.isascii():
            return False
        return any(hmac.compare_digest(_mac(key, purpose, text), given) for key in self._keys)


def refused(what: str, why: str) -> SignatureRefused:
    """Return the error of a message or call that is refused."""
    return SignatureRefused(f"{what} was refused: {why}; {REMEDY}")


def _mac(key: bytes, purpose: bytes, text: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(key, purpose + text, "sha256")).decode()


def _message(headers: Mapping[str, Any], body: Any, content: Sequence[object]) -> bytes:
    """Return what a signature covers. None stands for a header that is missing: brokers may drop it."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b"")
    said = {name: value for name, value in headers.items() if value is not None and _is_covered(name)}
    kind = [str(one or "") for one in content]
    return _canonical([said, kind, hashlib.sha256(raw).hexdigest()]).encode("utf-8", "surrogatepass")


def _is_covered(name: object) -> bool:
    return name in _COVERED or (isinstance(name, str) and name.startswith(_OURS) and name not in _NOT_COVERED)


def _call(envelope: Envelope) -> bytes:
    parts = [
        envelope.task,
        envelope.task_id,
        envelope.body,
        envelope.content_type,
        envelope.content_encoding,
        dict(envelope.options),
    ]
    return _canonical(parts).encode("utf-8", "surrogatepass")
