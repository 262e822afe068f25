"""Measure the store in PostgreSQL and in MariaDB, beside two queues that live in a database: ``python -m benchmarks.sql``.

Each rate is the median of the rounds; a round measures everything once, one after the other, on one server. A rival that is
not installed is named as missing: ``pip install procrastinate django-q2 "psycopg[binary,pool]"``, here or in an environment of
their own, whose interpreter ``--rivals`` names. The rivals run a job that does nothing, in the worker that they come with;
ours are the verbs that a task of ours needs, without broker and worker. Last, how soon the advisory lock of a killed process
is seen to be free.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection

import sqlalchemy
from sqlalchemy.orm import Session

from celery_reliable.contrib.sqlalchemy import metadata, outbox, transaction
from celery_reliable.inbox import Claim, once_committed
from celery_reliable.stores.base import Job, Run
from celery_reliable.stores.sql import SqlStore, open_sql_store
from celery_reliable.testing.servers import start_mariadb, start_postgres

_PROCESSES, _THREADS = 2, 4
_KILLS = 10
_TTL = 3600.0
_CLAIM = {"task_id": "A", "life": 1, "token": "t", "ttl": 15.0, "max_deliveries": 5, "record_ttl": _TTL}


def main() -> int:
    """Print the rates and the counts of statements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000, help="in each round (default 1000)")
    parser.add_argument("--rivals", default=sys.executable, help="interpreter that has them (default: this one)")
    wanted = parser.parse_args()
    rivals = {name: _is_there(wanted.rivals, name) for name in _RIVALS}
    measures = _measures(wanted.rivals, [name for name, there in rivals.items() if there])
    with start_postgres() as server, start_mariadb() as mariadb:
        for url in (server.url, mariadb.url):
            with closing(open_sql_store(url)) as store:
                store.create_tables()
        measures |= {f"{name}, MariaDB": partial(_elsewhere, mariadb.url, measure) for name, measure in _OURS.items()}
        for name, count in statements(server.url):
            _say(f"{name:<48} {count} statement{'s' * (count != 1)}")
        rates: dict[str, list[float]] = {}
        for number in range(wanted.rounds):
            sys.stderr.write(f"round {number + 1}\n")
            for name, measure in measures.items():
                rates.setdefault(name, []).append(measure(server.url, wanted.jobs))
                sys.stderr.write(f"  {name}: {rates[name][-1]:.0f} a second\n")
        freed = [_freed(server.url) for _ in range(_KILLS)]
    for name, found in rates.items():
        _say(f"{name:<48} {statistics.median(found):.0f} a second ({min(found):.0f} to {max(found):.0f})")
    found = f"{statistics.median(freed):.2f} s ({min(freed):.2f} to {max(freed):.2f}) after the kill, {_KILLS} times"
    _say(f"{'advisory lock of a killed process, seen as free':<48} {found}")
    for rival in (name for name, there in rivals.items() if not there):
        _say(f"{rival:<48} is not installed, and was not measured")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _is_there(python: str, module: str) -> bool:
    asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", asked], check=False).returncode == 0


def _measures(python: str, rivals: list[str]) -> dict[str, Callable[[str, int], float]]:
    return {**_OURS, **{f"{name}: jobs": partial(_rival, python, name) for name in rivals}}


# --- ours


def _ours(what: str, url: str, jobs: int) -> float:
    share = jobs // _PROCESSES
    with ProcessPoolExecutor(_PROCESSES) as pool:
        list(pool.map(_work, [what] * _PROCESSES, [url] * _PROCESSES, [_PROCESSES * _THREADS] * _PROCESSES))  # warm up
        begun = time.perf_counter()
        list(pool.map(_work, [what] * _PROCESSES, [url] * _PROCESSES, [share] * _PROCESSES))
        return share * _PROCESSES / (time.perf_counter() - begun)


_OURS = {
    "store: claim": partial(_ours, "claims"),
    "store: claim and complete": partial(_ours, "lives"),
    "store: submit, claim and complete": partial(_ours, "whole"),
}


def _elsewhere(url: str, measure: Callable[[str, int], float], _: str, jobs: int) -> float:
    return measure(url, jobs)


def _freed(url: str) -> float:
    """Return the seconds from the kill of a process until another one is told that it is gone."""
    mine, its = multiprocessing.Pipe()
    holder = multiprocessing.Process(target=_hold, args=(url, its))
    holder.start()
    sign = mine.recv()
    with closing(open_sql_store(url)) as store:
        if store.lives.is_gone(sign):
            raise RuntimeError("the lock of a process that lives was seen as free")
        holder.kill()
        begun = time.perf_counter()
        while not store.lives.is_gone(sign):
            time.sleep(0.01)
        return time.perf_counter() - begun


def _hold(url: str, pipe: Connection) -> None:
    with closing(open_sql_store(url)) as store:
        pipe.send(store.lives.sign())
        pipe.recv()


