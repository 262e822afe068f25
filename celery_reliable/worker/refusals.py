"""End a message that cannot run here: park it for others, or keep its letter.

The note or the letter is written first, then whoever waits for the task is told; only then may the caller ack. Every
step may be repeated, so that whoever dies in between loses nothing. What the store or the broker refuse is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.exceptions import NotRegistered
from kombu import serialization
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_reliable import internals, keys
from celery_reliable.chords import cured_by_time, keep_chord
from celery_reliable.dead_letters import DeadLetter, letter_id_of
from celery_reliable.errors import Permanent, SignatureRefused
from celery_reliable.parking import Kind, Parked, Parking
from celery_reliable.payloads import PARKED_HEADER, SIGNATURE_HEADER, Envelope, RawMessage
from celery_reliable.publishing import LIVE_RECORD_TTL, plain_options
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Busy, Dead, Mismatch, NotYet, Poisoned, Run, Stale
from celery_reliable.worker.inspection import Incoming, Refusal, canvas_in, fields_of, identity_in, parts_of

if TYPE_CHECKING:
    from celery import Celery

_FIRST_LIFE = -3  # letters without a claim: apart from all lives that a key can have
_SHORTEST_WAIT = 1.0


class Later(Exception):
    """The message has to wait: its job runs, or is not due."""

    def __init__(self, seconds: float) -> None:
        """Take how long."""
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Case:
    """One message that cannot run here: the message, why, and a name that no other message has."""

    raw: RawMessage
    refusal: Refusal
    name: str

    @classmethod
    def of(cls, parked: Parked) -> Case:
        """Return the case of a message that was parked to the end of its time."""
        kind = parked.kind
        why = f"{parked.why}; parked {parked.times} times and nobody came who could run it"
        return cls(parked.message, Refusal(parked.reason, why, kind.task, parked.task_id, kind.version), parked.task_id)


class Refusals:
    """Park and bury for one app."""

    def __init__(self, app: Celery) -> None:
        """Take the app, whose runtime is made already."""
        self._app = app
        self._runtime: Runtime = runtime_of(app)
        settings = self._runtime.settings
        self.parking = Parking(self._runtime.store, ttl=settings.park_ttl, spare=settings.dead_letter_ttl)

    def settle(self, case: Case) -> None:
        """Park what another worker may run, within its time; bury everything else."""
        parked = self._as_parked(case)
        if parked is None or self.parking.has_expired(parked.since):
            self.bury(case)
            return
        self.parking.park(parked)
        self._emit("parked", case, reason=parked.reason, times=parked.times)

    def _as_parked(self, case: Case) -> Parked | None:
        refusal, now = case.refusal, self.parking.now()
        if refusal.reason not in ("unregistered", "incompatible"):
            return None
        before = case.raw.headers.get(PARKED_HEADER)
        since, times = _history(before, now=now)
        return Parked(
            kind=Kind(refusal.task, refusal.version, case.raw.queue),
            task_id=refusal.task_id,
            reason=refusal.reason,
            why=refusal.why,
            message=case.raw,
            since=since,
            at=now,
            times=times + 1,
        )

    # --- letters

    def bury(self, case: Case) -> None:
        """Keep the letter, then tell whoever waits for the task. Raises `Later` while its job runs elsewhere."""
        call = _Call(self._app, case)
        identity = call.identity
        told = self._keep(case, call) if identity is None else self._bury_key(case, call, identity)
        if told and call.context is not None:
            self._tell(case, call)

    def _keep(self, case: Case, call: _Call, *, reason: str | None = None) -> bool:
        """Keep a letter without a claim."""
        settings = self._runtime.settings
        letter = self._letter(
            case, call, reason=reason, letter_id=letter_id_of(f"{case.name}\0{case.raw.digest}", life=_FIRST_LIFE)
        )
        trimmed = self._runtime.store.keep_letter(
            letter.id,
            letter=letter.to_bytes(),
            label=letter.label,
            letter_ttl=settings.dead_letter_ttl,
            letter_max=settings.dead_letter_max,
        )
        self._kept(case, letter, trimmed=trimmed)
        return True

    def _bury_key(self, case: Case, call: _Call, identity: keys.Identity) -> bool:
        """Claim the job of a message, as a run would, and bury it: its key is dead, not waiting for ever.

        Returns whether the failure is to be told: not of a job that ended otherwise.
        """
        settings, token = self._runtime.settings, keys.new_token()
        answer = self._runtime.store.claim(
            identity.job,
            task_id=identity.task_id,
            life=identity.life,
            fingerprint=identity.fingerprint,
            token=token,
            ttl=settings.lease_ttl,
            max_deliveries=settings.max_deliveries,
            record_ttl=LIVE_RECORD_TTL,
        )
        match answer:
            case Run() | Poisoned():
                return self._bury(case, call, identity, answer, token=token)
            case Busy(expires_in=seconds) | NotYet(due_in=seconds):
                raise Later(max(seconds, _SHORTEST_WAIT))
            case Mismatch():
                return self._keep(case, call, reason="mismatch")
            case Dead():
                return True
        self._emit("refused", case, reason=type(answer).__name__.lower())
        return False

    def _bury(self, case: Case, call: _Call, identity: keys.Identity, run: Run | Poisoned, *, token: str) -> bool:
        settings = self._runtime.settings
        letter = self._letter(case, call, identity=identity, life=run.life, deliveries=run.delivery - 1)
        answer = self._runtime.store.bury(
            identity.job,
            task_id=identity.task_id,
            fence=run.fence,
            token=token,
            letter_id=letter.id,
            letter=letter.to_bytes(),
            label=letter.label,
            letter_ttl=settings.dead_letter_ttl,
            letter_max=settings.dead_letter_max,
        )
        if isinstance(answer, Stale):
            raise Later(_SHORTEST_WAIT)
        self._kept(case, letter, trimmed=answer.trimmed)
        return True

    def _letter(
        self,
        case: Case,
        call: _Call,
        *,
        reason: str | None = None,
        identity: keys.Identity | None = None,
        life: int = 0,
        **facts: Any,
    ) -> DeadLetter:
        refusal = case.refusal
        return DeadLetter.of(
            SignatureRefused(refusal.why) if refusal.reason == "rejected" else None,
            reason=reason or refusal.reason,  # type: ignore[arg-type]  # ours are among the letters' reasons
            envelope=self._sealed(call.envelope, case),
            now=self.parking.now(),
            job=identity.job if identity else None,
            life=life,
            fingerprint=identity.fingerprint if identity else "",
            task=refusal.task,
            task_id=refusal.task_id,
            queue=case.raw.queue,
            message=refusal.why,
            worker=self._runtime.worker(),
            raw=None if call.envelope else case.raw,
            **facts,
        )

    def _sealed(self, envelope: Envelope | None, case: Case) -> Envelope | None:
        """Seal the call of a message whose signature was verified when it came."""
        signer = self._runtime.signer
        verified = signer is not None and envelope is not None and not signer.fault_of_raw(case.raw)
        return signer.sealed(envelope) if signer and envelope and verified else envelope

    def _kept(self, case: Case, letter: DeadLetter, *, trimmed: int) -> None:
        if trimmed:
            self._runtime.events.emit("letters_trimmed", count=trimmed)
        facts = {"task": letter.task, "task_id": letter.task_id, "key": letter.key}
        self._runtime.events.emit("buried", **facts, **{**letter.facts(), "error": case.refusal.why})

    # --- whoever waits

    def _tell(self, case: Case, call: _Call) -> None:
        """Store the failure and tell chord, chain and errbacks; what no repetition can mend is logged.

        Raises `Later` while another worker sends the body of its chord, or fails it.
        """
        try:
            internals.fail(call.context, _error(case.refusal), chord=keep_chord(self._app.backend))
        except cured_by_time():
            raise
        except internals.ChordBusy as exc:
            raise Later(_SHORTEST_WAIT) from exc
        except internals.ChordNotSent as exc:
            raise exc.__cause__ from None  # type: ignore[misc]  # what is cured by time
        except Exception as exc:  # noqa: BLE001  # the canvas of a message that may hold anything
            self._emit("not_told", case, error=repr(exc))

    def _emit(self, event: str, case: Case, **facts: Any) -> None:
        refusal = case.refusal
        key = refusal.task_id or case.name
        self._runtime.events.emit(
            event, task=refusal.task, task_id=refusal.task_id, key=key, **{"queue": case.raw.queue, **facts}
        )


class _Call:
    """What can be made of a message that cannot run: its job, its call, and the request that its canvas is told of."""

    def __init__(self, app: Celery, case: Case) -> None:
        refusal, raw = case.refusal, case.raw
        self.identity: keys.Identity | None = None
        self.context: Any = None  # Any: Celery's Context is not in the stubs
        self.envelope: Envelope | None = None
        if refusal.reason == "rejected":  # whoever forged it must not end a job, nor have anything decoded or sent
            return
        body = None if raw.item or refusal.reason == "undecodable" else _decoded(app, raw)
        fields = fields_of(Incoming(raw.headers, body))
        _, _, embed = parts_of(body) or ((), {}, None)
        self.identity = identity_in(fields) if refusal.task_id else None
        if refusal.task_id:
            told = {name: fields[name] for name in _TOLD if name in fields}
            self.context = internals.context_of({**told, "id": refusal.task_id}, self._with_ids(canvas_in(embed)))
        self.envelope = _envelope(case, fields, body) if refusal.parks and body is not None else None

    def _with_ids(self, canvas: dict[str, Any]) -> dict[str, Any]:
        """Give the errbacks ids that a second telling repeats."""
        key = self.identity.job.key if self.identity else None
        if key is None or "errbacks" not in canvas:
            return canvas
        named = [
            {
                **one,
                "options": {"task_id": keys.derived_id(key, "errback", str(position)), **(one.get("options") or {})},
            }
            for position, one in enumerate(canvas["errbacks"])
        ]
        return {**canvas, "errbacks": named}


_TOLD = ("task", "group", "group_index", "root_id", "parent_id", "ignore_result", "correlation_id")


def _history(header: object, *, now: float) -> tuple[float, int]:
    """Return since when and how often a message was parked before; a foreign header says nothing."""
    found = header if isinstance(header, Mapping) else {}
    since, times = found.get("since"), found.get("times")
    if not isinstance(since, int | float) or not isinstance(times, int) or times < 0:
        return now, 0
    return min(float(since), now), times


def _decoded(app: Celery, raw: RawMessage) -> Any:  # Any: whatever a message holds
    """Decode a body that some worker decoded when it was inspected; None if this one may not, or cannot."""
    try:
        accept = serialization.prepare_accept_content(app.conf.accept_content)
        return serialization.loads(raw.content, raw.content_type or None, raw.content_encoding or None, accept=accept)
    except (DecodeError, ContentDisallowed):
        return None


def _envelope(case: Case, fields: Mapping[Any, Any], body: Any) -> Envelope:
    """Return the call of a well-formed message, as it can be published again."""
    raw, refusal = case.raw, case.refusal
    args, kwargs, embed = parts_of(body) or ((), {}, None)
    options = {**internals.context_of(fields, embed).as_execution_options(), "queue": raw.queue}
    options["headers"] = {
        name: value
        for name, value in (options["headers"] or {}).items()
        if name not in (PARKED_HEADER, SIGNATURE_HEADER)
    }
    options["priority"] = raw.properties.get("priority")
    if isinstance(body, Mapping):  # Celery's first protocol: the arguments are fields of the body
        content_type, encoding, text = serialization.dumps((args, kwargs), "json")
        return Envelope(refusal.task, refusal.task_id, text, content_type, encoding, plain_options(options))
    is_text = raw.content_encoding != "binary" and _is_text(raw.content)
    text, encoding = (raw.content.decode(), raw.content_encoding or "utf-8") if is_text else (raw.body, "binary")
    return Envelope(refusal.task, refusal.task_id, text, raw.content_type, encoding, plain_options(options))


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _error(refusal: Refusal) -> Exception:
    return NotRegistered(refusal.task) if refusal.reason == "unregistered" else Permanent(refusal.why)
