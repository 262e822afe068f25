"""Run the workers and beats of one test, on servers of its own, and send what the test submits there.

The app is named as after ``celery -A``. While a site is open, the app in the test's own process has the site's broker,
result backend and store as well; after it, its settings are what they were.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from celery.app.utils import find_app

from celery_reliable import internals
from celery_reliable.runtime import consumed_driver, forget_runtime
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.testing.processes import reap_after_us
from celery_reliable.testing.running import READY, Member
from celery_reliable.testing.servers.ports import LOOPBACK

if TYPE_CHECKING:
    from celery import Celery
    from typing_extensions import Self

__all__ = ["Addresses", "Site", "StartBeat", "StartWorker"]

LAUNCHER: Final = "celery_reliable.testing.launch"
SCHEDULER: Final = "celery_reliable.beat:ReliableScheduler"
LEADS: Final = "this beat leads"
LEASE: Final = 3.0  # seconds, the least that `reliable_lease_ttl` takes: what a dead worker held is back soon after

# Celery (5.7) lets these win over every setting.
FOREIGN: Final = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The URLs of a site's servers. Broker and store must name host and port."""

    broker: str
    backend: str
    store: str

    def settings(self) -> dict[str, Any]:
        """Return them as settings of an app."""
        broker = dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), self.broker)
        return {**broker, "result_backend": self.backend, "reliable_store_url": self.store}


class StartWorker(Protocol):
    """What the fixture ``reliable_worker`` is: start a worker of an app.

    .. versionadded:: 0.1
    """

    def __call__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Iterable[str] = (),
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
        ready: bool = True,
    ) -> Member:
        """Return the worker once it consumes, or at once with ``ready=False``. ``conf`` must be JSON."""
        ...


class StartBeat(Protocol):
    """What the fixture ``reliable_beat`` is: start a beat of an app, under `ReliableScheduler`.

    .. versionadded:: 0.1
    """

    def __call__(
        self,
        app: str,
        *,
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Member:
        """Return the beat once it leads, or at once with ``ready=False``: a second one stands by. ``conf`` must be JSON."""
        ...


class Site:
    """The processes of one test and their servers. A context manager: all of them are killed at its end."""

    def __init__(self, addresses: Addresses, *, directory: Path) -> None:
        """Keep logs and schedules in `directory`; nothing runs yet."""
        self._addresses = addresses
        self._directory = directory
        self._numbers = itertools.count(1)
        self._started: list[Member] = []
        self._apps: dict[str, Celery] = {}
        self._queues: set[str] = set()
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Let no variable of the environment name another broker."""
        self._exits.enter_context(_without_environment(FOREIGN))
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what runs, print its last words (pytest shows them if the test failed), give the apps their settings back."""
        self._exits.callback(self._empty_queues)
        for member in reversed(self._started):
            member.kill9()
        sys.stdout.write("".join(member.last_words() for member in self._started))
        self._exits.close()

    def start_worker(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Iterable[str] = (),
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
        ready: bool = True,
    ) -> Member:
        """See `StartWorker`."""
        name, queues = f"worker{next(self._numbers)}", tuple(queues)
        self._queues.update(queues)
        words = ["worker", "--loglevel", "INFO", "--hostname", f"{name}@%h", "--without-mingle", "--without-gossip"]
        words += ["--pool", pool, "--concurrency", str(concurrency), *_queue_words(queues), *arguments]
        worker = self._start(app, words, name=name, ready=READY, conf=conf, env=env)
        return worker.wait_ready() if ready else worker

    def start_beat(
        self,
        app: str,
        *,
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Member:
        """See `StartBeat`."""
        name = f"beat{next(self._numbers)}"
        words = ["beat", "--loglevel", "INFO", "--scheduler", SCHEDULER, "--pidfile", ""]
        words += ["--schedule", str(self._directory / f"{name}.schedule")]
        beat = self._start(app, words, name=name, ready=LEADS, conf=conf, env=env)
        return beat.wait_ready() if ready else beat

    def _start(
        self,
        app: str,
        words: list[str],
        *,
        name: str,
        ready: str,
        conf: Mapping[str, Any] | None,
        env: Mapping[str, str] | None,
    ) -> Member:
        self._redirect(app)
        broker, store = (self._proxy(url) for url in (self._addresses.broker, self._addresses.store))
        addresses = Addresses(
            broker=_through(broker, self._addresses.broker),
            backend=self._addresses.backend,
            store=_through(store, self._addresses.store),
        )
        settings = {"reliable_lease_ttl": LEASE, **addresses.settings(), **(conf or {})}
        log = self._directory / f"{name}.log"
        process = _spawn([LAUNCHER, app, json.dumps(settings), *words], log=log, env=env or {})
        self._exits.callback(_call_off, reap_after_us(process.pid, directory=self._directory / f"{name}.d"))
        member = Member(process, name=name, log=log, ready=ready, broker=broker, store=store)
        self._started.append(member)
        return member

    def _redirect(self, name: str) -> None:
        """Have the app in this process submit to the site, from its first worker or beat on."""
        if name not in self._apps:
            self._apps[name] = app = find_app(name)
            self._exits.enter_context(_redirected(app, self._addresses.settings()))

    def _proxy(self, url: str) -> FaultProxy:
        parts = urlsplit(url)
        if parts.port is None or parts.hostname is None:
            msg = f"expected a broker and a store with host and port, found {url!r}; see the fixtures reliable_broker_url and reliable_store_url"
            raise ValueError(msg)
        return self._exits.enter_context(FaultProxy(parts.port, host=parts.hostname))

    def _empty_queues(self) -> None:
        """Delete the queues of a RabbitMQ, which serves the next test too."""
        for app in self._apps.values():
            if consumed_driver(app) == "amqp":
                with app.connection_for_write() as connection:
                    for queue in {*self._queues, *app.amqp.queues}:
                        connection.default_channel.queue_delete(queue)


@contextlib.contextmanager
def _redirected(app: Celery, settings: Mapping[str, Any]) -> Iterator[None]:
    with internals.changed_settings(app, {**settings, "reliable_lease_ttl": LEASE}):
        forget_runtime(app)
        try:
            yield
        finally:
            forget_runtime(app)


def _spawn(words: list[str], *, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Python on a module, with the import path of this process."""
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _call_off(reaper: subprocess.Popen[bytes]) -> None:
    reaper.kill()
    reaper.communicate()


def _queue_words(queues: tuple[str, ...]) -> list[str]:
    return ["--queues", ",".join(queues)] if queues else []


def _through(proxy: FaultProxy, url: str) -> str:
    """Return a URL that leads through a proxy."""
    parts = urlsplit(url)
    who, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{who}{at}{LOOPBACK}:{proxy.port}").geturl()


@contextlib.contextmanager
def _without_environment(names: Iterable[str]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
