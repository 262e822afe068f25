"""Weigh a finished key in Redis, and a process with and without the pack."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import redis

from benchmarks.cases import NO_OP, PLAIN, Case, enqueue
from benchmarks.fleet import worker
from benchmarks.machine import memory
from celery_reliable.stores import open_store
from celery_reliable.stores.base import Job, Run, Store
from celery_reliable.stores.redis_keys import Keys
from celery_reliable.testing.servers import RedisServer

KEYS_AN_HOUR = 400_000
_BUCKETS = 64  # of 4096: a sixty-fourth of an hour's keys, which fill their buckets as all of them would
_TTL, _HOUR = 7 * 86_400.0, 3600.0


def own_key(server: RedisServer, *, keys_an_hour: int = KEYS_AN_HOUR) -> float:
    """Return the bytes of a finished key of its own, when that many begin in an hour."""
    count = keys_an_hour * _BUCKETS // 4096
    return _slope(server, lambda store: _own_jobs(store.now(), count))


def declared_key(server: RedisServer, *, count: int = 6144) -> float:
    """Return the bytes of a finished declared key; the count fills Redis's table of keys by three quarters."""
    return _slope(server, lambda _: (Job(f"order:{number}:{uuid.uuid4()}", "declared") for number in range(count)))


def rounding(server: RedisServer) -> int:
    """Return what the allocator adds to each of the two table entries (24 bytes) of a key with a time to live.

    The jemalloc that comes with Redis has a class of 24 bytes; that of distributions rounds up to 32.
    """
    with redis.Redis.from_url(server.url) as client:
        found = re.findall(r"^\s+(\d+)\s+\d+\s", str(client.execute_command("MEMORY MALLOC-STATS")), re.MULTILINE)
    return 0 if "24" in found else 16


def _slope(server: RedisServer, jobs: Callable[[Store], Iterator[Job]]) -> float:
    """Finish jobs through the store's verbs and return how much the server's memory grew for each."""
    server.flush()
    with closing(open_store(server.url)) as store:
        for number in range(200):  # scripts, tables and statistics of commands are there before the weighing
            _finish(store, Job(f"warm-up:{number}", "declared"))
            _finish(store, Job(f"warm-up:{number}", "own", store.now() - 24 * 3_600_000_000))
        prepared = list(jobs(store))
        before = _used(server, store)
        for job in prepared:
            _finish(store, job)
        return (_used(server, store) - before) / len(prepared)


def _used(server: RedisServer, store: Store) -> int:
    """Return what Redis uses while nobody but us is connected: buffers of busy clients would outweigh the keys."""
    store.close()
    with redis.Redis.from_url(server.url) as client:
        deadline = time.monotonic() + 10
        while len(client.client_list()) > 1:
            if time.monotonic() > deadline:
                msg = "expected no other client of the server that is weighed, found some; use a server of its own"
                raise TimeoutError(msg)
            time.sleep(0.01)
        return int(client.info("memory")["used_memory"])


def _own_jobs(now: int, count: int) -> Iterator[Job]:
    """Yield jobs whose records lie in the first buckets of this hour."""
    keys, buckets = Keys(prefix="cr:", shards=1), set[str]()
    while count:
        job = Job(str(uuid.uuid4()), "own", now)
        if len(buckets) < _BUCKETS:
            buckets.add(keys.place(job).record)
        if keys.place(job).record in buckets:
            count -= 1
            yield job


def _finish(store: Store, job: Job) -> None:
    task_id = job.key if job.kind == "own" else str(uuid.uuid4())
    prints = "" if job.kind == "own" else "abcdefgh"
    store.submit(job, task_id=task_id, fingerprint=prints, envelope=b"call", ttl=_TTL)
    claim = store.claim(
        job,
        task_id=task_id,
        life=1,
        fingerprint=prints,
        token="aaaabbbbcccc",
        ttl=15.0,
        max_deliveries=5,
        record_ttl=_TTL,
        first=True,
    )
    if not isinstance(claim, Run):
        msg = f"expected a claim that may run, found {claim}"
        raise TypeError(msg)
    ttl = _HOUR if job.kind == "own" else _TTL
    store.complete(job, task_id=task_id, fence=claim.fence, token="aaaabbbbcccc", outcome=None, marker_ttl=ttl)


def per_process(case: Case, *, server: RedisServer, jobs: int = 200) -> float:
    """Return the megabytes that each process of a worker needs beyond plain Celery's: main process and children."""
    return (_processes(case, server, jobs=jobs) - _processes(PLAIN, server, jobs=jobs)) / 3


def _processes(case: Case, server: RedisServer, *, jobs: int) -> float:
    server.flush()
    enqueue(case, NO_OP, url=server.url, numbers=range(jobs))
    with worker(case, broker=server.url, store=server.url) as running:
        running.wait_for(jobs)
        return sum(memory(pid) for pid in running.pids)
