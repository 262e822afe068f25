"""Overlap by an advisory lock of PostgreSQL: what frees a right at once, and what must not."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.checks.live import overlap_lock_findings
from celery_reliable.errors import ConfigurationError, StoreUnavailable
from celery_reliable.runtime import runtime_of
from celery_reliable.stores import lives_of
from celery_reliable.stores.sql import SqlStore, lives, open_sql_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.overlap_jobs import add_tasks
from tests.integration.apps.stage import Stage
from tests.integration.pooler import start_pgbouncer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.stores.sql.lives import SqlLives
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.overlap_jobs"
LEASE = 60.0  # far longer than anything here may take
DEADLINE = 30.0
SOON = 10.0  # on a busy machine


@pytest.fixture
def mine(module_postgres: servers.Server) -> Iterator[SqlStore]:
    """The store of one process."""
    with contextlib.closing(open_sql_store(module_postgres.url)) as store:
        yield store


@pytest.fixture
def other(module_postgres: servers.Server) -> Iterator[SqlStore]:
    """The store of another one."""
    with contextlib.closing(open_sql_store(module_postgres.url)) as store:
        yield store


# --- in workers


def test_a_killed_worker_s_right_is_free_at_once(  # noqa: PLR0917
    module_postgres: servers.Server,
    module_redis: servers.RedisServer,
    workers: Workers,
    other: SqlStore,
    tmp_path: Path,
    label: str,
) -> None:
    """A new job runs, and one that waited; neither waits for the lease, and while the holder lived both were kept out."""
    conf = {**RESTORING, "reliable_lease_ttl": LEASE, "reliable_overlap_lock": "postgres-advisory"}
    stage = Stage.on(module_redis.url, directory=tmp_path, conf=conf)
    stage = dataclasses.replace(stage, store=module_postgres.url)
    with client(stage) as app:
        tasks = add_tasks(app).tasks

        def send(policy: str, name: str, *, queue: str | None = None) -> Any:
            call = tasks[f"alone_{policy}"].s(f"{label}:{policy}", name).set(task_id=f"{label}-{name}", queue=queue)
            return call.apply_async(link=tasks["add"].si(1, f"{label}:link"))  # past the look at submission

        given: dict[str, Any] = {"env": stage.environment(), "arguments": QUICK, "ready": False}
        doomed = workers.start(APP, concurrency=2, queues=[label], **given)
        workers.start(APP, pool="threads", concurrency=4, **given)
        held = [send("forbid", "a", queue=label), send("queue", "b", queue=label)]
        for policy in ("forbid", "queue"):
            stage.wait_entries(f"{label}:{policy}", 1)
        skipped, waiting = send("forbid", "c"), send("queue", "d")
        assert stage.wait_event("skipped", skipped.id)[0]["reason"] == f"task {held[0].id} runs"
        stage.wait_event("overlap_waits", waiting.id, count=2)

        holders, killed = set(sessions_of(other)), time.monotonic()
        doomed.kill()
        wait_until(lambda: holders - set(sessions_of(other)), SOON, "PostgreSQL to notice")
        new = send("forbid", "e")
        for policy in ("forbid", "queue"):
            began = stage.wait_entries(f"{label}:{policy}", 2, timeout=DEADLINE)[1]
            assert began["at"] - killed < SOON
        for name in "de":
            for policy in ("forbid", "queue"):
                stage.open(f"{label}:{policy}:{name}")
        assert [new.get(timeout=DEADLINE), waiting.get(timeout=DEADLINE)] == ["e", "d"]
        assert not any("pooled" in event["finding"] for event in stage.events("finding"))


# --- the lock alone


def sessions_of(store: SqlStore) -> list[int]:
    """Return the server's processes that hold a lock of ours."""
    with store._link.session() as session:
        return [pid for (pid,) in session.rows("SELECT pid FROM pg_locks WHERE locktype = 'advisory'", {})]