def _work(what: str, url: str, jobs: int) -> None:
    with closing(open_sql_store(url)) as store, ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_one, what, store), range(jobs)))


def _one(what: str, store: SqlStore, _: int) -> None:
    task_id = str(uuid.uuid4())
    job = Job(task_id, "own", 1)
    if what == "whole":
        store.submit(job, task_id=task_id, envelope=b"call" * 100, ttl=_TTL)
    run = store.claim(job, **{**_CLAIM, "task_id": task_id})
    if what != "claims" and isinstance(run, Run):
        store.complete(job, task_id=task_id, fence=run.fence, token="t", outcome=None, marker_ttl=_TTL)


def statements(url: str) -> Iterator[tuple[str, int]]:
    """Count what is said to the server for each verb of one task, BEGIN and COMMIT included."""
    with closing(open_sql_store(url)) as store:
        store.now()
        said: list[str] = []
        engine = store._link.engine  # type: ignore[attr-defined]  # noqa: SLF001  # no other way to listen
        sqlalchemy.event.listen(engine, "before_cursor_execute", lambda _, __, text, *___: said.append(text))
        job, task_id = Job("job", "own", 1), "A"
        store.submit(job, task_id=task_id, envelope=b"call", ttl=_TTL)
        yield "submit, own key", _taken(said)
        run = store.claim(job, **_CLAIM)
        yield "claim", _taken(said)
        if isinstance(run, Run):
            store.complete(job, task_id=task_id, fence=run.fence, token="t", outcome=None, marker_ttl=_TTL)
        yield "complete", _taken(said)
        store.submit(Job("declared", "declared"), task_id="B", envelope=b"call", ttl=_TTL)
        yield "submit, declared key", _taken(said)
        yield from _in_the_caller_s_transaction(url, store)


def _in_the_caller_s_transaction(url: str, store: SqlStore) -> Iterator[tuple[str, int]]:
    """Count what inbox and outbox add to the transaction of the effect."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    metadata.create_all(engine)
    with Session(engine) as session, outbox(session):
        store.outbox.transaction()  # asks once whether it is the database of the store
    said: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda _, __, text, *___: said.append(text))
    for result in (None, 7):
        claim = Claim(Job(f"inbox {result}", "own", 1), 1, "cr:", _TTL, store)
        with Session(engine) as session, once_committed(partial(transaction, session), claim) as done:
            done.result = result
        yield f"inbox, {'a' if result else 'no'} result", _taken(said)
    with Session(engine) as session, session.begin(), outbox(session):
        named = store.outbox.transaction()
        if named is not None:
            store.outbox.promise(named, Job("outbox", "declared"), task_id="C", envelope=b"call")
    yield "outbox, any key", _taken(said)
    engine.dispose()


def _taken(said: list[str]) -> int:
    count = len(said)
    said.clear()
    return count


# --- rivals, each in a process of its own: Django's settings and an event loop are one for a process


def _rival(python: str, name: str, url: str, jobs: int) -> float:
    command = [python, "-c", _RIVALS[name], url, str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    return jobs / float(done.stdout.split()[-1])


_PROCRASTINATE = """
import sys, time
import procrastinate

url, jobs = sys.argv[1], int(sys.argv[2])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

@app.task
async def nothing(): ...

async def run():
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await nothing.batch_defer_async(*({} for _ in range(jobs)))
        begun = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=8, install_signal_handlers=False)
        print(time.perf_counter() - begun)

import asyncio
asyncio.run(run())
"""

_DJANGO_Q = """
import logging, sys, time
from urllib.parse import urlsplit
import django
from django.conf import settings

url, jobs = urlsplit(sys.argv[1]), int(sys.argv[2])
settings.configure(
    SECRET_KEY="benchmark",
    INSTALLED_APPS=["django.contrib.contenttypes", "django_q"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
                           "HOST": url.hostname, "PORT": url.port}},
    Q_CLUSTER={"orm": "default", "workers": 2, "bulk": 50, "poll": 0.01, "timeout": 60, "retry": 120, "save_limit": 100},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
logging.disable(logging.CRITICAL)
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.db import connection
from django_q.cluster import Cluster
from django_q.models import OrmQ, Success
from django_q.tasks import async_task

for _ in range(jobs):
    async_task("math.sqrt", 4, group=sys.argv[2], save=False)
connection.close()
cluster = Cluster()
cluster.start()
while OrmQ.objects.count() == jobs:
    time.sleep(0.005)
begun = time.perf_counter()
while OrmQ.objects.exists():
    time.sleep(0.01)
print(time.perf_counter() - begun)
cluster.stop()
"""

_RIVALS = {"procrastinate": _PROCRASTINATE, "django_q": _DJANGO_Q}

if __name__ == "__main__":
    sys.exit(main())
