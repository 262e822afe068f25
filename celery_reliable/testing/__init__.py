"""Test Celery tasks: in memory, or against real servers, real workers and real faults.

`in_memory`, `drain_all`, `assert_submitted` and `assert_idempotent` need no server. `celery_reliable.testing.servers`
starts private ones, `celery_reliable.testing.faultproxy` stands between.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery_reliable.testing.bench import Bench, Message, assert_submitted, drain_all, in_memory
    from celery_reliable.testing.idempotence import assert_idempotent

__all__ = ["Bench", "Message", "assert_idempotent", "assert_submitted", "drain_all", "in_memory"]

_HOMES: Final = {"assert_idempotent": "idempotence"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the servers stand alone, without Celery."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'bench')}"), name)
