"""Count what one task costs the store: calls, commands inside them, bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from benchmarks.cases import NO_OP, Case, close_app, make_app
from benchmarks.fleet import worker
from celery_reliable.testing.servers import RedisServer

_END = "benchmark-end"
_NOT_COUNTED = ("CLIENT", "HELLO", "SELECT", "INFO", "FLUSHALL")  # of opening a connection, and our own
_WARM_UP = 20  # jobs that open connections, load scripts and look at the server's clock
_LONG_LEASE = 900.0  # seconds: no renewal comes between


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Per task: round trips to the store, commands that these ran (scripts and what is inside), bytes in and out."""

    calls: float
    commands: float
    bytes_in: float
    bytes_out: float


@dataclasses.dataclass(slots=True)
class Seen:
    """What a server was asked to do: by clients, and by the scripts that they called."""

    calls: list[str] = dataclasses.field(default_factory=list)
    inside: list[str] = dataclasses.field(default_factory=list)


def per_task(case: Case, *, broker: RedisServer, store: RedisServer, jobs: int = 200) -> Costs:
    """Run jobs on a worker whose store is a server of its own: once weighed, once counted."""
    broker.flush()
    store.flush()
    lasting = dataclasses.replace(case, lease_ttl=_LONG_LEASE)
    app = make_app(lasting, broker=broker.url, store=store.url)
    with worker(lasting, broker=broker.url, store=store.url, concurrency=1) as running:

        def run(count: int, done: int) -> None:
            _submit(app.tasks[NO_OP].apply_async, first=done, jobs=count)
            running.wait_for(done + count)
            running.wait_until(lambda: not broker.command("HLEN", "unacked"), "every ack")

        run(_WARM_UP, 0)
        before = _traffic(store)
        run(jobs, _WARM_UP)
        after = _traffic(store)
        with watched(store) as seen:
            run(jobs, _WARM_UP + jobs)
    close_app(app)
    bytes_in, bytes_out = (late - early for late, early in zip(after, before, strict=True))
    commands = len(seen.calls) + len(seen.inside)
    return Costs(len(seen.calls) / jobs, commands / jobs, bytes_in / jobs, bytes_out / jobs)


def calls_to_submit(case: Case, *, broker: RedisServer, store: RedisServer, jobs: int = 100) -> float:
    """Return the round trips to the store that one ``apply_async`` makes, the first of a process left out."""
    broker.flush()
    store.flush()
    app = make_app(case, broker=broker.url, store=store.url)
    submit = app.tasks[NO_OP].apply_async
    _submit(submit, first=0, jobs=1)
    with watched(store) as seen:
        _submit(submit, first=1, jobs=jobs)
    close_app(app)
    return len(seen.calls) / jobs


def _submit(submit: Any, *, first: int, jobs: int) -> None:
    for number in range(first, first + jobs):
        submit((number,))


@contextmanager
def watched(server: RedisServer) -> Iterator[Seen]:
    """Collect every command that a server runs meanwhile."""
    seen, client = Seen(), redis.Redis.from_url(server.url)
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]  # redis-py gives none
        reader = threading.Thread(target=_collect, args=(monitor, seen), daemon=True)
        reader.start()
        yield seen
        client.echo(_END)
        reader.join(10)
    client.close()


def _collect(monitor: Any, seen: Seen) -> None:
    for entry in monitor.listen():
        if _END in entry["command"]:
            return
        name = entry["command"].split(" ", 1)[0].upper()
        if name not in _NOT_COUNTED:
            (seen.inside if entry["client_type"] == "lua" else seen.calls).append(name)


def _traffic(server: RedisServer) -> tuple[int, int]:
    with redis.Redis.from_url(server.url) as client:
        stats = client.info("stats")
    return stats["total_net_input_bytes"], stats["total_net_output_bytes"]
