"""Keep the letter of a call that will not run again, then let the tracer report its failure, once.

The letter is written before the message is acked, in one step with the state of its key.
"""

from __future__ import annotations

import json
import time
from typing import Any, NoReturn

from celery_reliable import keys
from celery_reliable.dead_letters import DeadLetter, Reason, letter_id_of
from celery_reliable.errors import PayloadMismatch, Permanent
from celery_reliable.execution import continuation, overlapping, telling
from celery_reliable.execution.delivery import Delivery
from celery_reliable.keys import HEADER
from celery_reliable.payloads import SIGNATURE_HEADER
from celery_reliable.publishing import envelope_of
from celery_reliable.stores.base import Poisoned, Run

_ADDRESS = ("routing_key", "exchange", "priority")


def bury(delivery: Delivery, exc: BaseException, reason: Reason) -> NoReturn:
    """Bury a job that failed for good."""
    run = delivery.run
    _bury(delivery, _letter(delivery, exc, reason, attempts=run.attempt, deliveries=run.delivery))
    raise reported(delivery, exc)


def bury_poison(delivery: Delivery, claim: Poisoned) -> NoReturn:
    """Bury a job that was claimed too often without a verdict, with the evidence."""
    delivery.run = Run(claim.fence, claim.life, claim.attempt, claim.delivery)
    last = json.loads(claim.evidence[-1]) if claim.evidence else {}
    told = f"; last evidence: {last.get('detail', '')}" if last else ""
    exc = Permanent(f"{delivery.task.name}: claimed {claim.delivery} times without a verdict{told}")
    delivery.emit("poisoned", delivery=claim.delivery)
    letter = _letter(
        delivery,
        exc,
        "time_limit" if last.get("cause") == "time_limit" else "poison",
        attempts=claim.attempt - 1,
        deliveries=claim.delivery,
        evidence=claim.evidence,
    )
    _bury(delivery, letter)
    raise reported(delivery, exc)


def refuse_mismatch(delivery: Delivery, existing_id: str) -> NoReturn:
    """Keep a letter of a message whose key belongs to other arguments; the key is left alone."""
    msg = (
        f"{delivery.task.name}: key {delivery.job.key!r} belongs to task {existing_id} with other arguments; "
        "this message did not run"
    )
    delivery.emit("mismatch")
    _refuse(delivery, PayloadMismatch(msg, existing_id=existing_id), "mismatch")


def refuse_late(delivery: Delivery) -> NoReturn:
    """Keep a letter of a message that outlived everything that is known of it; running it may be running it twice."""
    msg = f"{delivery.task.name}: older than the life of its marker and nothing is known of it any more; it did not run"
    delivery.emit("over", state="late")
    _refuse(delivery, Permanent(msg), "stale")


def report_again(delivery: Delivery, raw: bytes) -> NoReturn:
    """Report the failure of a job that is dead once more: the first report may not have happened."""
    delivery.end_entry()
    letter = DeadLetter.from_bytes(raw) if raw else None
    if letter is None:
        raise reported(delivery, Permanent(f"{delivery.task.name}: dead; its letter was dropped"))
    delivery.emit("reported_again", **letter.facts())
    module, _, name = letter.error_type.rpartition(".")
    told = {"exc_type": name, "exc_module": module or "builtins", "exc_message": letter.error_message}
    exc = delivery.task.backend.exception_to_python(told)
    raise reported(delivery, exc if isinstance(exc, BaseException) else Permanent(letter.error_message))


def _bury(delivery: Delivery, letter: DeadLetter) -> None:
    settings = delivery.settings
    answer = delivery.insist(
        "bury",
        lambda: delivery.runtime.store.bury(
            delivery.job,
            task_id=delivery.identity.task_id,
            fence=delivery.run.fence,
            token=delivery.token,
            letter_id=letter.id,
            letter=letter.to_bytes(),
            label=letter.label,
            letter_ttl=settings.dead_letter_ttl,
            letter_max=settings.dead_letter_max,
        ),
    )
    trimmed = delivery.check(answer, verb="bury").trimmed
    overlapping.leave(delivery)
    if trimmed:
        delivery.runtime.events.emit("letters_trimmed", count=trimmed)
    delivery.emit("buried", **letter.facts())


def _refuse(delivery: Delivery, exc: Exception, reason: Reason) -> NoReturn:
    """Keep a letter without a claim: the key, if there is one, is somebody else's."""
    settings = delivery.settings
    own_id = letter_id_of(delivery.identity.task_id, life=-1)
    letter = _letter(delivery, exc, reason, attempts=0, deliveries=0, letter_id=own_id)
    trimmed = delivery.insist(
        "keep_letter",
        lambda: delivery.runtime.store.keep_letter(
            letter.id,
            job=delivery.job,
            letter=letter.to_bytes(),
            label=letter.label,
            letter_ttl=settings.dead_letter_ttl,
            letter_max=settings.dead_letter_max,
        ),
    )
    if trimmed:
        delivery.runtime.events.emit("letters_trimmed", count=trimmed)
    delivery.end_entry()
    delivery.emit("buried", **letter.facts())
    raise reported(delivery, exc)


def _letter(delivery: Delivery, exc: BaseException, reason: Reason, **facts: Any) -> DeadLetter:
    identity, stamp = delivery.identity, delivery.job.stamp
    envelope = envelope_of(
        delivery.task, delivery.args, delivery.kwargs, task_id=identity.task_id, options=_options(delivery)
    )
    signer = delivery.runtime.signer
    if signer is not None and getattr(delivery.request, SIGNATURE_HEADER, None):  # verified when it was received
        envelope = signer.sealed(envelope)
    return DeadLetter.of(
        exc,
        reason=reason,
        envelope=envelope,
        now=stamp / 1e6 + delivery.age() if stamp and delivery.run.fence else time.time(),
        job=delivery.job,
        life=delivery.run.life or identity.life,
        fingerprint=identity.fingerprint,
        worker=delivery.runtime.worker(),
        **facts,
    )


def _options(delivery: Delivery) -> dict[str, Any]:
    """Return the options under which the call can be published again."""
    request = delivery.request
    headers = {**keys.lasting(request.headers or {}), HEADER: delivery.header()}
    address = request.delivery_info or {}
    addressed = {name: address[name] for name in _ADDRESS if address.get(name) is not None}
    return {**request.as_execution_options(), "headers": headers, **addressed}


def reported(delivery: Delivery, exc: BaseException) -> Exception:
    """Tell backend, errbacks and chord, and return what the tracer may be given to report.

    Whatever is not an Exception would end the worker, or leave the request open for ever on threads.
    """
    told = exc if isinstance(exc, Exception) and not isinstance(exc, MemoryError) else _stand_in(exc)
    telling.failure(delivery, told)
    continuation.tell(delivery)
    telling.failed_part(delivery, told)
    return told


def _stand_in(exc: BaseException) -> Permanent:
    stand_in = Permanent(f"{type(exc).__qualname__}: {exc}")
    stand_in.__cause__ = exc
    return stand_in
