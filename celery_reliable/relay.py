"""Publish the submissions that wait in an outbox: after their commit, or when whoever should have done so did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_reliable import internals
from celery_reliable.dead_letters import DeadLetter, letter_id_of
from celery_reliable.errors import SignatureRefused, StoreError
from celery_reliable.keys import HEADER, Identity
from celery_reliable.payloads import Envelope
from celery_reliable.publishing import LIVE_RECORD_TTL, check_seal, identity_in, publish_envelope, sealed
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Existing, New

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.dead_letters import Reason
    from celery_reliable.stores.outbox import Outbox, Promise

_HOLD = 10.0  # seconds: of a relay that died, another one publishes after that
_AWAY = 1.0  # seconds until a relay asks a broker again that was away
_AWAY_HERE = 5.0  # seconds in which no commit of this process waits for it again
_BATCH = 100
_ENOUGH = 2  # failures after which the broker is taken to be away
_MOST_TIMES = 5  # tries of what the broker is not to blame for
_BACKOFF = 10.0
# A connection of the pool that died unnoticed is replaced at once; a broker that is away is not waited for.
_ONE_MORE = {"max_retries": 1, "interval_start": 0.0, "interval_step": 0.0, "interval_max": 0.0}


@dataclass(frozen=True, slots=True)
class Relay:
    """Takes submissions out of the outbox and publishes them; any number may do so at once.

    Guarantee: what was committed is published at least once, of one key in the order of the submissions. A relay that
    dies between the publish and its note is followed by one that publishes again: the claim tells that it is the same.
    """

    app: Celery
    outbox: Outbox

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self.app)

    def deliver(self, task_ids: Sequence[str]) -> None:
        """Publish what was just committed. Never raises: the caller's commit has succeeded, a relay does the rest."""
        if monotonic() < self._runtime.broker_away_until:
            return
        try:
            for start in range(0, len(task_ids), _BATCH):
                self._go(self.outbox.take(limit=_BATCH, hold=_HOLD, task_ids=task_ids[start : start + _BATCH]))
        except Exception as exc:  # noqa: BLE001  # whatever it is, the commit is done and must not look as if it were not
            self._runtime.events.emit("undelivered", count=len(task_ids), error=repr(exc))

    def look(self, *, limit: int) -> int:
        """Publish what waits, at most ``limit``; return how many were. Raises `StoreError` when the store is away."""
        count = 0
        while count < limit:
            taken = self.outbox.take(limit=min(_BATCH, limit - count), hold=_HOLD)
            published = self._go(taken, late=True)
            count += published
            if not taken or published < len(taken):
                break
        return count

    def _go(self, promises: Sequence[Promise], *, late: bool = False) -> int:
        """Publish in order, until the broker is away; return how many were published.

        What fails while another one is published is to blame itself, whatever its error looks like, and what was not
        tried comes first the next time: nothing keeps the others waiting for ever.
        """
        published, untried = 0, list(promises)
        failed: list[tuple[Promise, Exception]] = []
        while untried and len(failed) < _ENOUGH:
            promise = untried.pop(0)
            try:
                published += self._publish(promise, late=late)
            except internals.away() as exc:
                failed.append((promise, exc))
        if untried:
            self.outbox.put_off(untried, delay=0.0, failed=False)
        if failed and not published:
            self._rest([promise for promise, _ in failed], failed[0][1])
            return 0
        for promise, error in failed:
            self._fail(promise, error)
        return published

    def _rest(self, promises: Sequence[Promise], exc: Exception) -> None:
        """Let the broker come back; say so once an outage."""
        if monotonic() >= self._runtime.broker_away_until:
            self._runtime.events.emit("relay_waits", error=repr(exc))
        self._runtime.broker_away_until = monotonic() + _AWAY_HERE
        self.outbox.put_off(promises, delay=_AWAY, failed=False)

    def _publish(self, promise: Promise, *, late: bool) -> bool:
        """Publish one and note it; false when it could not be, for a reason that is not the broker's."""
        envelope = Envelope.from_bytes(promise.envelope)
        identity = identity_in(envelope)
        try:
            check_seal(self.app, envelope)
            stamped = self._stamped(envelope, self._accepted(envelope, identity, raw=promise.envelope))
            fresh = sealed(self.app, stamped)
            publish_envelope(self.app, fresh, retry_policy=_ONE_MORE)
        except _away():
            raise
        except SignatureRefused as exc:
            bury_lost(self.app, envelope, identity, message=str(exc), reason="rejected")
            return False
        except Exception as exc:  # noqa: BLE001  # whatever an envelope makes its publish raise
            self._fail(promise, exc)
            return False
        self.outbox.published(promise, envelope=fresh.to_bytes() if self._runtime.ledger else None)
        job = {"task": envelope.task, "task_id": envelope.task_id, "key": identity.job.key}
        self._runtime.events.emit("relayed" if late else "submitted", **job)
        return True

    def _accepted(self, envelope: Envelope, identity: Identity, *, raw: bytes) -> Identity:
        """Have the store decide about a declared key; a duplicate is published too, and ends as the job that has the key."""
        if identity.job.kind != "declared":
            return identity
        replaces = self._replaces(envelope.task)
        answer = self._runtime.store.submit(
            identity.job,
            task_id=identity.task_id,
            fingerprint=identity.fingerprint,
            envelope=raw if replaces else None,
            canvas=True,
            replace=replaces,
            ttl=LIVE_RECORD_TTL,
        )
        return replace(identity, life=answer.life) if isinstance(answer, New | Existing) else identity

    def _replaces(self, task: str) -> bool:
        settings = getattr(self.app.tasks.get(task), "reliable_settings", None)
        return settings is not None and settings.on_conflict == "replace"

    def _stamped(self, envelope: Envelope, identity: Identity) -> Envelope:
        """Return the envelope as if submitted now: who looks for vanished messages compares it with its queue's others."""
        now = replace(identity, job=replace(identity.job, stamp=self._runtime.store.now()))
        headers = {**(envelope.options.get("headers") or {}), HEADER: now.to_header()}
        return replace(envelope, options={**envelope.options, "headers": headers})

    def _fail(self, promise: Promise, exc: Exception) -> None:
        times = self.outbox.put_off([promise], delay=_BACKOFF, failed=True)
        self._runtime.events.emit("unpublishable", task_id=promise.task_id, times=times, error=repr(exc))
        if times >= _MOST_TIMES:
            envelope = Envelope.from_bytes(promise.envelope)
            bury_lost(self.app, envelope, identity_in(envelope), message=f"could not be published: {exc!r}")


def _away() -> tuple[type[Exception], ...]:
    return (StoreError, *internals.away())


def bury_lost(app: Celery, envelope: Envelope, identity: Identity, *, message: str, reason: Reason = "lost") -> None:
    """Keep a letter of a submission that never came to a worker, and end it."""
    runtime = runtime_of(app)
    settings, store = runtime.settings, runtime.store
    letter = DeadLetter.of(
        None,
        reason=reason,
        envelope=envelope,
        now=store.now() / 1e6,
        job=identity.job,
        life=identity.life,
        fingerprint=identity.fingerprint,
        letter_id=letter_id_of(envelope.task_id, life=-2),
        message=message,
    )
    bounds: dict[str, Any] = {"letter_ttl": settings.dead_letter_ttl, "letter_max": settings.dead_letter_max}
    store.keep_letter(letter.id, job=identity.job, letter=letter.to_bytes(), label=letter.label, **bounds)
    store.settle(identity.job, task_id=envelope.task_id, state="skipped", ttl=LIVE_RECORD_TTL)
    job = {"task": envelope.task, "task_id": envelope.task_id, "key": identity.job.key}
    runtime.events.emit("buried", **job, **letter.facts())
