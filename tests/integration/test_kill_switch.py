"""A queue is stopped alone, and what a real worker had in hand of it goes back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.fleet.queues import sight_of
from celery_reliable.flow.lanes import lane_names
from celery_reliable.heartbeats import SHELF, LifeSign
from celery_reliable.runtime import runtime_of
from celery_reliable.settings.policies import FairQueue
from celery_reliable.stores.notes import every
from tests.integration.apps.flow_jobs import add_tasks
from tests.integration.apps.jobs import QUICK, client, make_app
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.flow.switches import Switches
    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.flow_jobs"
DEADLINE = 30.0
LANES = 2
PREFETCH = 4


@dataclass(frozen=True)
class Scene:
    """A worker with one slot that consumes a queue with a kill switch, and another one."""

    stage: Stage
    app: Celery
    queue: str
    other: str

    def send(self, task: str, *args: Any, queue: str | None = None, **options: Any) -> Any:
        """Submit to the queue with the kill switch, or another one."""
        return self.app.tasks[task].apply_async(args, queue=queue or self.queue, **options)

    def prefetch(self) -> int:
        """Ask the worker for its prefetch count, which is higher by each message that waits there for its time."""
        found = self.app.control.inspect(timeout=DEADLINE, limit=1).stats()
        return int(next(iter(found.values()))["prefetch_count"])

    def start(self) -> None:
        """Begin with a queue that is consumed."""
        self.switches.start(self.queue)
        self.wait_waiting(0)

    @property
    def switches(self) -> Switches:
        """What an operator uses."""
        found = runtime_of(self.app).switches
        assert found is not None
        return found

    @property
    def lanes(self) -> list[str]:
        """The lanes of the queue with the kill switch."""
        return lane_names(self.queue, FairQueue(lanes=LANES))

    def wait_unconsumed(self) -> None:
        """Return once the worker has left the queue: it says so some milliseconds before it cancels each lane."""

        def consumed() -> set[str]:
            found = self.app.control.inspect(timeout=DEADLINE, limit=1).active_queues() or {}
            return {one["name"] for queues in found.values() for one in queues}

        wait_until(lambda: not consumed() & {self.queue, *self.lanes}, DEADLINE, "no consumer of the queue")

    def waiting(self, *names: str) -> int:
        """Count what waits in the broker, in the queue if no other is named."""
        sight = sight_of(self.app)
        try:
            return sum(one.waiting or 0 for one in sight.look(names or (self.queue,), now=0.0))
        finally:
            sight.close()

    def wait_waiting(self, count: int, *names: str) -> None:
        """Return once so many messages wait."""
        wait_until(lambda: self.waiting(*names) == count, DEADLINE, f"{count} messages in the broker")


def app_on(stage: Stage, **conf: Any) -> Celery:
    """Return the app of a stage with the tasks of flow."""
    return add_tasks(make_app(stage, **conf))


@pytest.fixture(scope="module", params=["redis prefork", "rabbitmq prefork"])
def scene(
    request: pytest.FixtureRequest,
    module_redis: RedisServer,
    module_workers: Workers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """Each broker in turn. The worker starts while its queue is stopped."""
    url = module_redis.url.removesuffix("/0")
    kind, pool = request.param.split()
    broker = f"{url}/0" if kind == "redis" else request.getfixturevalue("rabbitmq_server").url
    queue = uuid.uuid4().hex
    conf = {
        "reliable_kill_switches": {queue: {"minimum": 4, "pause": 60}},
        "reliable_fair_queues": {queue: {"lanes": LANES}},
        "worker_prefetch_multiplier": PREFETCH,
        "reliable_heartbeat_interval": 1,
    }
    store = {"redis prefork": 2, "rabbitmq prefork": 3}.get(request.param, 4)
    stage = Stage(
        tmp_path_factory.mktemp("stage"), broker=broker, backend=f"{url}/1", store=f"{url}/{store}", conf=conf
    )
    with client(stage, make=app_on) as app:
        made = Scene(stage, app, queue, f"{queue}-other")
        made.switches.stop(queue)
        made.send("add", 1, f"{queue}:first")
        arguments = (*QUICK, "-Q", f"{queue},{made.other}")
        worker = module_workers.start(
            APP, name=f"{kind}-{pool}", pool=pool, env=stage.environment(), arguments=arguments
        )
        yield made
        worker.kill()
        if kind == "rabbitmq":
            with app.connection_for_write() as connection:
                for name in (queue, made.other, *made.lanes):
                    connection.default_channel.queue_delete(name)


def test_a_queue_that_is_stopped_is_not_consumed_and_another_one_is(scene: Scene) -> None:
    """Nor by a worker that starts meanwhile; once it is started by hand it runs."""
    assert scene.send("add", 1, "other", queue=scene.other).get(timeout=DEADLINE) == 2
    assert scene.waiting() == 1
    assert scene.stage.entries(f"{scene.queue}:first") == []

    scene.switches.start(scene.queue)
    scene.stage.wait_entries(f"{scene.queue}:first", 1)


@pytest.mark.parametrize("scene", ["redis prefork", "rabbitmq prefork", "redis gevent"], indirect=True)
def test_nothing_of_a_stopped_queue_is_hoarded(scene: Scene, label: str) -> None:
    """What waits for its time, for a breaker, and for the slot goes back, and nothing of another queue.

    On gevent the consumer's loop stands still until the slot is free.
    """
    scene.start()
    runtime_of(scene.app).breakers.open("bank")
    called = scene.send("calling_bank", label, "bank", expires=3600)
    scene.stage.wait_event("breaker_waits", called.id)
    scene.send("add", 1, label, countdown=3600)
    scene.wait_waiting(0)
    scene.send("held", f"{label}:other", label, queue=scene.other)
    scene.stage.wait_entries(f"{label}:other", 1)
    waits = scene.send("add", 2, label)
    scene.wait_waiting(0)

    scene.switches.stop(scene.queue)
    scene.wait_waiting(3)
    wait_until(lambda: scene.prefetch() == PREFETCH, DEADLINE, "the prefetch count that it began with")

    next_one = scene.send("add", 3, "other", queue=scene.other)
    scene.stage.open(label)
    assert next_one.get(timeout=DEADLINE) == 4
    assert scene.waiting() == 3
    runtime_of(scene.app).breakers.close("bank")
    scene.stage.open(f"{label}:well")
    scene.switches.start(scene.queue)
    assert [one.get(timeout=DEADLINE) for one in (waits, called)] == [3, "bank"]


def test_a_queue_whose_runs_fail_is_stopped_and_tried_again(scene: Scene, label: str) -> None:
    """They fail in any of its lanes. The other queue goes on; when the time is over a run that goes well starts it again."""
    scene.start()
    for number in range(4):
        scene.send("owned", label, f"tenant{number}", "until well")
    (told,) = scene.stage.wait_event_of("queue_stopped", queue=scene.queue, by="failures")
    assert (told["failed"], told["runs"]) >= (4, 4)
    scene.wait_unconsumed()
    ran = len(scene.stage.entries(label))
    late = [scene.send("owned", label, f"tenant{number}") for number in range(4)]
    scene.wait_waiting(4, *scene.lanes)
    assert scene.send("add", 1, "other", queue=scene.other).get(timeout=DEADLINE) == 2
    assert len(scene.stage.entries(label)) == ran

    scene.switches.stop(scene.queue, seconds=0.5)
    assert [one.get(timeout=DEADLINE) for one in late] == [f"tenant{number}" for number in range(4)]
    scene.stage.wait_event_of("queue_resumed", queue=scene.queue, by="trial")


def test_a_worker_tells_how_long_its_runs_take(scene: Scene) -> None:
    """By queue and task, in its signs of life: for `reliable check`."""
    scene.send("busy", "long", 0.2, queue=scene.other).get(timeout=DEADLINE)

    def told() -> list[float]:
        signs = every(runtime_of(scene.app).store.notes, SHELF).values()
        return [one for sign in signs for one in LifeSign.from_json(sign.value).runtimes[scene.other].get("busy", ())]

    runs, median, longest = wait_until(told, DEADLINE, "its runtime")
    assert runs == 1
    assert 0.2 <= median == longest < DEADLINE
