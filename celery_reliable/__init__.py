"""Make an ordinary Celery project survive deploys, killed workers, double deliveries and a broker that goes away.

The public names are imported when they are first used: importing the package alone imports neither Celery nor Redis,
so that a probe or a settings module starts in milliseconds.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # the one of `typing` costs the probe as much as all of its own work
if TYPE_CHECKING:
    from celery_reliable.dead_letters import DeadLetter
    from celery_reliable.errors import (
        ConfigurationError,
        Draining,
        DuplicateTask,
        LeaseLost,
        PayloadMismatch,
        Permanent,
        QueueFull,
        ReliableError,
        Snooze,
        StoreError,
        StoreUnavailable,
        Transient,
    )
    from celery_reliable.keys import scope
    from celery_reliable.retries import Verdict
    from celery_reliable.task import ReliableTask
    from celery_reliable.wiring import install

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DeadLetter",
    "Draining",
    "DuplicateTask",
    "LeaseLost",
    "PayloadMismatch",
    "Permanent",
    "QueueFull",
    "ReliableError",
    "ReliableTask",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "Transient",
    "Verdict",
    "install",
    "scope",
]

_ELSEWHERE = {
    "DeadLetter": "celery_reliable.dead_letters",
    "ReliableTask": "celery_reliable.task",
    "Verdict": "celery_reliable.retries",
    "install": "celery_reliable.wiring",
    "scope": "celery_reliable.keys",
}


def __getattr__(name: str) -> object:  # checkers read the imports above
    """Import a public name on first use."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_ELSEWHERE.get(name, "celery_reliable.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
