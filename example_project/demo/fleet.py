"""Run the shop's processes, each in a group of its own, and end every one of them by its id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from celery_reliable.testing.processes import family
from example_project.demo.picture import Process, State

POLL_INTERVAL = 0.05

# Reads from a pipe whose other end only we hold: when we die, in whatever way, the read ends and the group is killed.
_REAPER = 'cat >/dev/null; kill -s KILL -- "-$1" 2>/dev/null'


class StoryBroken(Exception):
    """What the story waits for did not happen in time."""


def wait_for(condition: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Return as soon as the condition holds; raise `StoryBroken` at the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            msg = f"waited {timeout:.0f} s in vain until {what}"
            raise StoryBroken(msg)
        time.sleep(POLL_INTERVAL)


class Member:
    """One process of ours in a session of its own: a Ctrl-C in our terminal is not for it."""

    def __init__(self, name: str, *module: str, log: Path, ready: str, environment: Mapping[str, str]) -> None:
        """Start ``python -m module...``; it counts as working once ``ready`` stands in its log."""
        self.name = name
        self.log = log
        self._ready = ready
        self._asked: State = "starting"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module],
                env={**environment, "PYTHONUNBUFFERED": "1"},  # what it says is waited for
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        reaper = ["/bin/sh", "-c", _REAPER, "reaper", str(self.pid)]
        self._reaper = subprocess.Popen(reaper, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        """Return the id of the process, which is that of its group too."""
        return self._process.pid

    @property
    def state(self) -> State:
        """Return how the process stands."""
        if self._asked == "starting" and self._ready in self.log.read_text(encoding="utf-8", errors="replace"):
            self._asked = "working"
        if self._process.poll() is not None and self._asked != "killed":
            return "left"
        return self._asked

    def wait_ready(self, *, timeout: float) -> None:
        """Wait until the process does its work."""
        wait_for(lambda: self.state != "starting", timeout=timeout, what=f"{self.name} is ready")
        if self.state == "left":
            msg = f"{self.name} has left instead of getting ready, see {self.log}"
            raise StoryBroken(msg)

    def ask(self) -> None:
        """Send SIGTERM to the process alone, as a deploy does."""
        self._asked = "draining"
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, as the loss of a machine would be."""
        self._asked = "killed"
        self._kill_group()

    def wait_gone(self, *, timeout: float) -> tuple[int, int]:
        """Wait until the process has left; return its exit code and the number of processes it left behind."""
        wait_for(lambda: self._process.poll() is not None, timeout=timeout, what=f"{self.name} leaves")
        return int(self._process.returncode), len(family(self.pid))

    def close(self) -> None:
        """End the process and whatever is left of its group. May be called twice."""
        self._kill_group()
        self._process.wait()
        self._reaper.kill()
        self._reaper.communicate()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Fleet:
    """Every process of the shop, by name. A name may be started again once its process is gone."""

    def __init__(self, directory: Path, *, guests: Sequence[Process] = ()) -> None:
        """Start nothing yet; logs go to the directory. Guests are only shown: somebody else runs them."""
        self.directory = directory
        self._guests = guests
        self._members: dict[str, Member] = {}
        self._all: list[Member] = []

    def __getitem__(self, name: str) -> Member:
        """Return the process that has this name now."""
        return self._members[name]

    @property
    def processes(self) -> list[Process]:
        """Return what there is to see of each process, by name."""
        return [*(Process(name, each.pid, each.state) for name, each in sorted(self._members.items())), *self._guests]

    def start(self, name: str, *module: str, ready: str, environment: Mapping[str, str] | None = None) -> Member:
        """Start ``python -m module...`` under this name, with our environment and what is added to it here."""
        log = self.directory / f"{name}-{len(self._all)}.log"
        member = Member(name, *module, log=log, ready=ready, environment={**os.environ, **(environment or {})})
        self._members[name] = member
        self._all.append(member)
        return member

    def close(self) -> None:
        """End everything. May be called twice."""
        for member in self._all:
            member.close()
