"""Hold a worker or a beat that runs in a process of its own, and break it as production does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Final

from celery_reliable.testing.processes import children, send, signal_family
from celery_reliable.testing.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_reliable.testing.faultproxy import FaultProxy

READY: Final = " ready."  # what Celery's worker logs once it consumes
READY_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 30.0
SHOWN_LINES: Final = 80


class Running:
    """A process in a session of its own, with its log."""

    def __init__(self, process: Popen[bytes], *, name: str, log: Path, ready: str = READY) -> None:
        """Keep the process; ``ready`` is what it logs once it works."""
        self.process = process
        self.name = name
        self.log = log
        self._ready = ready

    @property
    def pid(self) -> int:
        """The process id of the main process."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Tell whether the main process lives, frozen or not."""
        return self.process.poll() is None

    @property
    def children(self) -> list[int]:
        """The pool children of a prefork worker."""
        return children(self.pid)

    def logs(self) -> str:
        """Return everything the process has printed."""
        return self.log.read_text(errors="replace")

    # --- waiting

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> Self:
        """Return once it works; raise AssertionError with its log if it ends before, or takes too long."""
        wait_until(lambda: self._ready in self.logs() or not self.running, timeout, f"{self.name} ready")
        if not self.running:
            msg = f"{self.name} ended with exit code {self.process.returncode} before it was ready:\n{self.logs()}"
            raise AssertionError(msg)
        return self

    def wait_log(self, text: str, timeout: float = 10.0) -> None:
        """Return once the log has `text`; raise AssertionError at the timeout."""
        wait_until(lambda: text in self.logs(), timeout, f"{text!r} in the log of {self.name}, {self.log}")

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for the main process to end and return its exit code."""
        return self.process.wait(timeout)

    # --- what production does

    def term(self) -> None:
        """Send SIGTERM to the main process, as a supervisor does at a deploy, and return at once."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.term()
        return self.wait(timeout)

    def kill9(self) -> None:
        """Kill main process and children with SIGKILL, as the loss of the machine would."""
        if self.process.returncode is None:
            signal_family(self.pid, signal.SIGKILL)
        self.process.wait()

    def kill_child(self, pid: int | None = None) -> int:
        """Kill one pool child with SIGKILL, as the OOM killer would, and return its pid."""
        victim = self.children[0] if pid is None else pid
        send(victim, signal.SIGKILL)
        return victim

    def freeze(self) -> None:
        """Stop main process and children in their tracks, as an overcommitted host does."""
        signal_family(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        signal_family(self.pid, signal.SIGCONT)

    def last_words(self) -> str:
        """Return the end of the log under a headline, for the report of a failed test."""
        lines = self.logs().splitlines()[-SHOWN_LINES:]
        return "\n".join([f"--- log of {self.name}, exit code {self.process.returncode}", *lines, ""])


class Member(Running):
    """A worker or a beat of a test, whose ways to broker and store can be cut.

    .. versionadded:: 0.1
    """

    def __init__(
        self, process: Popen[bytes], *, name: str, log: Path, ready: str, broker: FaultProxy, store: FaultProxy
    ) -> None:
        """Keep the process and what stands between it and its servers."""
        super().__init__(process, name=name, log=log, ready=ready)
        self.broker, self.store = broker, store

    @contextlib.contextmanager
    def broker_down(self) -> Iterator[None]:
        """Take the broker from this process for a block of code: connections break, new ones are refused."""
        with _cut(self.broker):
            yield

    @contextlib.contextmanager
    def store_down(self) -> Iterator[None]:
        """Take the store from this process for a block of code; broker and result backend stay."""
        with _cut(self.store):
            yield


@contextlib.contextmanager
def _cut(proxy: FaultProxy) -> Iterator[None]:
    proxy.down()
    try:
        yield
    finally:
        proxy.up()
