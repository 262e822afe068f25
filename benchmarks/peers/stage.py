"""Run a contender's workers on a private server, and read what its jobs wrote."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.body import LEDGER, SERVER
from benchmarks.peers.environments import ROOT, environment
from celery_reliable.testing import servers
from celery_reliable.testing.processes import family, send, signal_family

if TYPE_CHECKING:
    from benchmarks.peers.contenders import Contender

_LOOK = 0.05
_READY = 30.0  # seconds that a worker may take to run its first job
_WORD = 60.0  # seconds for one submission


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the ledger."""

    what: str
    label: str
    fence: int
    at: float
    pid: int


class Worker:
    """One worker of a contender, with its children."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Take the running process, which leads a session of its own."""
        self._process = process

    @property
    def running(self) -> bool:
        """Whether its main process lives."""
        return self._process.poll() is None

    @property
    def family(self) -> list[int]:
        """Its processes."""
        return family(self._process.pid)

    def kill(self) -> None:
        """Kill it and all its children."""
        signal_family(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Stop it and all its children in their tracks."""
        signal_family(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        signal_family(self._process.pid, signal.SIGCONT)

    def deploy(self, grace: float) -> float:
        """Tell it to stop, kill it after the grace as a supervisor does; return how long it took."""
        began = time.monotonic()
        send(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        took = time.monotonic() - began
        self.kill()
        return took


class Stage:
    """A private server, a ledger, and one contender's processes."""

    def __init__(self, contender: Contender, server: servers.Server, folder: Path) -> None:
        """Use what `on_stage` made."""
        self.contender, self.server = contender, server
        self._folder, self._bin = folder, environment(contender)
        self._workers: list[Worker] = []
        self._beside: Worker | None = None
        self._numbers = itertools.count(1)

    # --- processes

    def start(self, *, processes: int = 2) -> Worker:
        """Start a worker, and return when it has run a job."""
        self._start_beside()
        worker = self.start_only(processes=processes)
        number = next(self._numbers)
        self.send("noop", f"ready-{number}")
        self.wait(lambda: self.count("effect", f"ready-{number}"), _READY)
        return worker

    def start_only(self, *, processes: int = 2) -> Worker:
        """Start a worker without waiting for it."""
        facts = {"processes": processes, "url": self.server.url}
        return self._begin(*(word.format(**facts) for word in self.contender.command))

    def _start_beside(self) -> None:
        """Start what runs beside the workers, unless it does."""
        if self.contender.beside and not self._beside:
            self._beside = self._begin(*self.contender.beside)

    def _begin(self, program: str, *words: str) -> Worker:
        with (self._folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._bin / program), *words],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(Worker(process))
        return self._workers[-1]

    def run(self, program: str, *words: str) -> str:
        """Run a program of the contender's environment to its end."""
        command = [str(self._bin / program), *words]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment(), check=True, capture_output=True, text=True, timeout=_WORD
        )
        return done.stdout

    def send(self, *words: str) -> list[str]:
        """Submit jobs, each a kind and a label; return the labels that were refused."""
        said = self.run("python", "-m", "benchmarks.peers.send", self.contender.module_path, *words)
        return [line.split()[0] for line in said.splitlines() if " refused: " in line]

    def _environment(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        ours = {LEDGER: str(self._folder / "ledger.jsonl"), SERVER: self.server.url, "PYTHONPATH": str(ROOT)}
        own = {name: value.format(url=self.server.url) for name, value in self.contender.variables}
        return {**inherited, **ours, **own, "PATH": f"{self._bin}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def close(self) -> None:
        """Kill what was started."""
        for worker in self._workers:
            worker.kill()

    # --- the ledger

    @property
    def rows(self) -> list[Row]:
        """All that the jobs wrote."""
        path = self._folder / "ledger.jsonl"
        return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def of(self, what: str, label: str) -> list[Row]:
        """Return a job's rows of one kind."""
        return [row for row in self.rows if (row.what, row.label) == (what, label)]

    def count(self, what: str, label: str) -> int:
        """Return how many a job has."""
        return len(self.of(what, label))

    def wait(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Wait until something holds; return whether it did in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(_LOOK)
        return False


@contextlib.contextmanager
def on_stage(contender: Contender) -> Iterator[Stage]:
    """Give a contender a fresh server and an empty ledger."""
    start = servers.start_postgres if contender.database else servers.start_redis
    with start() as server, tempfile.TemporaryDirectory(prefix="peers-") as folder:
        stage = Stage(contender, server, Path(folder))
        try:
            if contender.first:
                stage.run(*contender.first)
            yield stage
        finally:
            stage.close()
