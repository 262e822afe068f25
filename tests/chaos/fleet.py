"""Keep workers and producers running: what ends is started again, as a supervisor does."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery_reliable.testing.processes import children, family, process_table, send, signal_family
from tests.chaos.clocks import FakeClock
from tests.chaos.ledger import Ledger
from tests.chaos.site import Site

ROOT = Path(__file__).resolve().parents[2]
_LOOK = 0.1
_RESTART = 0.3  # seconds from the end of a process to its successor
_GRACE = 12.0  # seconds from SIGTERM to the supervisor's SIGKILL
_STOP = 20.0
_STARTED = b"--- start"
_READY = b" ready."


class Member:
    """One place in the fleet, and the process that fills it at the moment."""

    def __init__(self, site: Site, command: Sequence[str], *, clock: FakeClock | None = None) -> None:
        """Nothing runs before `start`."""
        self.site = site
        self.name = site.party
        self.clock = clock
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = itertools.count(1)
        self.ended_at: float | None = None
        self._killed_by: float | None = None
        self._orphans: set[int] = set()

    @property
    def pid(self) -> int:
        """The main process, 0 when there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def children(self) -> list[int]:
        """The children of the main process."""
        pid = self.pid  # asked once: it may end at any moment
        return children(pid) if pid else []

    @property
    def ready(self) -> bool:
        """Whether the worker has said, since its last start, that it consumes."""
        return _READY in self._log.read_bytes().rpartition(_STARTED)[2]

    @property
    def _log(self) -> Path:
        return self.site.directory / f"{self.name}.log"

    @property
    def family(self) -> list[int]:
        """Main process and all it started."""
        pid = self.pid
        return family(pid) if pid else []

    def roll(self, version: int | None = None) -> None:
        """Have the next process run a version of the code; not given, the other one."""
        self.site = replace(self.site, version=version or 3 - self.site.version)

    def _environment(self) -> dict[str, str]:
        clock = self.clock.environment() if self.clock is not None else {}
        root = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **self.site.environment(), **clock, **root}

    def start(self) -> None:
        """Start a process in a session of its own, its output in a log."""
        with self._log.open("ab") as log:
            log.write(_STARTED + f" {next(self._starts)} at {time.monotonic():.3f}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.ended_at = self._killed_by = None

    def terminate(self) -> None:
        """Ask the main process to end; `supervise` kills it when its time is over."""
        if pid := self.pid:
            send(pid, signal.SIGTERM)
            self._killed_by = time.monotonic() + _GRACE

    def supervise(self, ledger: Ledger) -> None:
        """Note an end, and that of the children left behind; some time later start again."""
        if self._process is None:
            return
        self._note_orphans(ledger)
        if pid := self.pid:
            if self._killed_by is not None and time.monotonic() > self._killed_by:
                self._kill_overdue(pid, ledger)
            return
        if self.ended_at is None:
            self.ended_at = time.monotonic()
            left = family(self._process.pid)
            self._orphans.update(left)
            facts: dict[str, Any] = {"main": self._process.pid, "code": self._process.returncode, "orphans": left}
            ledger.note("gone", target=self.name, **facts)
        elif time.monotonic() - self.ended_at > _RESTART:
            self.start()

    def _note_orphans(self, ledger: Ledger) -> None:
        for pid in {one for one in self._orphans if not _lives(one)}:
            self._orphans.discard(pid)
            ledger.note("gone", target=self.name, main=pid, orphan=True)

    def _kill_overdue(self, pid: int, ledger: Ledger) -> None:
        ledger.note("fault", kind="kill overdue", name=f"overdue#{pid}", victims=family(pid), target=self.name)
        signal_family(pid, signal.SIGKILL)
        self._killed_by = None

    def close(self) -> None:
        """Kill the process, and whatever is left of its session and of those before."""
        for pid in self._orphans:
            send(pid, signal.SIGKILL)
        if self._process is not None:
            signal_family(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ask the process to end, wait, then make sure."""
        if self._process is not None:
            signal_family(self._process.pid, signal.SIGCONT)
            send(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP)
        self.close()


class Fleet:
    """All members, and the thread that supervises them."""

    def __init__(self, members: Sequence[Member], ledger: Ledger) -> None:
        """Take members that are not started yet."""
        self.members = {member.name: member for member in members}
        self._ledger = ledger
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="chaos-supervisor", daemon=True)

    def start(self) -> None:
        """Start everybody."""
        for member in self.members.values():
            member.start()
        self._thread.start()

    def _supervise(self) -> None:
        while not self._stopped.wait(_LOOK):
            with self._lock:
                for member in self.members.values():
                    member.supervise(self._ledger)

    def on(self, name: str, act: Callable[[Member], None]) -> None:
        """Do something to a member while nobody restarts it."""
        with self._lock:
            act(self.members[name])

    def retire(self, name: str) -> None:
        """Let a member end in its own time, and start it no more."""
        with self._lock:
            self.members.pop(name).stop()

    def close(self, *, kindly: bool = False) -> None:
        """End the supervision and everybody."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for member in self.members.values():
            member.stop() if kindly else member.close()


def _lives(pid: int) -> bool:
    return any(entry.pid == pid for entry in process_table())


def worker(
    site: Site, *, pool: str, concurrency: int, app: str = "tests.chaos.worker_app", clock: FakeClock | None = None
) -> Member:
    """Return the place of one worker."""
    options = ["--pool", pool, "--concurrency", str(concurrency), "--hostname", f"{site.party}@%h"]
    quick = ["--without-mingle", "--without-gossip", "--loglevel", "INFO"]
    return Member(site, [sys.executable, "-m", "celery", "-A", app, "worker", *options, *quick], clock=clock)


def beat(site: Site, *, app: str = "tests.chaos.worker_app", clock: FakeClock | None = None) -> Member:
    """Return the place of one beat."""
    options = ["-S", "celery_reliable.beat:ReliableScheduler", "--loglevel", "INFO"]
    files = ["--schedule", str(site.directory / f"{site.party}.schedule"), "--pidfile", ""]
    return Member(site, [sys.executable, "-m", "celery", "-A", app, "beat", *options, *files], clock=clock)


def producer(site: Site, *, clock: FakeClock | None = None) -> Member:
    """Return the place of one producer."""
    return Member(site, [sys.executable, "-m", "tests.chaos.producer"], clock=clock)
