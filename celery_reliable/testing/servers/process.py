"""Run one private server process."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.processes import family, process_table, reap_after_us, send, signal_family
from celery_reliable.testing.servers.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

POLL_INTERVAL = 0.02
STOP_TIMEOUT = 20.0
LOG_TAIL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to run one server: `answers` is true once it serves, and may raise OSError before."""

    name: str
    url: str
    port: int
    directory: Path
    command: tuple[str, ...]
    answers: Callable[[], bool]
    environment: Mapping[str, str] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout: float = 30.0
    user: str | None = None


def private_directory(name: str) -> Path:
    """Make the directory of one server, which only this user can read."""
    return Path(tempfile.mkdtemp(prefix=f"celery-reliable-{name}-"))


class Server:
    """A real server process of our own, on loopback, in its own session.

    `stop` and `kill` keep port and data, so that `start` or `restart` brings the same server back; `close` ends it for
    good. It is closed at exit, and killed if this process dies without one.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Keep the recipe; nothing runs before `start`."""
        self._recipe = recipe
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The kind of server."""
        return self._recipe.name

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._recipe.url

    @property
    def port(self) -> int:
        """The loopback port, the same for the life of this object."""
        return self._recipe.port

    @property
    def directory(self) -> Path:
        """Data, configuration and log."""
        return self._recipe.directory

    @property
    def log(self) -> Path:
        """Everything the server printed, over all its starts."""
        return self.directory / "log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None or not self.running:
            message = f"{self.name} does not run; call start() first"
            raise ServerUnavailable(message)
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether the process lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process unless it runs, and return once it answers."""
        if self.running:
            return self
        atexit.register(self.close)
        self._forget()
        self._spawn()
        try:
            self._wait_for_answer()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ask the server to end, then make sure; the data stay."""
        if self._process is not None and self.running:
            self.thaw()
            send(self._process.pid, self._recipe.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """Kill the server and its children with SIGKILL, as a crash of the machine would; the files stay."""
        if self._process is not None:
            members = family(self._process.pid)
            signal_family(self._process.pid, signal.SIGKILL)
            self._process.wait()
            _wait_gone(members)
        self._forget()

    def freeze(self) -> None:
        """Stop the server in its tracks: connections stay open, nothing answers."""
        signal_family(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        signal_family(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port with the same data."""
        self.stop()
        self.start()

    def revive(self) -> None:
        """Bring the server back from whatever a test did to it."""
        if self.running:
            self.thaw()
        self.start()

    def close(self) -> None:
        """End the server and delete its files. May be called twice."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._recipe.command,
                env=self._recipe.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=self._recipe.user,
            )
        self._reaper = reap_after_us(self._process.pid, directory=self.directory)

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + self._recipe.start_timeout
        while time.monotonic() < deadline and self.running:
            if self._answers():
                return
            time.sleep(POLL_INTERVAL)
        raise ServerUnavailable(self._failure())

    def _answers(self) -> bool:
        try:
            return self._recipe.answers()
        except OSError:
            return False

    def _failure(self) -> str:
        what = "did not answer in time" if self.running else "ended while starting"
        tail = self.log.read_text(errors="replace")[-LOG_TAIL:]
        return f"{self.name} {what}: {' '.join(self._recipe.command)}\n{tail}"

    def _forget(self) -> None:
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.communicate()
        self._reaper = self._process = None


def _wait_gone(pids: Iterable[int]) -> None:
    """Wait until none of these lives: what was killed holds its memory and its port until then, and a restart would find them."""
    left, deadline = set(pids), time.monotonic() + STOP_TIMEOUT
    while left & {entry.pid for entry in process_table()} and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
