"""Run one real worker and read what its tasks noted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import RECORD, Case
from celery_reliable.testing.processes import children, signal_family

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
STOP_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that was started for one case."""

    process: subprocess.Popen[bytes]
    journal: Path
    log: Path

    @property
    def pids(self) -> list[int]:
        """The main process and its pool children."""
        return [self.process.pid, *children(self.process.pid)]

    def wait_for(self, jobs: int) -> list[int]:
        """Return the time of every run, in nanoseconds and in order, once that many jobs ran."""
        self.wait_until(lambda: self.journal.stat().st_size >= jobs * RECORD.size, f"{jobs} jobs")
        return sorted(moment for _, moment in RECORD.iter_unpack(self.journal.read_bytes()))

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll, or raise TimeoutError with the worker's log."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                msg = f"not within {PATIENCE:g} s: {what}; the worker said:\n{self.log.read_text(errors='replace')[-4000:]}"
                raise TimeoutError(msg)
            time.sleep(0.02)


def environment(case: Case, *, broker: str, store: str, journal: Path) -> dict[str, str]:
    """Return what `benchmarks.worker_app` reads, and the rest."""
    named = {"CASE": case.to_text(), "BROKER": broker, "STORE": store, "JOURNAL": str(journal)}
    return {**os.environ, **{f"BENCHMARK_{name}": value for name, value in named.items()}}


@contextmanager
def worker(case: Case, *, broker: str, store: str, concurrency: int = 2, pool: str = "prefork") -> Iterator[Worker]:
    """Start ``celery worker`` for a case; it is stopped in order, and killed if it does not end."""
    with tempfile.TemporaryDirectory(prefix="celery-reliable-bench-") as directory:
        journal, log = Path(directory, "journal"), Path(directory, "log")
        journal.touch()
        named = environment(case, broker=broker, store=store, journal=journal)
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.worker_app", "worker", "--loglevel", "WARNING"]
        command += ["--pool", pool, "--concurrency", str(concurrency)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=named, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield Worker(process, journal, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        signal_family(process.pid, signal.SIGKILL)
        process.wait()
