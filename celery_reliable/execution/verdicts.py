"""Act on what a body raised: run it again, give it back, or bury it."""

from __future__ import annotations

from typing import Any, NoReturn

from celery.exceptions import Reject, Retry

from celery_reliable import internals, keys
from celery_reliable.errors import Draining, LeaseLost
from celery_reliable.execution import burial, overlapping, telling
from celery_reliable.execution.delivery import SHORTEST_WAIT, Delivery
from celery_reliable.keys import HEADER
from celery_reliable.retries import LONGEST_WAIT, Release, Verdict, judge, next_step
from celery_reliable.stores.base import ReleaseOutcome
from celery_reliable.waits import Wait, without_expiry
from celery_reliable.worker.waiting import GiveBack, Hold, Snoozed


class RetryAsked(Retry):
    """What `ReliableTask.retry` raises: Celery's Retry, built but not published."""

    def __init__(self, prepared: Retry, *, delay: float | None, max_retries: int | None) -> None:
        """Keep what the task asked for; ``delay`` None: full jitter."""
        super().__init__(prepared.message, prepared.exc, prepared.when, sig=prepared.sig)
        self.delay = delay
        self.max_retries = max_retries


def act_on(delivery: Delivery, exc: BaseException) -> NoReturn:
    """Decide what a raised exception means, and do it."""
    if isinstance(exc, Draining) and overlapping.is_replaced(delivery):
        overlapping.skip(delivery, overlapping.REPLACED)
    if isinstance(exc, Draining):
        _interrupt(delivery)
    if isinstance(exc, internals.ChordNotSent):  # by Celery's own task that waits for the members of a chord
        _release(delivery, "interrupted", 0.0)
        delivery.wait_to_publish("chord", exc.__cause__)
    if isinstance(exc, LeaseLost):
        delivery.stale("run")
    if isinstance(exc, Reject):
        _reject(delivery, exc)
    if isinstance(exc, Retry):
        _retry_as_asked(delivery, exc)
    settings = delivery.settings
    verdict = judge(
        exc,
        retry_on=settings.retry_on,
        fail_on=settings.fail_on,
        classify=delivery.task.classify,
        on_unknown_error=settings.on_unknown_error,  # type: ignore[arg-type]  # a closed set, validated
    )
    _follow(delivery, verdict, exc, max_retries=settings.max_retries)


def _retry_as_asked(delivery: Delivery, exc: Retry) -> NoReturn:
    cause = exc.exc if isinstance(exc.exc, BaseException) else exc
    limit, delay = delivery.settings.max_retries, None
    if isinstance(exc, RetryAsked):
        limit = limit if exc.max_retries is None else exc.max_retries
        delay = exc.delay
    _follow(delivery, Verdict.retry(rule="user:retry"), cause, max_retries=limit, delay=delay, signature=exc.sig)


def _follow(
    delivery: Delivery,
    verdict: Verdict,
    exc: BaseException,
    *,
    max_retries: int,
    delay: float | None = None,
    signature: Any = None,
) -> NoReturn:
    settings, run, age = delivery.settings, delivery.run, delivery.age()
    delivery.verdict = verdict
    if delay is not None:
        delay = min(delay, LONGEST_WAIT)
        if settings.retry_for is not None and age + delay > settings.retry_for:
            burial.bury(delivery, exc, verdict.reason)
    step = next_step(
        verdict,
        attempt=run.attempt,
        max_retries=max_retries,
        retry_for=settings.retry_for if delay is None else None,
        age=age,
        backoff=settings.retry_backoff,
        backoff_max=settings.retry_backoff_max,
        random=delivery.runtime.random,
        snoozes=run.snoozes,
        max_snoozes=settings.max_snoozes,
    )
    if not isinstance(step, Release):
        burial.bury(delivery, exc, step.reason)
    _run_again(
        delivery, step.outcome, step.delay if delay is None else delay, exc, rule=verdict.rule, signature=signature
    )


# --- again


def _run_again(
    delivery: Delivery, outcome: ReleaseOutcome, delay: float, exc: BaseException, *, rule: str, signature: Any
) -> NoReturn:
    """Release, publish, ack, in this order."""
    if overlapping.is_replaced(delivery):
        overlapping.skip(delivery, overlapping.REPLACED)
    _release(delivery, outcome, delay)
    if outcome == "retry":
        error = type(exc).__qualname__
        delivery.emit("retried", attempt=delivery.run.attempt, delay=delay, rule=rule, error=error)
    else:
        delivery.emit("snoozed", delay=delay)
    _publish_again(delivery, outcome, delay, signature=signature)
    told = exc if isinstance(exc, Exception) else None
    telling.retry(delivery, told)
    raise (Retry if outcome == "retry" else Snoozed)(exc=told, when=delay)


def _release(delivery: Delivery, outcome: ReleaseOutcome, delay: float) -> None:
    if not delivery.release(outcome, delay=delay):
        overlapping.leave(delivery)
        delivery.drop("revoked")
    overlapping.rest(delivery, seconds=delay, has_run=outcome == "interrupted")


def _publish_again(delivery: Delivery, outcome: ReleaseOutcome, delay: float, *, signature: Any) -> None:
    """Publish the next run. If that fails, this message waits until it is due and runs in its place."""
    attempt = delivery.run.attempt
    try:
        signature = signature or delivery.task.signature_from_request(delivery.request)
        header = Wait(delay, delivery.now()).beside(delivery.header())
        if signature.options.get("expires") != delivery.request.expires:  # the retry says another one
            header = without_expiry(header)
        headers = {**keys.lasting(signature.options.get("headers") or {}), HEADER: header}
        signature.options.pop("eta", None)
        with keys.within(None):
            signature.apply_async(
                countdown=delay, retries=attempt if outcome == "retry" else attempt - 1, headers=headers
            )
    except Exception as failure:  # whatever stops it, this message is still there
        delivery.emit("publish_failed", what=outcome, wait=delay)
        raise Reject(Hold(delay, f"{outcome} not published: {failure}"), requeue=True) from failure


# --- neither again nor dead


def _interrupt(delivery: Delivery) -> NoReturn:
    """Give right and message back: the worker has to stop. Spends neither an attempt nor a delivery."""
    _release(delivery, "interrupted", 0.0)
    delivery.emit("interrupted")
    raise Reject(GiveBack("draining"), requeue=True)


def _reject(delivery: Delivery, exc: Reject) -> NoReturn:
    """Celery's Reject: to requeue is a snooze in this worker; the other is deletion, so a letter is kept first."""
    if exc.requeue:
        _release(delivery, "snooze", SHORTEST_WAIT)
        delivery.hold("not_yet", SHORTEST_WAIT)
    burial.bury(delivery, exc, "rejected")
