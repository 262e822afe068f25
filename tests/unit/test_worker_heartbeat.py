"""What a worker may say of itself, and where it says it."""

from __future__ import annotations

import dataclasses
import http.client
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import state as celery_state

from celery_reliable import internals
from celery_reliable.heartbeats import SHELF, LifeSign, Process, read_sign
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.worker.evidence import Evidence, LoopWatch, StuckWatch, state_of
from celery_reliable.worker.healthz import Healthz
from celery_reliable.worker.heartbeat import Publication, Signs

GOOD = Evidence(draining=False, broker=True, store=True, stuck=False, running=0, slots=2, received=0)


def seen(**facts: Any) -> Evidence:
    """What a healthy idle worker shows, but for some facts."""
    return dataclasses.replace(GOOD, **facts)


# --- the state


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "idle"),
        ({"received": 1}, "consuming"),
        ({"running": 1}, "consuming"),
        ({"running": 2}, "busy"),
        ({"stuck": True, "running": 1}, "stuck"),
        ({"store": False, "stuck": True}, "store_down"),
        ({"broker": False, "store": False}, "broker_down"),
        ({"draining": True, "broker": False, "running": 2}, "draining"),
    ],
)
def test_the_gravest_state_is_named(facts: dict[str, Any], state: str) -> None:
    """One word, for people and probes."""
    assert state_of(seen(**facts)) == state


class TestStuckWatch:
    """Messages wait, there is room, and none comes."""

    def test_it_takes_all_of_it_for_the_whole_time(self) -> None:
        """Any message received, a full worker or an empty queue begins the time anew."""
        case: dict[str, Any] = {"waiting": 1, "room": True, "received": 0}
        for good in ({"waiting": 0}, {"room": False}, {"received": 1}):
            watch = StuckWatch(after=15)
            assert not any(watch.look(now=now, **case) for now in (0, 5, 10, 14))
            assert not watch.look(now=14.5, **{**case, **good})
            assert not any(watch.look(now=now, **case) for now in (15, 20, 29))
            assert watch.look(now=30, **case)


class TestLoopWatch:
    """The loop turns, or has an excuse."""

    def test_a_loop_that_never_turned_gives_no_sign(self) -> None:
        """Not before the first turn."""
        assert not LoopWatch(patience=10).lives(connected=True)

    @pytest.mark.parametrize(("connected", "patience"), [(True, 10), (False, 60)])
    def test_patience_ends(self, connected: bool, patience: float) -> None:  # noqa: FBT001
        """After two intervals; after a minute while Celery may sleep between two attempts to connect."""
        clock = [0.0]
        watch = LoopWatch(patience=10, clock=lambda: clock[0])
        for note in (watch.turn, watch.excuse):
            note()
            clock[0] += patience - 1
            assert watch.lives(connected=connected)
            clock[0] += 2
            assert not watch.lives(connected=connected)


# --- what the worker looks at


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose events are kept."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"
    app.events_seen = []
    app.conf.reliable_event_hooks = (lambda name, fields: app.events_seen.append((name, fields)),)
    yield app
    app.close()


@pytest.fixture
def consumer(app: Celery) -> SimpleNamespace:
    """What the signs read of Celery's consumer."""
    pool = SoloPool(1, app=app, initargs=(app, "w@h"))
    return SimpleNamespace(app=app, hostname="w@h", pool=pool, connection=object(), task_consumer=None)


@pytest.fixture
def request_running() -> Iterator[Callable[..., None]]:
    """Add requests to those that run."""
    kept = []

    class Running:
        def __init__(self, limit: float | None, of_task: float | None) -> None:
            self.time_limits, self.task = (limit, None), SimpleNamespace(time_limit=of_task)
            self.delivery_info = {"exchange": "", "routing_key": "celery"}

    def add(limit: float | None = None, of_task: float | None = None) -> None:
        kept.append(Running(limit, of_task))
        celery_state.active_requests.add(kept[-1])

    yield add
    celery_state.active_requests.clear()


