"""Provoke the errors that libraries really raise."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def raised(call: Callable[[], object]) -> BaseException:
    """Return what `call` raises; the test fails if it does not."""
    with pytest.raises(BaseException) as caught:
        call()
    return caught.value


def raise_(exc: BaseException, *, cause: BaseException | None = None) -> NoReturn:
    """Raise, where a statement cannot stand."""
    raise exc from cause


@contextlib.contextmanager
def hold_closed_port() -> Iterator[int]:
    """Hold a port of loopback on which nobody listens, so that nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
