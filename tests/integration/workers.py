"""Run real Celery workers as subprocesses."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.running import Running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).resolve().parents[2]


class Worker(Running):
    """A running ``celery worker`` (or beat) in a session of its own."""

    terminate = Running.term
    kill = Running.kill9


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
            sys.stdout.write(worker.last_words())


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