class TestSolo:
    """A task that runs in the loop's own thread is an excuse, for as long as it may run."""

    @pytest.mark.parametrize(
        ("limits", "longest"),
        [({}, 86_400), ({"limit": 60}, 90), ({"of_task": 3600}, 3630), ({"limit": 1, "of_task": 9}, 31)],
    )
    def test_a_long_task_is_no_standstill(
        self, consumer: Any, request_running: Callable[..., None], limits: dict[str, float], longest: float
    ) -> None:
        """One hour is nothing; its time limit and 30 s, or `reliable_max_runtime`, is the end."""
        clock = [0.0]
        loop = LoopWatch(patience=10, clock=lambda: clock[0])
        signs = Signs(consumer, loop=loop)
        loop.turn()
        request_running(**limits)
        for clock[0] in (1.0, longest / 2, longest - 1):
            assert signs.beat()
        clock[0] = longest + 11
        assert not signs.beat()
        assert [name for name, _ in consumer.app.events_seen] == ["heartbeat_withheld"]

    def test_elsewhere_it_is_none(self, consumer: Any, request_running: Callable[..., None], app: Celery) -> None:
        """On threads the loop goes on while tasks run."""
        consumer.pool = SimpleNamespace(num_processes=1)
        clock = [0.0]
        loop = LoopWatch(patience=10, clock=lambda: clock[0])
        signs = Signs(consumer, loop=loop)
        loop.turn()
        request_running()
        clock[0] = 11
        assert not signs.beat()


def test_pools_have_the_names_of_the_command_line() -> None:
    """They are told by the module of the pool's class, which is Celery's own."""
    assert [internals.pool_name(object.__new__(pool)) for pool in (PreforkPool, SoloPool, ThreadPool)] == [
        *("prefork", "solo", "threads")
    ]


class TestRoom:
    """Whether the consumer may receive a message."""

    def test_a_virtual_transport_knows(self) -> None:
        """The QoS of kombu, however it is patched."""
        for answer in (True, False):
            channel = SimpleNamespace(qos=SimpleNamespace(can_consume=lambda answer=answer: answer))
            assert internals.has_room(SimpleNamespace(task_consumer=SimpleNamespace(channel=channel))) is answer

    def test_for_amqp_it_is_counted(self, request_running: Callable[..., None]) -> None:
        """Reserved, scheduled and rate-limited messages take a place; no limit, always room."""
        rated = {"slow": SimpleNamespace(contents=deque([1])), "unlimited": None}
        consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=object()), task_buckets=rated)
        for limit, room in ((0, True), (1, False), (2, True)):
            consumer.qos = SimpleNamespace(value=limit)
            assert internals.has_room(consumer) is room


# --- where signs go


@pytest.fixture
def runtime(app: Celery, tmp_path: Path) -> Runtime:
    """A runtime with a heartbeat file in a folder that is not there yet."""
    app.conf.reliable_heartbeat_file = f"{tmp_path}/missing/%n.heartbeat"
    return runtime_of(app)


def sign(runtime: Runtime, state: str = "idle") -> LifeSign:
    """A sign of this process."""
    times: dict[str, Any] = {"at": time.time(), "clock": time.monotonic(), "interval": 5.0}
    who: dict[str, Any] = {"role": "worker", "node": "w@h", "owner": runtime.owner, "process": Process.current()}
    return LifeSign(**who, **times, state=state)


def test_a_folder_that_is_missing_is_told_once(app: Any, runtime: Runtime, tmp_path: Path) -> None:
    """The worker goes on; when the folder is there, so is the file. The note went to the store all the same."""
    publication = Publication(runtime, node="w@h")
    for _ in range(3):
        publication.publish(sign(runtime), seen())
    ((name, facts),) = app.events_seen
    assert (name, facts["place"]) == ("heartbeat_unwritten", f"{tmp_path}/missing/w.heartbeat")
    assert "No such file" in facts["error"]
    (tmp_path / "missing").mkdir()
    publication.publish(sign(runtime), seen())
    assert read_sign(tmp_path / "missing/w.heartbeat").owner == runtime.owner
    assert list(runtime.store.notes.read(SHELF, [runtime.owner])) == [runtime.owner]

    publication.withdraw()
    publication.close()
    publication.publish(sign(runtime), seen())  # of a thread that was late
    assert list((tmp_path / "missing").iterdir()) == []


