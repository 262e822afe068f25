"""Tell a canvas again what it could not be told, under the ids that it was told it under before."""

from __future__ import annotations

from typing import Any

from celery_reliable import internals, keys
from celery_reliable.errors import QueueFull, StoreError, Transient


def cured_by_time() -> tuple[type[Exception], ...]:
    """Return what is raised while store, broker, result backend or folder are away, or have no room."""
    return (StoreError, QueueFull, Transient, *internals.away())


def keep_chord(backend: Any) -> Any:
    """Return a result backend that tells chords, or raises `internals.ChordNotSent` where it is not over for one."""
    return internals.keep_chord(backend, cured_by_time, with_ids)


def with_ids(signature: Any, *names: str) -> Any:
    """Give a signature, and all members of a canvas, ids that follow from the names; ids that are there stay."""
    signature.options.setdefault("task_id", keys.derived_id(*names))
    members = list(getattr(signature, "tasks", None) or ())
    for position, member in enumerate(members):
        with_ids(member, *names, str(position))
    body = getattr(signature, "body", None)
    if body is not None and members:
        with_ids(body, *names, "body")
    return signature
