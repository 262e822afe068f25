"""Run the shop: its Redis, workers, beats and exporter."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_reliable.testing import servers
from celery_reliable.testing.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
WORKERS = (("web-1", "celery,mails", 4), ("web-2", "celery,mails", 4), ("reports-1", "reports", 2))


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running shop: the environment of its processes, its app, and where its numbers are served."""

    environment: dict[str, str]
    app: Any
    ports: tuple[int, ...]


@contextmanager
def running() -> Iterator[Fleet]:
    """Start a shop; all of it ends with the block."""
    with ExitStack() as stack:
        redis = stack.enter_context(servers.start_redis())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = redis.url.removesuffix("/0")
        os.environ["SHOP_REDIS"] = address  # for the app of this process
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ports = tuple(free_port() for _ in range(len(WORKERS) + 1))
        for (name, queues, slots), port in zip(WORKERS, ports, strict=False):
            words = ("worker", "-P", "threads", "-c", str(slots), "-Q", queues, "-n", f"shop@{name}", "-l", "WARNING")
            stack.enter_context(_process(words, {**environment, "SHOP_METRICS": str(port)}))
        for number in range(2):
            words = ("beat", "-S", "celery_reliable.beat:ReliableScheduler", "-s", str(folder / f"beat-{number}"))
            stack.enter_context(_process((*words, "--pidfile", ""), environment))
        exporter = ("reliable", "exporter", "--port", str(ports[-1]))
        stack.enter_context(_process(exporter, environment))
        from docs.recording.shop import app  # noqa: PLC0415  # reads where the Redis is

        yield Fleet(environment, app, ports)
        app.close()


def submit(fleet: Fleet, number: int) -> None:
    """Let a customer order something."""
    tasks = fleet.app.tasks
    tasks["shop.charge"].delay(number, round(random.uniform(5, 80), 2))
    tasks["shop.mail"].delay(f"customer{number}@example.org" if number % 40 else f"customer{number}", "receipt")
    if number % 12 == 0:
        tasks["shop.report"].delay(number)


@contextmanager
def custom(fleet: Fleet, *, orders: int, a_second: float) -> Iterator[None]:
    """Let customers come during a block; ``orders`` came before."""
    is_over = threading.Event()

    def come() -> None:
        for number in itertools.count(orders):
            if is_over.wait(1 / a_second):
                return
            submit(fleet, number)

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def wait_until(is_so: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    """Return what is found once it is something."""
    ends = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > ends:
            raise TimeoutError("the shop did not come to where it was to be shown")
        time.sleep(0.2)
    return found


@contextmanager
def _process(words: tuple[str, ...], environment: dict[str, str]) -> Iterator[None]:
    command = (sys.executable, "-m", "celery", "-q", "-A", "docs.recording.shop", *words)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
