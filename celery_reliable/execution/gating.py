"""Let a claimed job pass the gates of its task, or wait: unrun, in no pool slot, with no attempt spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from celery_reliable.flow.breakers import Closed

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery
    from celery_reliable.retries import Verdict
    from celery_reliable.stores.base import Run

Leave = Callable[["bool | None"], None]
"""Gives back what a gate gave; True: the run went well, False: not, None: that says nothing."""

_NOT_ITS_FAULT = ("store",)


@contextmanager
def passed(delivery: Delivery, run: Run) -> Iterator[None]:
    """Run the block once every gate of the task lets the job pass; give back what they gave when it has ended."""
    delivery.run = run
    given: list[Leave] = []
    well: bool | None = None
    try:
        for gate in _GATES:
            gate(delivery, given)
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


def _breaker(delivery: Delivery, given: list[Leave]) -> None:
    name = delivery.settings.breaker
    if name is None:
        return
    breakers = delivery.runtime.breakers
    answer = breakers.enter(name)
    if isinstance(answer, Closed):
        _wait(delivery, "breaker_waits", answer.seconds, breaker=name)
    given.append(lambda well: breakers.leave(answer, well=well))


def _wait(delivery: Delivery, why: str, seconds: float, **facts: Any) -> NoReturn:
    """Give the claim back unused and let the message wait."""
    if not delivery.release():
        delivery.drop("revoked")
    delivery.hold(why, seconds, **facts)


_GATES = (_breaker,)
