"""What the drain tests share: stages on either broker, workers that hold messages, and looks at the queue."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.runtime import forget_runtime, runtime_of
from tests.integration.apps import draining
from tests.integration.apps.jobs import QUICK
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.apps.stage import Entry
    from tests.integration.workers import Worker, Workers

APP = "tests.integration.apps.draining"
SOON = 20.0  # seconds to wait for what happens at once on an idle machine
TIMEOUT = 0.5  # seconds of drain, where a test lets it pass
PATIENT = 60.0  # seconds of drain, where a test does not
AFTER_TIMEOUT = 2.0  # seconds after the drain timeout within which a worker is gone: the promise


@dataclass
class Finishers:
    """Workers that run what others gave back to its end: one for each broker of a module, started when first needed."""

    workers: Workers
    names: dict[str, str] = field(default_factory=dict)

    def take_up(self, queue: str, *, stage: Stage, app: Celery) -> None:
        """Let the broker's finisher consume one more queue."""
        name = self.names.get(stage.broker) or self._start(stage)
        told = app.control.add_consumer(queue, destination=[name], reply=True, timeout=SOON)
        assert told, f"{name} does not answer"

    def _start(self, stage: Stage) -> str:
        name = f"finisher{len(self.names)}"
        conf = {**stage.conf, "task_default_queue": name}
        environment = replace(stage, conf=conf).environment()
        self.workers.start(APP, pool="threads", concurrency=4, name=name, env=environment, arguments=QUICK)
        self.names[stage.broker] = f"{name}@{socket.gethostname()}"
        return self.names[stage.broker]


