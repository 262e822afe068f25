"""Hold one dead letter: the call, exact, and why it will not run again by itself."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, cast, get_args

from celery_reliable.dead_letters import stack
from celery_reliable.payloads import ARGUMENTS_HEADER, Envelope, RawMessage
from celery_reliable.stores.base import Job, Kind

Reason = Literal[
    "permanent",
    "exhausted",
    "poison",
    "time_limit",
    "expired",
    "unregistered",
    "undecodable",
    "invalid",
    "incompatible",
    "mismatch",
    "rejected",
    "lost",
    "stale",
]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

Status = Literal["dead", "replaying", "replayed"]
"""``replaying``: a replay was begun in the store and its publish is not known to have happened."""

HEADER: Final = "reliable"
LOOPS_HEADER: Final = "reliable_replays"
"""How often the job of a message was replayed: a header of its own, which retries and letters keep as it is."""
JSON: Final = "application/json"

_FORMAT = 1
_LABEL_LIMIT = 500  # characters; a letter with more has none, and is looked for one by one
_MESSAGE_PARTS = 2  # (args, kwargs); Celery's own bodies have a third part, which is kept as it is


@dataclass(frozen=True, slots=True)
class Worker:
    """Where the call failed."""

    host: str = ""
    pid: int = 0
    celery: str = ""
    version: str = ""
    release: str = ""
    """Of the project's own code, as ``reliable_release`` says."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: by whom, when (unix seconds, the store's clock), under which id, whether it was published, in which run."""

    who: str
    when: float
    new_id: str
    edited: bool = False
    published: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One call that will not run again by itself.

    ``envelope`` is the call, exact and replayable; None when the message could not be read: then ``raw`` is the message. ``key``, ``kind``,
    ``stamp``, ``life`` and ``fingerprint`` are those of the job ("" when it had no key). ``attempts`` counts verdicts,
    ``deliveries`` claims without one. ``first_failure`` and ``last_failure`` are unix seconds. ``error_fingerprint``
    is the same for the same error in the same place. ``replays`` tells what was done with this letter, ``loops`` how
    often this job had been replayed before it died again. ``original`` is the call before it was edited.
    ``evidence`` are JSON texts about processes seen to die, ``blobs`` references to parts kept elsewhere.
    """

    id: str
    task: str
    task_id: str
    reason: Reason
    queue: str = ""
    envelope: Envelope | None = None
    key: str = ""
    kind: Kind = "own"
    stamp: int = 0
    life: int = 0
    fingerprint: str = ""
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    error_fingerprint: str = ""
    attempts: int = 0
    deliveries: int = 0
    first_failure: float = 0.0
    last_failure: float = 0.0
    worker: Worker = Worker()
    tenant: str | None = None
    replays: tuple[Replay, ...] = ()
    loops: int = 0
    evidence: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    original: Envelope | None = None
    raw: RawMessage | None = None

    @classmethod
    def of(
        cls,
        exc: BaseException | None,
        *,
        reason: Reason,
        envelope: Envelope | None,
        now: float,
        job: Job | None = None,
        life: int = 0,
        fingerprint: str = "",
        letter_id: str = "",
        task: str = "",
        task_id: str = "",
        queue: str = "",
        message: str = "",
        attempts: int = 0,
        deliveries: int = 0,
        first_failure: float | None = None,
        worker: Worker = Worker(),
        tenant: str | None = None,
        evidence: Iterable[str | bytes] = (),
        blobs: Iterable[str] = (),
        raw: RawMessage | None = None,
    ) -> DeadLetter:
        """Build the letter of a failed call, its texts bounded.

        ``exc`` is None where nothing was raised (``poison``, ``expired``, ...); say why in ``message``. Task, id and
        queue come from the envelope unless given. The id of the letter follows from key and life (or the task id), so
        that burying twice is one letter.
        """
        task, task_id = task or (envelope.task if envelope else ""), task_id or (envelope.task_id if envelope else "")
        key = job.key if job else ""
        return cls(
            id=letter_id or letter_id_of(key or task_id, life=life),
            task=task,
            task_id=task_id,
            reason=reason,
            queue=queue or _queue_of(envelope) or (raw.queue if raw else ""),
            envelope=envelope,
            key=key,
            kind=job.kind if job else "own",
            stamp=job.stamp if job else 0,
            life=life,
            fingerprint=fingerprint,
            error_type=stack.type_of(exc) if exc else "",
            error_message=stack.message_of(exc) if exc else stack.bounded(message, limit=stack.MESSAGE_LIMIT),
            traceback=stack.traceback_of(exc) if exc else "",
            error_fingerprint=stack.fingerprint_of(exc) if exc else stack.digest(reason, task),
            attempts=attempts,
            deliveries=deliveries,
            first_failure=now if first_failure is None else first_failure,
            last_failure=now,
            worker=worker,
            tenant=tenant,
            loops=_loops(envelope, raw),
            evidence=tuple(part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in evidence),
            blobs=(*blobs, *_kept_aside(envelope)),
            raw=raw,
        )

    @property
    def job(self) -> Job | None:
        """The key this letter holds dead; None for a letter without one."""
        return Job(self.key, self.kind, self.stamp) if self.key else None

    @property
    def status(self) -> Status:
        """``dead``, ``replaying`` or ``replayed``."""
        if not self.replays:
            return "dead"
        return "replayed" if self.replays[-1].published else "replaying"

    @property
    def label(self) -> str:
        """What filters look at, as one text: a store finds the letters that have it without a look at the others."""
        parts = (
            self.status,
            self.task,
            self.reason,
            self.error_type,
            self.queue,
            self.error_fingerprint,
            self.tenant,
        )
        text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
        return text if len(text) <= _LABEL_LIMIT else ""

    def with_replay(self, replay_: Replay) -> DeadLetter:
        """Return a copy whose last entry for that new id is ``replay_``."""
        others = tuple(entry for entry in self.replays if entry.new_id != replay_.new_id)
        return replace(self, replays=(*others, replay_))

    def arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Return (args, kwargs) as plain JSON values; None when the body is not JSON of that shape."""
        return arguments_of(self.envelope)

    def call(self) -> str:
        """Show the arguments to people: ``(12, currency="EUR")``, or ``<binary 123 bytes TYPE>``."""
        found = self.arguments()
        if found is None:
            return raw_text(self.raw) if self.raw else binary_text(self.envelope)
        args, kwargs = found
        named = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in kwargs.items())
        return f"({', '.join([*(json.dumps(value, ensure_ascii=False) for value in args), *named])})"

    def facts(self) -> dict[str, Any]:
        """Return what the events about this letter tell."""
        return {
            "reason": self.reason,
            "error": self.error_type,
            "letter_id": self.id,
            "attempts": self.attempts,
            "deliveries": self.deliveries,
            "fingerprint": self.error_fingerprint,
        }

    def to_bytes(self) -> bytes:
        """Encode as JSON text, readable in redis-cli. Never fails: what is not JSON is kept as its text."""
        return json.dumps({"v": _FORMAT, **_shallow(self)}, separators=(",", ":"), default=_plain).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> DeadLetter:
        """Decode what `to_bytes` of this or another version made; fields it does not know are left out.

        Raises ValueError on anything else.
        """
        try:
            found = json.loads(raw)
            known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
            return cls(**{name: _READERS.get(name, _same)(value) for name, value in known.items()})
        except (TypeError, AttributeError, UnicodeDecodeError) as exc:
            msg = f"not a dead letter: {raw[:60]!r}"
            raise ValueError(msg) from exc

    @classmethod
    def read(cls, raw: bytes) -> DeadLetter | None:
        """Decode as `from_bytes` does; None for anything else."""
        try:
            return cls.from_bytes(raw)
        except ValueError:
            return None

    @classmethod
    def unreadable(cls, letter_id: str, *, failure: str) -> DeadLetter:
        """Stand for a stored letter that cannot be decoded, so that it can be listed and discarded."""
        return cls(
            id=letter_id,
            task="",
            task_id="",
            reason="undecodable",
            error_type="ValueError",
            error_message=stack.bounded(failure, limit=stack.MESSAGE_LIMIT),
            error_fingerprint=stack.digest("unreadable letter"),
        )


def _shallow(record: Any) -> dict[str, Any]:  # Any: one of the dataclasses here
    """Return the fields of a record; `dataclasses.asdict` copies them deeply, at ten times the price."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _plain(value: Any) -> Any:
    return _shallow(value) if is_dataclass(value) else str(value)


