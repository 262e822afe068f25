"""The heartbeat of real workers through standstill, freeze, outage, deafness and death, on both brokers.

That it follows a worker on every pool stands in `test_every_pool`.
"""

from __future__ import annotations

import dataclasses
import http.client
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from celery_reliable.heartbeats import SHELF, LifeSign, read_sign
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.notes import every
from celery_reliable.testing import servers
from celery_reliable.testing.faultproxy import FaultProxy
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.workers import Worker, Workers
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.heart"
DEADLINE = 30.0
INTERVAL = 1.0
OLD = ("--max-age", "3")


def state(path: Path) -> str:
    """The state in a heartbeat file, or why there is none."""
    try:
        return read_sign(path).state
    except (OSError, ValueError) as exc:
        return repr(exc)


def wait_state(path: Path, *wanted: str) -> LifeSign:
    """Return the first sign that is in one of the states."""
    wait_until(lambda: state(path) in wanted, DEADLINE, f"{wanted}; now {state(path)}")
    return read_sign(path)


def wait_signs(path: Path, count: int, *, states: tuple[str, ...]) -> None:
    """Return after some new signs, each in one of the states."""
    for _ in range(count):
        assert wait_sign(path, after=read_sign(path)).state in states


def wait_sign(path: Path, *, after: LifeSign) -> LifeSign:
    """Return the next sign."""
    wait_until(lambda: read_sign(path).clock > after.clock, DEADLINE, "a new sign")
    return read_sign(path)


def probe(path: Path, *arguments: str) -> int:
    """The probe's exit code, of a process of its own."""
    command = [sys.executable, "-m", "celery_reliable.probe", str(path), *arguments]
    return subprocess.run(command, check=False, capture_output=True).returncode


# --- one worker for each broker, behind a network that can fail


@pytest.fixture(scope="module", params=["prefork", "gevent-rabbitmq"])
def place(request: pytest.FixtureRequest) -> str:
    """The pool, and the broker where it is not Redis."""
    return str(request.param)


@pytest.fixture(scope="module")
def broker_url(place: str, request: pytest.FixtureRequest) -> str:
    """The broker itself."""
    server: Any = request.getfixturevalue("rabbitmq_server" if "rabbitmq" in place else "module_redis")
    return str(server.url)