def test_changes_between_working_and_not_are_told(app: Any, runtime: Runtime, tmp_path: Path) -> None:
    """Not those between idle and busy, which come with every task."""
    (tmp_path / "missing").mkdir()
    publication = Publication(runtime, node="w@h")
    for state in ("idle", "busy", "broker_down", "store_down", "consuming", "idle", "stuck"):
        publication.publish(sign(runtime, state), seen())
    told = [(facts["before"], facts["state"]) for name, facts in app.events_seen if name == "worker_state"]
    assert told == [("busy", "broker_down"), ("store_down", "consuming"), ("idle", "stuck")]


# --- HTTP


def asked(address: tuple[str, int], path: str = "/livez", method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.fixture
def address() -> tuple[str, int]:
    """A free address."""
    return LOOPBACK, free_port()


def test_answers_are_those_of_the_probe(runtime: Runtime, address: tuple[str, int]) -> None:
    """By state and age; before the first sign there is none."""
    last: list[LifeSign | None] = [None]
    healthz = Healthz(address, last=lambda: last[0])
    healthz.open()
    assert asked(address) == (503, "no sign of life yet\n")
    for state, live, ready in (("idle", 200, 200), ("broker_down", 200, 503), ("stuck", 503, 503)):
        last[0] = sign(runtime, state)
        assert [asked(address, "/livez")[0], asked(address, "/readyz?verbose")[0]] == [live, ready]
    assert asked(address, "/livez", "HEAD") == (503, "")
    assert asked(address, "/")[0] == 404
    healthz.close()
    healthz.close()
    with pytest.raises(ConnectionRefusedError):
        asked(address)


def test_a_slow_client_keeps_nobody_waiting(address: tuple[str, int], runtime: Runtime) -> None:
    """Each has a thread, and a few seconds."""
    last = sign(runtime)
    healthz = Healthz(address, last=lambda: last)
    healthz.open()
    with socket.create_connection(address) as slow:
        slow.sendall(b"GET /livez")
        assert asked(address)[0] == 200
    healthz.close()


def test_an_address_that_is_taken_is_told_once_and_had_later(app: Any, address: tuple[str, int]) -> None:
    """A predecessor that has not gone yet."""
    app.conf.reliable_healthz_port = address[1]
    runtime = runtime_of(app)
    publication = Publication(runtime, node="w@h")
    with socket.create_server(address):
        for _ in range(3):
            publication.publish(sign(runtime), seen())
    assert [name for name, _ in app.events_seen] == ["healthz_failed"]
    publication.publish(sign(runtime), seen())
    assert asked(address)[0] == 200
    publication.close()


def test_a_socket_that_is_left_over_is_taken(tmp_path: Path) -> None:
    """One that somebody answers is not, nor is a file."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first, second = Healthz(str(path), last=lambda: None), Healthz(str(path), last=lambda: None)
    first.open()
    with pytest.raises(OSError, match="another process listens there"):
        second.open()
    first.close()
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(OSError, match="found something else"):
        second.open()
    assert path.read_text() == "mine"


def test_a_pool_child_does_not_keep_the_port(address: tuple[str, int]) -> None:
    """Billiard's children close their copy: else the port stays taken after their parent was killed."""
    import billiard  # noqa: PLC0415

    healthz = Healthz(address, last=lambda: None)
    healthz.open()
    context = billiard.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    child = context.Process(target=_tell_listening, args=(tell, address[1]))
    child.start()
    assert told.recv() == []
    child.join()
    healthz.close()


def _tell_listening(tell: Any, port: int) -> None:
    tell.send([number for number in range(3, 256) if _port_of(number) == port])


def _port_of(number: int) -> int | None:
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            return int(copy.getsockname()[1]) if copy.family == socket.AF_INET else None
    except OSError:
        return None


def test_threads_end_with_the_server(address: tuple[str, int]) -> None:
    """Nothing of it is left after close."""
    healthz = Healthz(address, last=lambda: None)
    healthz.open()
    healthz.close()
    deadline = time.monotonic() + 10
    while any(thread.name == "reliable-healthz" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