def letter_id_of(name: str, *, life: int = 0) -> str:
    """Derive a letter's id, 16 characters, from its key (or task or message id) and life: twice is one letter."""
    return hashlib.blake2b(f"{name}\0{life}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def arguments_of(envelope: Envelope | None) -> tuple[list[Any], dict[str, Any]] | None:
    """Return (args, kwargs) of a call whose body is JSON; None for every other body, and for arguments kept aside."""
    if envelope is None or envelope.content_type != JSON or ARGUMENTS_HEADER in _headers(envelope):
        return None
    try:
        args, kwargs = json.loads(envelope.body)[:_MESSAGE_PARTS]
    except (ValueError, TypeError, KeyError):
        return None
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def binary_text(envelope: Envelope | None) -> str:
    """Describe a body that cannot be shown."""
    if envelope is None:
        return "<no body>"
    if ARGUMENTS_HEADER in _headers(envelope):
        return f"<kept aside: {', '.join(_kept_aside(envelope))}>"
    if envelope.content_encoding != "binary":
        return f"<text {len(envelope.body)} characters {envelope.content_type}>"
    try:
        size = len(base64.b64decode(envelope.body, validate=True))
    except (binascii.Error, ValueError):
        size = len(envelope.body)
    return f"<binary {size} bytes {envelope.content_type}>"


def raw_text(raw: RawMessage) -> str:
    """Describe a message that is no call."""
    what = "queue item" if raw.item else "message"
    return f"<{what} {len(raw.content)} bytes {raw.content_type or 'of no type'}>"


def reliable_header(envelope: Envelope | None) -> Mapping[str, Any]:
    """Return our header of a call; {} when it has none."""
    found = _headers(envelope).get(HEADER)
    return found if isinstance(found, Mapping) else {}


def _headers(envelope: Envelope | None) -> Mapping[str, Any]:
    found = envelope.options.get("headers") if envelope else None
    return found if isinstance(found, Mapping) else {}


def _loops(envelope: Envelope | None, raw: RawMessage | None) -> int:
    headers = raw.headers if raw and not envelope else _headers(envelope)
    count = headers.get(LOOPS_HEADER, 0)
    return count if isinstance(count, int) else 0


def _kept_aside(envelope: Envelope | None) -> tuple[str, ...]:
    found = _headers(envelope).get(ARGUMENTS_HEADER)
    return (str(found[0]),) if isinstance(found, list | tuple) and found else ()


def _queue_of(envelope: Envelope | None) -> str:
    options = envelope.options if envelope else {}
    return str(options.get("queue") or options.get("routing_key") or "")


def _same(value: Any) -> Any:  # Any: what JSON holds
    return value


def _envelope(found: Mapping[str, Any] | None) -> Envelope | None:
    return Envelope(**found) if found is not None else None


def _raw(found: Mapping[str, Any] | None) -> RawMessage | None:
    return RawMessage(**found) if found is not None else None


def _replays(found: Iterable[Mapping[str, Any]]) -> tuple[Replay, ...]:
    return tuple(cast("Replay", _known(Replay, entry)) for entry in found)


def _worker(found: Mapping[str, Any]) -> Worker:
    return cast("Worker", _known(Worker, found))


def _known(cls: type[Replay | Worker], found: Mapping[str, Any]) -> Replay | Worker:
    names = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in found.items() if name in names})


_READERS: Final[Mapping[str, Any]] = {  # Any: each reader takes what its field holds
    "envelope": _envelope,
    "original": _envelope,
    "raw": _raw,
    "replays": _replays,
    "worker": _worker,
    "evidence": tuple,
    "blobs": tuple,
}
