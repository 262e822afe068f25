"""Run real ``celery beat`` processes, and read what they published."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from tests.integration.apps.stage import Stage
from tests.integration.workers import ROOT, Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery_reliable.testing.servers import RedisServer
    from tests.integration.apps.stage import Entry

APP = "tests.integration.apps.worker"
SCHEDULER = "celery_reliable.beat:ReliableScheduler"
TTL = 3.0  # of the leader: the least


def staged(directory: Path, broker: RedisServer, store: RedisServer, schedule: dict[str, Any], **conf: Any) -> Stage:
    """Return a stage with a schedule, whose store is a server of its own."""
    broker.revive()
    broker.flush()
    store.revive()
    store.flush()
    settings = {"reliable_leader_ttl": TTL, "beat_schedule": schedule, **conf}
    return dataclasses.replace(Stage.on(broker.url, directory=directory, conf=settings), store=store.url)


class Beats:
    """The beats of one test."""

    def __init__(self, directory: Path) -> None:
        """Keep logs and schedule files in `directory`."""
        self._directory = directory
        self._numbers = itertools.count(1)
        self._started: list[Worker] = []

    def start(
        self, stage: Stage, *, app: str = APP, schedule: Path | None = None, env: dict[str, str] | None = None
    ) -> Worker:
        """Start a beat and return at once. It is killed when the test ends."""
        name = f"beat{next(self._numbers)}"
        log = self._directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", app, "beat", "-S", SCHEDULER, "--loglevel", "INFO"]
        command += ["--schedule", str(schedule or self._directory / name), "--pidfile", ""]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": str(ROOT),
                    **stage.environment(),
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        beat = Worker(process, name=name, log=log)
        self._started.append(beat)
        return beat

    def close(self) -> None:
        """Kill what still runs, and print the logs: pytest shows them if the test failed."""
        for beat in self._started:
            if beat.running:
                beat.thaw()
            beat.kill()
            sys.stdout.write(beat.last_words())


def wait_leader(stage: Stage, *beats: Worker, count: int = 1, timeout: float = 30.0) -> tuple[Worker, Entry]:
    """Return which of some beats was the last to be elected, once there were `count` elections, and the event."""
    by_pid = {beat.pid: beat for beat in beats}
    what = f"{count} elections of {sorted(by_pid)}; events: {stage.events('leading')}"
    elected = wait_until(
        lambda: (
            found if len(found := [one for one in stage.events("leading") if one["pid"] in by_pid]) >= count else []
        ),
        timeout,
        what,
    )
    return by_pid[elected[-1]["pid"]], elected[-1]


def wait_fired(stage: Stage, count: int, *, entry: str, timeout: float = 30.0) -> list[Entry]:
    """Return the events of fired slots of an entry once there are `count` of them."""
    return wait_until(
        lambda: found if len(found := fired(stage, entry)) >= count else [], timeout, f"{count} slots of {entry} fired"
    )


def fired(stage: Stage, entry: str) -> list[Entry]:
    """Return the events of the slots of an entry that were fired."""
    return [one for one in stage.events("slot_fired") if one["entry"] == entry]


def distances(stage: Stage, entry: str) -> set[timedelta]:
    """Return how far the slots of an entry that were fired are apart."""
    found = sorted({datetime.fromisoformat(one["slot"]) for one in fired(stage, entry)})
    return {later - earlier for earlier, later in itertools.pairwise(found)}


def messages(stage: Stage, queue: str = "celery") -> list[dict[str, Any]]:
    """Return the headers of all messages in a queue of the Redis broker, oldest first."""
    with redis.Redis.from_url(stage.broker) as broker:
        raw = broker.lrange(queue, 0, -1)
    return [json.loads(one)["headers"] for one in reversed(raw)]


def every(seconds: float, task: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Return an entry of ``beat_schedule``."""
    return {"task": task, "schedule": seconds, "args": list(args), "options": options}


def headers(**policies: Any) -> dict[str, Any]:
    """Return the option that gives an entry its policies."""
    return {"headers": {f"reliable_{name}": value for name, value in policies.items()}}
