"""Time one probe of a worker, ours beside ``celery inspect ping``, taking turns."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import OWN
from benchmarks.fleet import ROOT, environment, worker
from celery_reliable.heartbeats import HeartbeatFile, LifeSign, Process
from celery_reliable.testing.servers import RedisServer

_PING = (sys.executable, "-m", "celery", "-A", "benchmarks.worker_app", "inspect", "ping", "--timeout", "10")


@dataclass(frozen=True, slots=True)
class Probing:
    """Milliseconds a probe, wall and CPU time: of the quickest, since whatever else runs only ever adds to one."""

    wall: float
    cpu: float


def measure(*, redis: RedisServer, rounds: int) -> tuple[Probing, Probing]:
    """Return what our probe costs, and what ``celery inspect ping`` of a worker with a handful of tasks costs."""
    redis.flush()
    times: tuple[list[tuple[float, float]], ...] = ([], [])
    with tempfile.TemporaryDirectory() as folder, worker(OWN, broker=redis.url, store=redis.url) as running:
        named = environment(OWN, broker=redis.url, store=redis.url, journal=running.journal)
        path = Path(folder, "heartbeat")
        HeartbeatFile(path).write(_sign())
        ping = [*_PING, "--destination", f"celery@{os.uname().nodename}"]
        commands = ([sys.executable, "-m", "celery_reliable.probe", str(path), "--max-age", "3600"], ping)
        running.wait_until(lambda: _answered(ping, named), "an answer to a ping")
        for _ in range(rounds):
            for command, found in zip(commands, times, strict=True):
                found.append(_run(command, named))
    ours, theirs = (Probing(*map(min, zip(*found, strict=True))) for found in times)
    return ours, theirs


def _answered(command: Sequence[str], named: Mapping[str, str]) -> bool:
    quiet = subprocess.DEVNULL
    return subprocess.run(command, cwd=ROOT, env=named, check=False, stdout=quiet, stderr=quiet).returncode == 0


def _run(command: Sequence[str], named: Mapping[str, str]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=named, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def _sign() -> LifeSign:
    times = {"at": time.time(), "clock": time.monotonic()}
    process = Process.current()
    return LifeSign(
        role="worker",
        node=f"w@{os.uname().nodename}",
        state="idle",
        owner="benchmark",
        process=process,
        interval=5.0,
        **times,
    )