@dataclass
class Scene:
    """One app with a queue of its own, its producer, and the workers of one test."""

    stage: Stage
    app: Celery
    workers: Workers
    queue: str
    finishers: Finishers | None = None

    def start(
        self, pool: str, *, concurrency: int = 1, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> Worker:
        """Start a worker that is ready."""
        return self.workers.start(
            APP,
            pool=pool,
            concurrency=concurrency,
            env={**self.stage.environment(), **(env or {})},
            arguments=(*QUICK, *arguments),
        )

    def send(self, task: str, label: str | None = None, **options: Any) -> str:
        """Submit a task; return its label. The queue is named for workers with another default one."""
        label = label or uuid.uuid4().hex
        self.app.tasks[task].apply_async((label,), queue=self.queue, **options)
        return label

    def multiply(self, label: str, count: int) -> None:
        """Make many messages of the one that waits, on Redis: with ids and delivery tags of their own."""
        with self.app.connection_for_write() as connection, connection.channel().client.pipeline() as together:
            (raw,) = connection.channel().client.lrange(self.queue, 0, -1)
            message = json.loads(raw)
            task_id, tag = message["headers"]["id"], message["properties"]["delivery_tag"]
            for _ in range(count - 1):
                copy = raw.decode().replace(task_id, str(uuid.uuid4())).replace(tag, str(uuid.uuid4()))
                together.rpush(self.queue, copy)
            together.execute()

    def running(self, task: str, **options: Any) -> str:
        """Submit a task and return its label once it runs."""
        label = self.send(task, **options)
        self.stage.wait_entries(label, 1)
        return label

    def steps(self, label: str) -> list[str]:
        """Return what a task noted, in order."""
        return [entry["step"] for entry in self.stage.entries(label)]

    def step(self, label: str, step: str) -> Entry:
        """Return the last note of a kind."""
        return [entry for entry in self.stage.entries(label) if entry["step"] == step][-1]

    def waiting(self) -> int:
        """Count the messages that no worker holds."""
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            if hasattr(channel, "_size"):  # a Redis list that is empty does not exist
                return int(channel._size(self.queue))
            return int(channel.queue_declare(self.queue, passive=True).message_count)

    def queued(self) -> list[str]:
        """Return the labels that wait, on Redis, the next to be received first."""
        with self.app.connection_for_read() as connection:
            raw = connection.channel().client.lrange(self.queue, 0, -1)
        bodies = [json.loads(base64.b64decode(json.loads(message)["body"])) for message in reversed(raw)]
        return [body[0][0] for body in bodies]

    def wait_waiting(self, count: int, what: str) -> float:
        """Return the seconds until so many messages wait."""
        began = time.monotonic()
        wait_until(lambda: self.waiting() == count, SOON, f"{count} messages in the queue: {what}")
        return time.monotonic() - began

    def held(self, worker: Worker) -> None:
        """Return once the worker has taken all it was sent."""
        wait_until(lambda: self.waiting() == 0, SOON, f"{worker.name} to hold every message")

    def unacked(self) -> int | None:
        """Count the messages that kombu notes as held, on Redis."""
        if not self.stage.broker.startswith("redis"):
            return None
        with self.app.connection_for_read() as connection:
            return int(connection.channel().client.hlen("unacked"))

    def delivery(self, label: str) -> list[int]:
        """Return the number of each delivery of a job, as its claims said."""
        ids = {entry["task_id"] for entry in self.stage.entries(label)}
        return [claim["delivery"] for task_id in ids for claim in self.stage.events("claimed", task_id)]

    def finish_elsewhere(self, label: str) -> Entry:
        """Let another worker run a job to its end; return its last start."""
        self.stage.open(label)
        if self.finishers is not None:
            self.finishers.take_up(self.queue, stage=self.stage, app=self.app)
        else:
            self.start("threads")
        self.wait_end(label)
        return self.step(label, "start")

    def wait_end(self, label: str) -> None:
        """Return once a task has ended."""
        wait_until(lambda: "end" in self.steps(label), SOON, f"{label} to end: {self.steps(label)}")


def stage_of_drain(module_redis: RedisServer, directory: Path, *, broker: str, timeout: float) -> Stage:
    """A stage whose workers drain for so long."""
    backend, store = (f"{module_redis.url.removesuffix('/0')}/{database}" for database in (1, 2))
    return Stage(directory, broker=broker, backend=backend, store=store, conf={"reliable_drain_timeout": timeout})


@contextlib.contextmanager
def scene_on(stage: Stage, workers: Workers, finishers: Finishers | None = None) -> Iterator[Scene]:
    """A scene whose queue no other test uses."""
    queue = f"drained-{uuid.uuid4().hex[:8]}"
    stage.conf["task_default_queue"] = queue  # type: ignore[index]  # a dict here
    app = draining.make_app(stage)
    app.amqp.queues  # noqa: B018  # makes them
    with app.connection_for_write() as connection:
        app.amqp.queues[queue](connection.channel()).declare()
    try:
        yield Scene(stage, app, workers, queue, finishers)
    finally:
        forget_runtime(app)
        app.backend.result_consumer.subscribed_to.clear()
        app.close()


def figure(name: str, seconds: float) -> None:
    """Note a measured time: in the test's output, and as a line of the file that CR_FIGURES names."""
    line = {"test": os.environ.get("PYTEST_CURRENT_TEST", ""), "figure": name, "seconds": round(seconds, 2)}
    print(json.dumps(line))  # noqa: T201
    if path := os.environ.get("CR_FIGURES"):
        with open(path, "a") as file:  # noqa: PTH123
            file.write(json.dumps(line) + "\n")


def store_of(scene: Scene) -> Any:
    """Return the store of the scene."""
    return runtime_of(scene.app).store


def on(*combinations: str) -> pytest.MarkDecorator:
    """Run a test on combinations of broker and pool: ``redis-solo``, ``rabbitmq-threads``."""
    pairs = [combination.split("-") for combination in combinations]
    return pytest.mark.parametrize(("broker", "pool"), pairs, indirect=["broker"], ids=combinations)


def wait_ended(worker: Worker, *, since: float, what: str, timeout: float = TIMEOUT) -> None:
    """Wait for the end of a worker whose timeout passes, and hold it to the promise."""
    assert worker.wait(timeout + AFTER_TIMEOUT + 5.0) == 0
    figure(what, time.monotonic() - since)
    assert time.monotonic() - since < timeout + AFTER_TIMEOUT + 1.0  # the last for machines that do much beside
