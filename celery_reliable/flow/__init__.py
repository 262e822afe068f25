"""Keep a dependency, a tenant and a queue from being flooded by the whole fleet.

``from celery_reliable.flow import breaker`` is public; it lives above this package, since it looks for the app.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_reliable.guard import breaker

__all__ = ["breaker"]


def __getattr__(name: str) -> Any:
    """Import the public name on first use."""
    if name != "breaker":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return import_module("celery_reliable.guard").breaker
