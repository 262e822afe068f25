"""Run workers that are stopped and killed, and look at their queue and their journal."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.fleet import ROOT
from benchmarks.fleet.jobs import QUEUE, Entry, Fleet, make_app, read
from celery_reliable.runtime import forget_runtime
from celery_reliable.testing.processes import children, signal_family
from celery_reliable.testing.servers import Server, start_redis

T = TypeVar("T")
PATIENCE = 180.0
_LOOK = 0.005
_ARGUMENTS = ("--without-mingle", "--without-gossip", "--loglevel", "INFO", "-Q", QUEUE)


def until(condition: Callable[[], T], what: str, *, patience: float = PATIENCE) -> T:
    """Return the first true answer, or raise TimeoutError."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        if time.monotonic() > deadline:
            msg = f"not within {patience:g} s: {what}"
            raise TimeoutError(msg)
        time.sleep(_LOOK)
    return answer


class Hand:
    """One worker."""

    def __init__(self, process: subprocess.Popen[bytes], *, log: Path) -> None:
        """Take the process."""
        self.process, self.log = process, log

    @property
    def pids(self) -> list[int]:
        """The main process and its children."""
        return [self.process.pid, *children(self.process.pid)]

    def is_ready(self) -> bool:
        """Whether it consumes."""
        said = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            msg = f"the worker ended with {self.process.returncode}:\n{said[-4000:]}"
            raise RuntimeError(msg)
        return " ready." in said

    def stop(self) -> float:
        """Send SIGTERM; return when."""
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def wait(self) -> float:
        """Return when it was gone."""
        self.process.wait(PATIENCE)
        return time.monotonic()

    def kill(self) -> float:
        """Kill main process and children; return when."""
        signal_family(self.process.pid, signal.SIGKILL)
        killed = time.monotonic()
        self.process.wait()
        return killed


class Crew:
    """The workers of one figure, on servers that hold nothing else."""

    def __init__(self, fleet: Fleet, *, folder: Path, cleanup: ExitStack) -> None:
        """Make the app to submit with."""
        self._fleet, self._folder, self._cleanup = fleet, folder, cleanup
        self._journal, self._started = Path(fleet.journal), 0
        self.app = make_app(fleet)
        cleanup.callback(forget_runtime, self.app)

    def start(self, pool: str = "prefork", *, concurrency: int = 1, arguments: tuple[str, ...] = ()) -> Hand:
        """Start a worker that is ready. It is killed at the end."""
        self._started += 1
        log = self._folder / f"log-{self._started}"
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.fleet.jobs", "worker", *_ARGUMENTS, *arguments]
        command += ["--pool", pool, "--concurrency", str(concurrency), "--hostname", f"hand{self._started}@%h"]
        with log.open("wb") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True}
            process = subprocess.Popen(command, cwd=ROOT, env=self._fleet.environment(), **options)
        hand = Hand(process, log=log)
        self._cleanup.callback(lambda: None if process.returncode is not None else hand.kill())
        until(hand.is_ready, f"worker {self._started} ready")
        return hand

    def submit(self, task: str, *arguments: Any, **options: Any) -> None:
        """Send a task."""
        self.app.tasks[task].apply_async(arguments, **options)

    def entries(self, number: int | None = None, what: str = "start") -> list[Entry]:
        """Return what was noted."""
        noted = read(self._fleet.journal)
        return [one for one in noted if one.what == what and number in {None, one.number}]

    def count(self) -> int:
        """Count what was noted; thousands of entries are read once, not each time."""
        return self._journal.read_bytes().count(b"\n")

    def wait_start(self, number: int, *, times: int = 1) -> Entry:
        """Return the start of a task, the first or a later one."""
        return until(lambda: self.entries(number)[times - 1 : times], f"start {times} of task {number}")[0]

    def waiting(self) -> int:
        """Count the messages that no worker holds."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            if hasattr(channel, "_size"):  # a Redis list that is empty does not exist
                return int(channel._size(QUEUE))  # noqa: SLF001  # no public name (kombu 5.7)
            return int(channel.queue_declare(QUEUE, passive=True).message_count)


@contextmanager
def crew(*, broker: Server | None = None, **settings: Any) -> Iterator[Crew]:
    """Make a crew with a Redis of its own; with another broker if one is given, whose queue is emptied."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="celery-reliable-fleet-")))
        redis = cleanup.enter_context(start_redis(config={"appendonly": "no"}))
        journal = folder / "journal"
        journal.touch()
        url = broker.url if broker else redis.url
        fleet = Fleet(url, redis.url.removesuffix("/0") + "/1", str(journal), settings)
        made = Crew(fleet, folder=folder, cleanup=cleanup)
        with made.app.connection_for_write() as connection:
            queue = made.app.amqp.queues[QUEUE](connection.default_channel)
            queue.declare()
            queue.purge()
        yield made
