"""Find free loopback ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from collections import deque

from celery_reliable.testing.servers.binaries import Lookup

LOOPBACK = "127.0.0.1"

# Below every system's range of ephemeral ports, also with 10000 added (the cluster bus): a port that is free now is
# not taken by somebody's outgoing connection before the server binds it.
FIRST, LAST = 15_000, 22_700
ATTEMPTS = 1000
# A server binds its port some time after it was found; until then no other process of ours may find it, too.
_LATEST = 32
_reserved: deque[int] = deque()  # open files, each with a lock


def free_port(*, offsets: tuple[int, ...] = (0,)) -> int:
    """Return a port p such that p + offset is free on loopback for every offset.

    Other processes of this user get other ones, until this process has ended or asked for many more.
    """
    source = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = source.randint(FIRST, LAST)
        if all(_is_free(port + offset) for offset in offsets) and _reserve(port):
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


def _reserve(port: int) -> bool:
    """Lock a file of this port in the servers' cache; where there can be none, ports are found without."""
    try:
        folder = Lookup.from_environment().cache / "ports"
        folder.mkdir(parents=True, exist_ok=True)
        found = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, RuntimeError):  # no home, or not ours to write in
        return True
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return False
    _reserved.append(found)
    if len(_reserved) > _LATEST:
        os.close(_reserved.popleft())
    return True
