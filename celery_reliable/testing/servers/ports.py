"""Find free loopback ports."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"

# Below every system's range of ephemeral ports, also with 10000 added (the cluster bus): a port that is free now is
# not taken by somebody's outgoing connection before the server binds it.
FIRST, LAST = 15_000, 22_700
ATTEMPTS = 1000


def free_port(*, offsets: tuple[int, ...] = (0,)) -> int:
    """Return a port p such that p + offset is free on loopback for every offset."""
    source = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = source.randint(FIRST, LAST)
        if all(_is_free(port + offset) for offset in offsets):
            return port
    message = f"no free port between {FIRST} and {LAST} on {LOOPBACK} in {ATTEMPTS} attempts"
    raise OSError(message)


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
