"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
POLL_INTERVAL: Final = 0.05


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Return the first true value of `predicate`, polled until the deadline, or raise AssertionError that says `what`.

    An exception of the predicate fails at once: suppress in the predicate what may happen on the way.
    """
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            msg = f"not within {timeout:g} s: {what or predicate}; last value {value!r}"
            raise AssertionError(msg)
        time.sleep(POLL_INTERVAL)
    return value