def test_a_process_that_ended_is_gone_and_one_that_lives_is_not(
    mine: SqlStore, module_postgres: servers.Server
) -> None:
    """By SIGKILL, on another connection's word alone."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_sign_and_wait, args=(module_postgres.url, there))
    child.start()
    assert here.poll(DEADLINE)
    sign = here.recv()
    assert not mine.lives.is_gone(sign)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(DEADLINE)
    wait_until(lambda: mine.lives.is_gone(sign), DEADLINE, "the lock free")
    assert sessions_of(mine) == []


def _sign_and_wait(url: str, pipe: Any) -> None:
    pipe.send(open_sql_store(url).lives.sign())
    time.sleep(DEADLINE)


def test_one_connection_and_one_lock_for_all_rights_of_a_process(mine: SqlStore, other: SqlStore) -> None:
    """Which another store of the process does not share, and closing gives back."""
    assert mine.lives.sign() == mine.lives.sign()
    assert len(sessions_of(other)) == 1
    sign = mine.lives.sign()
    mine.close()
    mine.close()
    wait_until(lambda: other.lives.is_gone(sign), DEADLINE, "the lock free")


def test_a_lost_connection_is_not_a_lost_process(mine: SqlStore, other: SqlStore) -> None:
    """Ended by an administrator: the lock is taken again under its name, before anybody has looked twice."""
    sign = mine.lives.sign()
    (before,) = sessions_of(other)
    with other._link.session() as session:
        session.rows(f"SELECT pg_terminate_backend({before}, 5000)", {})
    assert not other.lives.is_gone(sign)
    (after,) = wait_until(lambda: sessions_of(other), DEADLINE, "the lock taken again")
    assert after != before
    assert mine.lives.sign() == sign


def test_a_lock_is_taken_again_under_its_own_number(mine: SqlStore, other: SqlStore) -> None:
    """Also when the server knows only later that the old session is over: here another one has the number meanwhile."""
    sign = mine.lives.sign()
    number = int(sign.partition(":")[2])
    (holder,) = sessions_of(other)
    late = other._link.lone()
    with ThreadPoolExecutor(1) as pool, other._link.session() as session:
        given = {"space": lives._SPACE, "number": number}
        taking = pool.submit(
            late.session.rows, "SELECT pg_advisory_lock(CAST(:space AS integer), CAST(:number AS integer))", given
        )
        wait_until(lambda: len(sessions_of(other)) == 2, DEADLINE, "the other one waiting")
        session.rows(f"SELECT pg_terminate_backend({holder}, 5000)", {})
        taking.result(DEADLINE)
    assert not other.lives.is_gone(sign)
    late.close()
    assert not other.lives.is_gone(sign)
    assert mine.lives.sign() == sign


def test_a_crash_of_the_server_ends_nobody(mine: SqlStore, other: SqlStore) -> None:
    """One of its processes is killed, so it throws out all, and goes on: who lives is back before anybody looks twice."""
    sign = mine.lives.sign()
    with other._link.session() as session:
        ((victim,),) = session.rows("SELECT pg_backend_pid()", {})
    os.kill(victim, signal.SIGKILL)
    assert not _answer(other.lives, sign)


def test_a_server_that_was_started_anew_knows_of_nobody(
    mine: SqlStore, other: SqlStore, module_postgres: servers.Server
) -> None:
    """Its locks are gone with it, which says nothing about the processes: their leases do."""
    sign = mine.lives.sign()
    mine.close()
    module_postgres.kill()
    module_postgres.start()
    assert not _answer(other.lives, sign)


def _answer(looked: SqlLives, sign: str) -> bool:
    """Ask until the server is back."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return looked.is_gone(sign)
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_has_a_lock_of_its_own(mine: SqlStore, other: SqlStore) -> None:
    """And leaves that of its parent alone, also when it ends."""
    sign = mine.lives.sign()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=lambda: there.send(mine.lives.sign()))
    child.start()
    child.join(DEADLINE)
    signed = here.recv()
    assert signed != sign
    wait_until(lambda: other.lives.is_gone(signed), DEADLINE, "the child's lock free")
    assert not other.lives.is_gone(sign)
    assert len(sessions_of(other)) == 1


# --- what is refused


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_refused_and_found(module_postgres: servers.Server, stage: Stage, label: str, mode: str) -> None:
    """A real PgBouncer, on a free port and under any name: no lock is left behind it, and jobs go on by their leases."""
    with start_pgbouncer(module_postgres, mode=mode) as pooler:
        conf = {"reliable_overlap_lock": "postgres-advisory"}
        with client(dataclasses.replace(stage, store=pooler.url, conf=conf)) as app:
            runtime = runtime_of(app)
            with pytest.raises(ConfigurationError, match=r"reliable_overlap_lock.*PgBouncer.*reliable_store_url"):
                lives_of(runtime.store).sign()
            (finding,) = overlap_lock_findings(app)
            assert (finding.code, finding.severity) == ("overlap_lock_pooled", "error")
            assert [runtime.rights._lives.sign() for _ in range(2)] == ["", ""]  # type: ignore[union-attr]
            (told,) = [one["finding"] for one in stage.events("finding") if "pooled" in one["finding"]][-1:]
            assert told.startswith("overlap_lock_pooled: reliable_overlap_lock: expected")
    with contextlib.closing(open_sql_store(module_postgres.url)) as store:
        assert sessions_of(store) == []


def test_sqlite_is_refused(tmp_path: Path) -> None:
    """It has no server that would notice."""
    with (
        contextlib.closing(open_sql_store(f"sqlite:///{tmp_path}/store.db")) as store,
        pytest.raises(ConfigurationError, match=r"PostgreSQL.*found sqlite"),
    ):
        lives_of(store)
