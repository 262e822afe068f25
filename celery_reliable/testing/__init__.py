"""Test Celery tasks: in memory, or against real servers, real workers and real faults.

`in_memory`, `drain_all`, `assert_submitted` and `assert_idempotent` need no server. With pytest the fixtures
`reliable_worker` and `reliable_beat` run an app in real processes (`Member`) on private servers, and
`reliable_bench` in memory. `celery_reliable.testing.servers` starts servers, `celery_reliable.testing.faultproxy` stands
between.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery_reliable.testing.bench import Bench, Message, assert_submitted, drain_all, in_memory
    from celery_reliable.testing.idempotence import assert_idempotent
    from celery_reliable.testing.running import Member
    from celery_reliable.testing.site import StartBeat, StartWorker

__all__ = [
    "Bench",
    "Member",
    "Message",
    "StartBeat",
    "StartWorker",
    "assert_idempotent",
    "assert_submitted",
    "drain_all",
    "in_memory",
]

_HOMES: Final = {"assert_idempotent": "idempotence", "Member": "running", "StartBeat": "site", "StartWorker": "site"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the servers stand alone, without Celery."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'bench')}"), name)
