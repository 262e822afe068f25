"""Run real Celery workers as subprocesses."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.processes import children, send, signal_family
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).resolve().parents[2]
READY = " ready."
READY_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0
SHOWN_LINES = 80


class Worker:
    """A running ``celery worker`` in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes], *, name: str, log: Path) -> None:
        """Keep the process; `start_worker` makes it."""
        self.process = process
        self.name = name
        self.log = log

    @property
    def pid(self) -> int:
        """The process id of the worker's main process."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Tell whether the main process lives."""
        return self.process.poll() is None

    @property
    def children(self) -> list[int]:
        """The pool children of a prefork worker."""
        return children(self.pid)

    def logs(self) -> str:
        """Return everything the worker has printed."""
        return self.log.read_text(errors="replace")

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> Worker:
        """Return once the worker consumes; fail with its log if it ends before."""
        wait_until(lambda: READY in self.logs() or not self.running, timeout, f"worker {self.name} ready")
        assert self.running, f"worker {self.name} ended with {self.process.returncode}:\n{self.logs()}"
        return self

    def wait_log(self, text: str, timeout: float = 10.0) -> None:
        """Return once the log has `text`."""
        wait_until(lambda: text in self.logs(), timeout, f"{text!r} in the log of worker {self.name}")

    def terminate(self) -> None:
        """Send SIGTERM to the main process, as a supervisor does, and return at once."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for the main process to end and return its exit code."""
        return self.process.wait(timeout)

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.terminate()
        return self.wait(timeout)

    def kill(self) -> None:
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
        """Stop main process and children in their tracks."""
        signal_family(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen worker go on."""
        signal_family(self.pid, signal.SIGCONT)


class Workers:
    """The workers of one test."""

    def __init__(self, directory: Path) -> None:
        """Keep their logs in `directory`."""
        self._directory = directory
        self._numbers = itertools.count(1)
        self._started: list[Worker] = []

    def start(
        self,
        app_module: str,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Iterable[str] = (),
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        arguments: Iterable[str] = (),
        ready: bool = True,
    ) -> Worker:
        """Start a worker, by default until it is ready. It is killed when the test ends."""
        worker = start_worker(
            app_module,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            name=name or f"worker{next(self._numbers)}",
            env=env,
            cwd=cwd,
            arguments=arguments,
            directory=self._directory,
        )
        self._started.append(worker)
        return worker.wait_ready() if ready else worker

    def close(self) -> None:
        """Kill what still runs, and print the logs: pytest shows them if the test failed."""
        for worker in self._started:
            worker.kill()
            lines = worker.logs().splitlines()[-SHOWN_LINES:]
            sys.stdout.write(f"--- log of {worker.name}, exit code {worker.process.returncode}\n")
            sys.stdout.write("\n".join(lines) + "\n")


def start_worker(
    app_module: str,
    *,
    pool: str = "prefork",
    concurrency: int = 1,
    queues: Iterable[str] = (),
    name: str = "worker",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    arguments: Iterable[str] = (),
    directory: Path | None = None,
) -> Worker:
    """Start ``celery -A app_module worker`` in its own session, logging to a file, and return at once.

    `app_module` is importable from the repository's root or from `cwd`. The caller has to `kill` it: prefer the
    fixture ``workers``.
    """
    log = (directory or Path(tempfile.mkdtemp(prefix="celery-reliable-worker-"))) / f"{name}.log"
    command = _command(app_module, pool=pool, concurrency=concurrency, queues=queues, name=name)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=cwd or ROOT,
            env=_environment(env, cwd=cwd),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(process, name=name, log=log)


def _command(app_module: str, *, pool: str, concurrency: int, queues: Iterable[str], name: str) -> list[str]:
    command = [sys.executable, "-m", "celery", "-A", app_module, "worker", "--loglevel", "INFO"]
    command += ["--pool", pool, "--concurrency", str(concurrency), "--hostname", f"{name}@%h"]
    return [*command, "--queues", ",".join(queues)] if queues else command


def _environment(env: Mapping[str, str] | None, *, cwd: Path | str | None) -> dict[str, str]:
    paths = [str(path) for path in (cwd, ROOT, os.environ.get("PYTHONPATH")) if path]
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
