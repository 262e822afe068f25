"""What every job does, whoever runs it. Standard library only: it is imported in every contender's environment."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

LEDGER: Final = "CR_PEERS_LEDGER"
SERVER: Final = "CR_PEERS_URL"
SECONDS: Final = {"noop": 0.0, "short": 0.2, "medium": 4.0, "long": 25.0, "poison": 0.2}
"""The kinds of jobs, and how long each takes before its effect."""


def work(kind: str, label: str, fence: int = 0) -> None:
    """Note that a job began, take its time, note its effect. ``poison`` kills the process it runs in."""
    if kind != "noop":
        note("start", label, fence)
    if kind == "poison":
        time.sleep(SECONDS[kind])
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(SECONDS[kind])
    note("effect", label, fence)


def note(what: str, label: str, fence: int = 0) -> None:
    """Append a line to the ledger, which outlives this process."""
    row: dict[str, Any] = {"what": what, "label": label, "fence": fence, "at": time.monotonic(), "pid": os.getpid()}
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (json.dumps(row) + "\n").encode())
    finally:
        os.close(descriptor)
