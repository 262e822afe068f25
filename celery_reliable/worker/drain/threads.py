"""Real threads, also where a green pool has patched the standard library.

The watchdog must run while the main thread, and with it every greenlet, is stuck.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def original(module: str, name: str) -> Any:
    """Return a function of the standard library as it was before gevent or eventlet patched it."""
    if "gevent.monkey" in sys.modules:
        from gevent.monkey import get_original  # noqa: PLC0415  # only where it is the pool

        return get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        from eventlet.patcher import original as unpatched  # noqa: PLC0415  # only where it is the pool

        return getattr(unpatched(module), name)
    return getattr(__import__(module), name)


def start_thread(body: Callable[[], None]) -> None:
    """Start a thread of the operating system. It ends with the process."""
    original("_thread", "start_new_thread")(body, ())
