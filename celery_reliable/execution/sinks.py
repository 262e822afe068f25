"""Judge what a guarded write is given, whatever library writes it, and what to raise for one that came too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery import current_task

from celery_reliable.errors import ConfigurationError, LeaseLost, ReliableError, Transient
from celery_reliable.execution.life import Execution
from celery_reliable.inbox import is_superseded


def checked_fence(fence: object) -> int:
    """Return a fence that is one. Raises `ConfigurationError`."""
    if not isinstance(fence, int) or isinstance(fence, bool) or fence < 0:
        msg = f"fence: expected a whole number, found {fence!r}; give the self.fence of the run that writes"
        raise ConfigurationError(msg)
    return fence


def refusal(fence: int, *, table: str) -> ReliableError:
    """Return what to raise for a write that met a higher fence.

    `LeaseLost` for a holder that was replaced; `Transient` while its claim is still the last one: then the store forgot
    fences, or its clock went back, and a later attempt has a higher one.
    """
    found = f"{table}: a row was written under a higher fence than {fence}"
    execution = Execution.current(current_task) if current_task else None
    if execution is not None and execution.fence == fence and not is_superseded(execution.inbox_claim()):
        return Transient(f"{found}, though no other run has taken over; a later attempt has a higher fence")
    if fence == 0:
        return LeaseLost(f"{found}; 0 is the fence of code outside a worker, which must not write rows that runs write")
    return LeaseLost(f"{found}: another run took over, this write is refused")


def states_before(from_: Any, *, to: Any) -> tuple[Any, ...]:
    """Return the states from which a row may be moved. Raises `ConfigurationError`: a move to where it is, is none."""
    states = tuple(from_) if isinstance(from_, tuple | list | set | frozenset) else (from_,)
    if not states or to in states:
        msg = f"transition: expected from_ without {to!r}, found {from_!r}; every caller would be told that it moved the row"
        raise ConfigurationError(msg)
    return states


def arbiters(unique: str | Iterable[str], *, value: Callable[[str], Any]) -> tuple[str, ...]:
    """Return the names of the unique columns. Raises `ConfigurationError` for one without a value: NULL equals nothing."""
    names = (unique,) if isinstance(unique, str) else tuple(unique)
    missing = [name for name in names if value(name) is None]
    if missing or not names:
        found = f"found none for {', '.join(missing)}" if missing else "found no column at all"
        raise ConfigurationError(
            f"insert_once: expected a value for each column in unique, {found}; NULLs never collide"
        )
    return names