@pytest.fixture(scope="module")
def network(broker_url: str) -> Iterator[FaultProxy]:
    """The network between worker and broker."""
    port = urlsplit(broker_url).port
    assert port is not None
    with FaultProxy(port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def store() -> Iterator[servers.RedisServer]:
    """The store, on a server of its own."""
    with servers.start_redis() as server:
        yield server


@pytest.fixture(scope="module")
def port() -> int:
    """Where HTTP probes are answered."""
    return free_port()


@pytest.fixture(scope="module")
def stage(
    broker_url: str,
    network: FaultProxy,
    store: servers.RedisServer,
    port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """A stage for each place."""
    store.flush()
    folder = tmp_path_factory.mktemp("heart")
    broker = broker_url.replace(f":{urlsplit(broker_url).port}", f":{network.port}", 1)
    conf = {
        "reliable_heartbeat_file": f"{folder}/%n.heartbeat",
        "reliable_heartbeat_interval": INTERVAL,
        "reliable_healthz_port": port,
        "reliable_healthz_socket": f"{folder}/%n.socket",
        "task_default_queue": f"heart-{uuid.uuid4().hex}",
    }
    return Stage(folder, broker=broker, backend=store.url.replace("/0", "/1"), store=store.url, conf=conf)


@pytest.fixture(scope="module")
def file(stage: Stage) -> Path:
    """The worker's heartbeat file."""
    return stage.directory / "w.heartbeat"


@pytest.fixture(scope="module")
def worker(place: str, stage: Stage, module_workers: Workers) -> Iterator[Worker]:
    """A worker with one slot."""
    pool = place.split("-", maxsplit=1)[0]
    worker = module_workers.start(APP, pool=pool, name="w", env=stage.environment(), arguments=QUICK)
    yield worker
    worker.kill()


@pytest.fixture
def idle(worker: Worker, file: Path) -> LifeSign:
    """The worker's sign when it has nothing to do."""
    return wait_state(file, "idle", "consuming")


def test_the_sign_says_who_it_is(idle: LifeSign, worker: Worker, app: Celery, stage: Stage, place: str) -> None:
    """The same record in the file and in the store; node, process, queue and pool are those of the worker."""
    noted = LifeSign.from_json(runtime_of(app).store.notes.read(SHELF, [idle.owner])[idle.owner].value)
    assert (noted.owner, noted.process) == (idle.owner, idle.process)
    assert (idle.process.pid, idle.node.split("@")[0], idle.role) == (worker.pid, "w", "worker")
    assert (idle.pool, idle.concurrency) == (place.split("-", maxsplit=1)[0], 1)
    assert (idle.queues, idle.waiting) == ((stage.conf["task_default_queue"],), 0)
    assert set(idle.versions) == {"celery_reliable", "celery", "kombu", "python"}


def asked(address: int | Path, path: str) -> int:
    """The status that an HTTP probe gets."""
    connection = http.client.HTTPConnection(LOOPBACK, address if isinstance(address, int) else None, timeout=DEADLINE)
    if isinstance(address, Path):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(DEADLINE)
        connection.sock.connect(str(address))
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_http_probes_are_answered(idle: LifeSign, stage: Stage, port: int) -> None:
    """By the Unix socket and by the port; other paths are refused."""
    for address in (port, stage.directory / "w.socket"):
        assert [asked(address, path) for path in ("/livez", "/readyz", "/healthz", "/")] == [200, 200, 200, 404]


def test_a_lost_connection_is_survived(idle: LifeSign, file: Path, network: FaultProxy, worker: Worker) -> None:
    """The loop of the next connection is watched like that of the first."""
    network.reset()
    worker.wait_log("Connection to broker lost")
    wait_state(file, "idle", "consuming")
    wait_signs(file, 4, states=("idle", "consuming"))
    assert probe(file, "--ready", *OLD) == 0


def test_a_broker_that_does_not_answer_is_no_reason_to_restart(
    idle: LifeSign, file: Path, network: FaultProxy, port: int
) -> None:
    """Alive and not ready for as long as it lasts; ready again afterwards, by itself."""
    network.blackhole()
    wait_state(file, "broker_down")
    wait_signs(file, 1, states=("broker_down",))
    assert [probe(file), probe(file, "--ready")] == [0, 3]
    assert [asked(port, "/livez"), asked(port, "/readyz")] == [200, 503]
    network.heal()
    wait_state(file, "idle", "consuming")
    wait_signs(file, 2, states=("idle", "consuming"))
    assert probe(file, "--ready") == 0


def test_a_store_that_is_away_is_no_reason_to_restart(
    idle: LifeSign, file: Path, store: servers.RedisServer, stage: Stage
) -> None:
    """Alive and not ready; ready again when the store is back. Each change is told once."""
    store.stop()
    wait_state(file, "store_down")
    assert [probe(file), probe(file, "--ready")] == [0, 3]
    store.start()
    wait_state(file, "idle", "consuming")
    changes = [(event["before"], event["state"]) for event in stage.events("worker_state")]
    assert [after for _, after in changes[-2:]] == ["store_down", read_sign(file).state]


def test_a_standstill_of_the_loop_is_no_life(idle: LifeSign, file: Path, app: Celery, stage: Stage, place: str) -> None:
    """Broker and store answer, the process runs, and nothing would be consumed: the file grows old."""
    os.mkfifo(stage.directory / "move")
    app.control.broadcast("stand_still", arguments={"pipe": "move"})
    stage.wait_entries("standing still", 1)
    wait_until(lambda: probe(file, *OLD) == 1, DEADLINE, "not alive")
    if place == "prefork":  # all of a green worker stands still, who tells of it included
        assert stage.events("heartbeat_withheld")
    (stage.directory / "move").write_text("")
    wait_until(lambda: probe(file, "--ready", *OLD) == 0, DEADLINE, "alive again")


def test_a_frozen_worker_is_no_life(idle: LifeSign, file: Path, worker: Worker) -> None:
    """SIGSTOP, then SIGCONT."""
    worker.freeze()
    wait_until(lambda: probe(file, *OLD) == 1, DEADLINE, "not alive")
    worker.thaw()
    wait_until(lambda: probe(file, "--ready", *OLD) == 0, DEADLINE, "alive again")


def test_a_worker_that_consumes_nothing_is_stuck(
    idle: LifeSign, file: Path, app: Celery, stage: Stage, label: str
) -> None:
    """It answers pings, its loop turns, its broker answers; but messages wait, it has room, and it receives none."""
    app.control.broadcast("go_deaf")
    wait_signs(file, 4, states=("idle", "consuming"))  # nothing waits: no fault
    app.tasks["add"].delay(1, label)
    sign = wait_state(file, "stuck")
    assert app.control.ping(timeout=1.0)
    assert sign.waiting == 1
    assert [probe(file), probe(file, "--ready")] == [1, 1]
    assert stage.entries(label) == []


def test_a_killed_worker_is_noticed_at_once(worker: Worker, file: Path) -> None:
    """By its process, not by the age of its file."""
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait()
    assert probe(file, "--max-age", "3600") == 1
    assert file.exists()


# --- at the start


def test_a_worker_that_starts_during_an_outage_is_alive(
    module_redis: servers.RedisServer, tmp_path: Path, workers: Workers
) -> None:
    """It has never been connected, and waits: restarting it would cure nothing. Told to stop, it leaves no file."""
    file = tmp_path / "early"
    conf = {"reliable_heartbeat_file": str(file), "reliable_heartbeat_interval": INTERVAL}
    usual = Stage.on(module_redis.url, directory=tmp_path, first=6, conf=conf)
    stage = dataclasses.replace(usual, broker=f"redis://{LOOPBACK}:{free_port()}/0")
    worker = workers.start(APP, pool="threads", env=stage.environment(), arguments=QUICK, ready=False)
    sign = wait_state(file, "broker_down")
    assert (sign.process.pid, sign.queues) == (worker.pid, ())
    wait_sign(file, after=sign)
    assert [probe(file), probe(file, "--ready")] == [0, 3]
    worker.stop()
    assert not file.exists()


# --- two workers


def test_two_workers_share_neither_file_nor_note(
    module_redis: servers.RedisServer, tmp_path: Path, workers: Workers
) -> None:
    """One node name and one heartbeat file for both: the first keeps it, the second says so and takes it in its turn.

    Each removes what is its own, file and note, when it ends in order.
    """
    file = tmp_path / "shared"
    conf = {"reliable_heartbeat_file": str(file), "reliable_heartbeat_interval": INTERVAL}
    stage = Stage.on(module_redis.url, directory=tmp_path, first=3, conf=conf)
    first, second = (
        workers.start(APP, pool="threads", name="twin", env=stage.environment(), arguments=QUICK) for _ in range(2)
    )
    (shared,) = wait_until(lambda: stage.events("heartbeat_shared"), DEADLINE, "told")
    assert (shared["place"], shared["keeper"]) == (str(file), read_sign(file).node)
    assert read_sign(file).process.pid == first.pid
    with client(stage) as app:
        assert noted(app) == {first.pid, second.pid}
        assert first.stop() == 0
        wait_until(lambda: file.exists() and read_sign(file).process.pid == second.pid, DEADLINE, "taken")
        assert noted(app) == {second.pid}
        assert second.stop() == 0
        assert noted(app) == set()
    assert not file.exists()
    assert len(stage.events("heartbeat_shared")) == 1


def noted(app: Celery) -> set[int]:
    """The processes whose signs are in the store."""
    notes = every(runtime_of(app).store.notes, SHELF).values()
    return {LifeSign.from_json(note.value).process.pid for note in notes}
