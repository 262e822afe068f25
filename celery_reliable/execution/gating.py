"""Let a claimed job pass the gates of its task, or wait: unrun, in no pool slot, with no attempt spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from celery_reliable.errors import StoreError
from celery_reliable.execution import burial
from celery_reliable.flow.breakers import Closed
from celery_reliable.flow.places import Asker
from celery_reliable.flow.rates import Later
from celery_reliable.keys import MOMENT

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery
    from celery_reliable.retries import Verdict
    from celery_reliable.stores.base import Run

Leave = Callable[["bool | None"], None]
"""Gives back what a gate gave; True: the run went well, False: not, None: that says nothing."""

_NOT_ITS_FAULT = ("store", "queue_full")


@contextmanager
def passed(delivery: Delivery, run: Run) -> Iterator[None]:
    """Run the block once every gate of the task lets the job pass; give back what they gave when it has ended."""
    delivery.run = run
    given: list[Leave] = []
    well: bool | None = None
    try:
        for gate in _GATES:
            leave = gate(delivery)
            if leave is not None:
                given.append(leave)
        yield
        well = True
    except SystemExit:  # this process is being ended: what it holds ends with its claim
        given.clear()
        raise
    except BaseException:
        well = None if delivery.verdict is None else _says(delivery.verdict)
        raise
    finally:
        for leave in reversed(given):
            leave(well)


def _says(verdict: Verdict) -> bool | None:
    """Return what a failed run says of what it called: an error that may pass speaks against it, any other of neither."""
    return False if verdict.action == "retry" and verdict.rule not in _NOT_ITS_FAULT else None


def _breaker(delivery: Delivery) -> Leave | None:
    name = delivery.settings.breaker
    if name is None:
        return None
    breakers = delivery.runtime.breakers
    answer = breakers.enter(name)
    if isinstance(answer, Closed):
        _wait(delivery, "breaker_waits", answer.seconds, breaker=name)
    return lambda well: breakers.leave(answer, well=well)


def _limit(delivery: Delivery) -> Leave | None:
    limit = delivery.settings.concurrency_limit
    if limit is None:
        return None
    stamp = delivery.job.stamp or delivery.run.fence
    me = Asker(_key(delivery), limit, delivery.job, stamp, delivery.token, delivery.settings.lease_ttl)
    full = delivery.insist("limit", lambda: delivery.runtime.places.enter(me))
    if full is not None:
        _wait(delivery, "limit_waits", full.seconds, limit_key=me.name)
    return lambda _: _leave_place(delivery, me)


def _leave_place(delivery: Delivery, me: Asker) -> None:
    """Give a place back. Best effort: it ends with the claim."""
    try:
        delivery.runtime.places.leave(me)
    except StoreError:
        delivery.emit("store_unavailable", verb="limit", wait=0.0)


def _rate(delivery: Delivery) -> None:
    rate = delivery.settings.fleet_rate_limit
    if rate is None:
        return
    key, moment = _key(delivery), getattr(delivery.request, MOMENT, 0)
    answer = delivery.insist(
        "rate", lambda: delivery.runtime.rates.enter(key, rate=rate, age=delivery.age(), moment=moment)
    )
    if isinstance(answer, Later):
        _wait(delivery, "rate_waits", answer.seconds, limit_key=key)
    if answer.seconds > 0:
        _wait(delivery, "rate_waits", answer.seconds, moment=answer.moment, limit_key=key)


def _budget(delivery: Delivery) -> Leave | None:
    share = delivery.settings.retry_budget
    if share is None:
        return None
    budgets, name = delivery.runtime.budgets, delivery.settings.breaker or str(delivery.task.name)
    if delivery.run.attempt == 1:
        budgets.first(name)
        return None
    wait = delivery.insist("budget", lambda: budgets.retry(name, share=share))
    if wait:
        _wait(delivery, "budget_waits", wait, budget=name)
    return lambda well: budgets.give_back(name) if well else None


def _key(delivery: Delivery) -> str:
    """Return the key of this call, by the arguments in its message. One that has none can never run: a letter."""
    args, kwargs, version = delivery.given
    try:
        return str(delivery.task.concurrency_name(args, kwargs, version=version))
    except Exception as exc:  # noqa: BLE001  # a project's callable may raise anything; its next try would, too
        burial.bury(delivery, exc, "invalid")


def _wait(delivery: Delivery, why: str, seconds: float, *, moment: int = 0, **facts: Any) -> NoReturn:
    """Give the claim back unused and let the message wait."""
    if not delivery.release():
        delivery.drop("revoked")
    delivery.hold(why, seconds, moment=moment, **facts)


# In this order, since a moment and a retry that are spent cannot be given back; a moment is worth less.
_GATES = (_breaker, _limit, _rate, _budget)
