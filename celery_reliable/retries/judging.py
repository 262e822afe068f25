"""Judge the exception of an attempt."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from celery_reliable.errors import (
    Draining,
    LeaseLost,
    Permanent,
    QueueFull,
    Snooze,
    StoreFull,
    StoreUnavailable,
    Transient,
)
from celery_reliable.retries.answers import Clock
from celery_reliable.retries.peek import peek, qualified
from celery_reliable.retries.rules import judge_by_rules
from celery_reliable.retries.verdict import Verdict, seconds

logger = logging.getLogger("celery_reliable")

Listed = type[BaseException] | str
Classify = Callable[[BaseException], Verdict | None]


def judge(
    exc: BaseException,
    *,
    retry_on: Sequence[Listed] = (),
    fail_on: Sequence[Listed] = (),
    classify: Classify | None = None,
    on_unknown_error: Literal["fail", "retry"] = "fail",
    clock: Clock = time.time,
) -> Verdict:
    """Say what is to become of the attempt that raised ``exc``. Never raises, whatever ``exc`` is.

    Only what interrupts ``classify`` (`Draining`, SystemExit) passes through.

    The first opinion counts:

    1. ours, when they are a verdict (`Snooze`, `Transient`, `Permanent`) or tell of the store and the lease, which are
       not the task's fault (`StoreUnavailable`, `StoreFull`, `LeaseLost`, `QueueFull`); `Draining` is the caller's to handle, and a
       snooze of 0 here, so that it can never become a dead letter;
    2. ``classify``, which may return None; one that raises is logged and has no opinion;
    3. ``fail_on`` and ``retry_on``: classes, or dotted paths compared with the names of the exception's classes,
       nothing is imported. The class nearest in the method resolution order counts; named in both, it fails;
    4. the built-in rules (`celery_reliable.retries.rules`);
    5. ``on_unknown_error``; for what is no `Exception` (SystemExit, GreenletExit) the rule ``exit``, which fails.

    What the exception itself tells is kept by 3: a server's Retry-After, and the reason ``time_limit``. ``clock`` gives
    wall time, for a Retry-After that is a date.
    """
    return (
        _opinion(_judge_ours, exc)
        or (classify and _opinion(classify, exc))
        or _judge_known(exc, fail_on=fail_on, retry_on=retry_on, clock=clock)
        or _unknown(on_unknown_error)
    )


def _opinion(step: Callable[[BaseException], object], exc: BaseException) -> Verdict | None:
    try:
        verdict = step(exc)
    except Exception:  # a project's classify, or a very strange exception: the error being judged must not be lost
        logger.exception("judging failed, the next rule decides", extra=_facts(step, exc))
        return None
    if verdict is None or isinstance(verdict, Verdict):
        return verdict
    logger.error(
        "classify: expected a Verdict or None, found a %s, the next rule decides; return Verdict.retry() or .fail()",
        type(verdict).__name__,
        extra=_facts(step, exc),
    )
    return None


def _facts(step: Callable[[BaseException], object], exc: BaseException) -> dict[str, str]:
    return {"reliable_rule": getattr(step, "__qualname__", type(step).__name__), "reliable_error": type(exc).__name__}


def _judge_ours(exc: BaseException) -> Verdict | None:
    match exc:
        case Snooze():
            return Verdict.snooze(seconds(peek(exc, "seconds")) or 0.0, rule="snooze")
        case Transient() | QueueFull():
            rule = "queue_full" if isinstance(exc, QueueFull) else "transient"
            return Verdict.retry(retry_after=seconds(peek(exc, "retry_after")), rule=rule)
        case Permanent():
            return Verdict.fail(rule="permanent")
        case StoreUnavailable() | StoreFull() | LeaseLost():
            # After LeaseLost the store refuses whatever this run still says; of all verdicts, retry can do no harm.
            return Verdict.retry(rule="store")
        case Draining():
            return Verdict.snooze(0.0, rule="draining")
    return None


def _judge_known(
    exc: BaseException, *, fail_on: Sequence[Listed], retry_on: Sequence[Listed], clock: Clock
) -> Verdict | None:
    built_in = _opinion(partial(judge_by_rules, clock=clock), exc)
    listed = _listed_action(exc, fail_on=fail_on, retry_on=retry_on)
    if listed is None:
        return built_in
    return (built_in or _unknown(listed)).overruled(listed, rule=f"user:{listed}_on")


def _listed_action(
    exc: BaseException, *, fail_on: Sequence[Listed], retry_on: Sequence[Listed]
) -> Literal["fail", "retry"] | None:
    for cls in type(exc).__mro__:
        if _is_listed(cls, fail_on):
            return "fail"
        if _is_listed(cls, retry_on):
            return "retry"
    return None


def _is_listed(cls: type, listed: Sequence[Listed]) -> bool:
    return any(_is_named(cls, entry) if isinstance(entry, str) else cls is entry for entry in listed)


def _is_named(cls: type, path: str) -> bool:
    """Compare with the name of the module that defines the class, or of a loaded one that exports it."""
    path = path.replace(":", ".")
    module, _, name = path.rpartition(".")
    return qualified(cls) == path or peek(sys.modules, module, "__dict__", name) is cls


def _unknown(action: Literal["fail", "retry"]) -> Verdict:
    return Verdict.retry(rule="unknown") if action == "retry" else Verdict.fail(rule="unknown")
