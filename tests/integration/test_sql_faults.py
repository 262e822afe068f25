"""The SQL store when many want the same row, when the server goes away, and when its tables are not there."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import event

from celery_reliable.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_reliable.stores import open_store
from celery_reliable.stores.base import Busy, Done, Job, New, Run, Settled
from celery_reliable.stores.sql import SqlStore, ddl, open_sql_store
from celery_reliable.stores.sql.link import IDLE_IN_TRANSACTION
from celery_reliable.testing import servers
from tests.integration.claims import (
    KEYS,
    claim,
    complete,
    declared,
    expect_a_restart_to_be_outlived,
    expect_at_most_one_run_a_key_through_a_crash,
    expect_one_run_a_key,
    expect_sound_counts_after_crossing,
    in_thread,
    submit,
)
from tests.store_contract import LONG, expect
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

pytestmark = pytest.mark.integration


def url_of(module_postgres: servers.Server | servers.ExternalServer) -> str:
    """Return the URL with the driver that we install."""
    return module_postgres.url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def prefix() -> str:
    """A prefix that nobody else uses."""
    return uuid.uuid4().hex


@pytest.fixture
def store(module_postgres: servers.Server, prefix: str) -> Iterator[SqlStore]:
    """A store on the running server."""
    module_postgres.start()
    with contextlib.closing(open_sql_store(module_postgres.url, key_prefix=prefix, timeout=3.0)) as store:
        yield store


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[SqlStore]:
    """A store in a file."""
    with contextlib.closing(open_sql_store(f"sqlite:///{tmp_path}/store.db")) as store:
        store.create_tables()
        yield store


@pytest.fixture
def someone(module_postgres: servers.Server) -> Iterator[Connection]:
    """Another client of the same database."""
    engine = sqlalchemy.create_engine(url_of(module_postgres))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


# --- many at once


def test_fifty_claimers_on_connections_of_their_own_give_one_run_a_key(
    module_postgres: servers.Server, prefix: str
) -> None:
    """Keys that were submitted, and keys without a row, where only the unique index can decide."""
    expect_one_run_a_key(module_postgres.url, prefix)


def test_buries_and_replays_that_cross_do_not_stop_each_other(store: SqlStore) -> None:
    """Keys, letters and counts are locked in one order, whoever begins."""
    expect_sound_counts_after_crossing(store)


def test_a_deadlock_is_answered_by_beginning_again(store: SqlStore, someone: Connection, prefix: str) -> None:
    """Another client locks in the wrong order: PostgreSQL ends our step, which is done again."""
    job = declared()
    submit(store, job)
    run = expect(Run, claim(store, job))
    store.keep_letter("first", letter=b"", letter_ttl=LONG, letter_max=9)
    someone.exec_driver_sql("SET deadlock_timeout = '60s'")  # so that ours is the one that is ended
    someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_fleet WHERE prefix = '{prefix}' FOR UPDATE")
    facts: dict[str, Any] = {"letter_id": "L", "letter": b"letter", "letter_ttl": LONG, "letter_max": 9}
    with in_thread(partial(store.bury, job, task_id="A", fence=run.fence, token="token", **facts)) as burial:
        wait_until(lambda: waiting_for_a_lock(someone), what="the burial waiting")
        someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_record WHERE prefix = '{prefix}' FOR UPDATE")
        someone.rollback()
        assert burial.result(timeout=LONG) == Settled()
    assert store.letter("L") == ("dead", b"letter")


def test_a_serialization_failure_is_answered_by_beginning_again(
    module_postgres: servers.Server, store: SqlStore, someone: Connection, prefix: str
) -> None:
    """Our transactions are READ COMMITTED; a database whose default is stricter refuses single statements, too."""
    job = declared()
    submit(store, job)
    expect(Run, claim(store, job))
    options = "-c%20default_transaction_isolation=repeatable\\%20read"
    strict = open_sql_store(f"{module_postgres.url}?options={options}", key_prefix=prefix, timeout=20.0)
    assert _setting(strict, "default_transaction_isolation") == "repeatable read"
    someone.exec_driver_sql(f"UPDATE celery_reliable_record SET freed = freed WHERE prefix = '{prefix}'")
    with in_thread(lambda: strict._extend([(job, "token", LONG)])) as renewal, contextlib.closing(strict):
        wait_until(lambda: waiting_for_a_lock(someone), what="the renewal waiting")
        someone.commit()
        assert renewal.result(timeout=LONG) == []


def test_fifty_claimers_through_a_crash_of_the_server_give_at_most_one_run_a_key(
    module_postgres: servers.Server, prefix: str
) -> None:
    """Each asks until it is answered. A claim whose answer was cut off is nobody's until its lease ends: never two."""
    expect_at_most_one_run_a_key_through_a_crash(module_postgres, prefix)


def waiting_for_a_lock(connection: Connection) -> bool:
    """Tell whether some session waits for another one's lock."""
    found = connection.exec_driver_sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").all()
    return bool(found)


def test_no_lock_is_held_while_a_task_runs(store: SqlStore, someone: Connection, prefix: str) -> None:
    """Between claim and complete anyone may lock the row, and no session of ours has a transaction open."""
    job = declared()
    submit(store, job)
    run = expect(Run, claim(store, job))
    someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_record WHERE prefix = '{prefix}' FOR UPDATE NOWAIT")
    someone.rollback()
    states = someone.exec_driver_sql(
        "SELECT DISTINCT state FROM pg_stat_activity WHERE application_name = 'celery_reliable'"
    ).all()
    assert [state for (state,) in states] == ["idle"]
    assert complete(store, job, run) == Settled()


def test_processes_that_share_a_file_claim_each_key_once(lite: SqlStore, tmp_path: Path) -> None:
    """SQLite: three processes, twenty keys, no error for a file that is locked."""
    context = multiprocessing.get_context("fork")
    with context.Pool(3) as pool:
        runs = pool.map(_claim_everything, [f"sqlite:///{tmp_path}/store.db"] * 3, chunksize=1)
    assert sorted(chain(*runs)) == sorted(f"order:{number}" for number in range(KEYS))


def _claim_everything(url: str) -> list[str]:
    with contextlib.closing(open_sql_store(url, timeout=30.0)) as store:
        jobs = [declared(f"order:{number}") for number in range(KEYS)]
        return [job.key for job in jobs if isinstance(claim(store, job, token=str(os.getpid())), Run)]


# --- a server that goes away


def test_a_server_that_restarts_is_found_again(store: SqlStore, module_postgres: servers.Server) -> None:
    """By the next call."""
    expect_a_restart_to_be_outlived(store, module_postgres)


def test_a_connection_that_the_server_ended_is_replaced_without_a_word(store: SqlStore, someone: Connection) -> None:
    """As a firewall or a fail-over does it between two calls."""
    job = declared()
    assert submit(store, job) == New(life=1)
    ended = someone.exec_driver_sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'celery_reliable'"
    ).all()
    assert ended
    assert isinstance(claim(store, job), Run)


def test_a_server_that_answers_nothing_is_given_up(module_postgres: servers.Server) -> None:
    """Frozen: a keeper of leases must know in time."""
    module_postgres.start()
    store = open_sql_store(module_postgres.url, timeout=1.0)
    store.now()
    module_postgres.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable):
            claim(store, declared())
        assert time.monotonic() - began < 20.0
    finally:
        module_postgres.thaw()
    assert isinstance(claim(store, declared(uuid.uuid4().hex)), Run)
    store.close()


def test_a_process_that_is_frozen_in_a_step_loses_its_lock(store: SqlStore) -> None:
    """The server ends a transaction that is left open, and a statement that takes too long."""
    shown = partial(_setting, store)
    assert shown("idle_in_transaction_session_timeout") == f"{IDLE_IN_TRANSACTION:.0f}s"
    assert shown("statement_timeout") == shown("lock_timeout") == "3s"


def _setting(store: SqlStore, name: str) -> str:
    with store._link.session() as session:
        ((value,),) = session.rows(f"SELECT current_setting('{name}')", {})
    return str(value)


def test_forked_children_have_connections_of_their_own(store: SqlStore) -> None:
    """A child that uses the store, and ends, leaves its parent's connection alone."""
    store.now()
    context = multiprocessing.get_context("fork")
    jobs = [declared(f"order:{number}") for number in range(4)]
    children = [context.Process(target=_claim_in_child, args=(store, job)) for job in jobs]
    for child in children:
        child.start()
    for child in children:
        child.join(LONG)
    assert [child.exitcode for child in children] == [0] * 4
    with store._link.session() as session:
        assert session.kept
    assert all(isinstance(claim(store, job, token="another"), Busy) for job in jobs)


def _claim_in_child(store: SqlStore, job: Job) -> None:
    expect(Run, claim(store, job))


def test_a_server_that_was_never_there_is_away() -> None:
    """And not a mistake in the configuration."""
    with contextlib.closing(open_store("postgresql://me:secret@127.0.0.1:1/none")) as store:
        with pytest.raises(StoreUnavailable) as caught:
            store.now()
        assert "secret" not in str(caught.value)


# --- a database that is not as it should be


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_missing_tables_name_the_command_that_makes_them(
    module_postgres: servers.Server, tmp_path: Path, kind: str
) -> None:
    """Expected, found, setting, remedy."""
    url = f"sqlite:///{tmp_path}/empty.db"
    if kind == "postgresql":
        module_postgres.start()
        url = f"{module_postgres.url.rpartition('/')[0]}/template1"
    with contextlib.closing(open_store(url)) as store, pytest.raises(StoreError) as caught:
        claim(store, declared())
    assert not isinstance(caught.value, StoreUnavailable)
    assert "reliable_store_url" in str(caught.value)
    assert "celery -A PROJECT reliable schema" in str(caught.value)


def test_a_database_that_does_not_exist_is_a_mistake(module_postgres: servers.Server) -> None:
    """Trying again cannot help."""
    module_postgres.start()
    store = open_store(f"{module_postgres.url.rpartition('/')[0]}/nowhere")
    with contextlib.closing(store), pytest.raises(StoreError, match="check user, password, database") as caught:
        store.now()
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_file_in_no_directory_is_a_mistake(tmp_path: Path) -> None:
    """Its text says what must be there."""
    store = open_store(f"sqlite:///{tmp_path}/nowhere/store.db")
    with contextlib.closing(store), pytest.raises(StoreError, match="directory must exist") as caught:
        store.now()
    assert not isinstance(caught.value, StoreUnavailable)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    """No other process would see it."""
    with pytest.raises(ConfigurationError, match=r"reliable_store_url.*memory://"):
        open_store(url)


def test_findings_name_what_is_missing_and_what_is_forgetful(store: SqlStore, lite: SqlStore, tmp_path: Path) -> None:
    """The server of these tests runs without fsync; a file with its tables has nothing to be said about."""
    assert [finding.partition(":")[0] for finding in store.findings()] == ["fsync is off"]
    assert lite.findings() == []
    with contextlib.closing(open_sql_store(f"sqlite:///{tmp_path}/empty.db")) as empty:
        (finding,) = empty.findings()
    assert "celery -A PROJECT reliable schema" in finding


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_tables_of_a_newer_version_are_refused(
    module_postgres: servers.Server, tmp_path: Path, kind: str, prefix: str
) -> None:
    """Nothing is read or changed, and the text says what to upgrade; making the tables again does not count down."""
    url = f"sqlite:///{tmp_path}/newer.db" if kind == "sqlite" else module_postgres.url
    with contextlib.closing(open_sql_store(url, key_prefix=prefix)) as store:
        store.create_tables()
        submit(store, declared())
        with _schema_of(store, ddl.NUMBER + 1):
            older = open_sql_store(url, key_prefix=prefix)
            for call in (partial(claim, older, declared()), older.now, older.create_tables, older.create_tables):
                with pytest.raises(StoreError, match=r"\(schema 1\), found .* schema 2.*upgrade celery-reliable"):
                    call()
            assert "upgrade celery-reliable" in older.findings()[0]
            older.close()
        assert isinstance(claim(store, declared()), Run)


@contextlib.contextmanager
def _schema_of(store: SqlStore, number: int) -> Iterator[None]:
    """Let the tables be of another version for a block of code."""
    changed = "UPDATE celery_reliable_note SET version = :number WHERE shelf = '.schema'"
    with store._link.session() as session:
        assert session.change(changed, {"number": number}) == 1
    try:
        yield
    finally:
        with store._link.session() as session:
            session.change(changed, {"number": ddl.NUMBER})


def test_tables_that_alembic_made_have_no_number(lite: SqlStore) -> None:
    """And are used all the same."""
    with lite._link.session() as session:
        session.change("DELETE FROM celery_reliable_note WHERE shelf = '.schema'", {})
    assert isinstance(claim(open_sql_store(str(lite._link._url)), declared()), Run)  # type: ignore[attr-defined]


def test_what_does_not_fit_a_column_is_refused_in_words(store: SqlStore) -> None:
    """A task id of a foreign producer; keys are kept by their digest, and outcomes of any size."""
    with pytest.raises(StoreError, match="255 characters"):
        submit(store, declared(), "A" * 300, envelope=b"call")
    job = declared("k" * 5000)
    submit(store, job)
    run = expect(Run, claim(store, job))
    outcome = os.urandom(3_000_000)
    store.complete(job, task_id="A", fence=run.fence, token="token", outcome=outcome, marker_ttl=LONG)
    assert expect(Done, claim(store, job, token="another")).outcome == outcome


def test_a_database_that_may_only_be_read(
    module_postgres: servers.Server, lite: SqlStore, tmp_path: Path, prefix: str
) -> None:
    """PostgreSQL: as after a fail-over, so the call is tried again. SQLite: a file without the right to write it."""
    options = "-c%20default_transaction_read_only=on"
    read_only = open_sql_store(f"{module_postgres.url}?options={options}", key_prefix=prefix)
    with contextlib.closing(read_only), pytest.raises(StoreUnavailable, match="read-only transaction"):
        submit(read_only, declared())
    file = open_sql_store(f"sqlite:///file:{tmp_path}/store.db?mode=ro&uri=true")
    with contextlib.closing(file), pytest.raises(StoreError, match=r"readonly database.*writable for this user"):
        submit(file, declared())


# --- what is old


def test_what_is_over_is_removed_in_batches(lite: SqlStore) -> None:
    """Records with their progress, and notes; what lives stays."""
    run = expect(Run, claim(lite, declared("kept")))
    for number in range(3):
        job = declared(f"old:{number}")
        old = expect(Run, claim(lite, job, ttl=0.05, record_ttl=0.05))
        lite.save(job, fence=old.fence, token="token", name="state", body=b"half", ttl=0.05)
    with lite._link.session() as session:
        copies = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500) "
            "INSERT INTO celery_reliable_record SELECT prefix, CAST(i AS blob), state, task_id, life, fence, token, "
            "lease_until, freed, ends, details, envelope, outcome FROM celery_reliable_record, n WHERE digest = :digest"
        )
        session.change(copies, {"digest": declared("old:0").digest})
    wait_until(lambda: lite.inspect(declared("old:2")) == {}, what="the end of the old ones")

    assert lite.tidy(batches=1) == 1000
    lite.renew([], pulse_ttl=LONG)
    with lite._link.session() as session:
        assert session.rows("SELECT count(*) FROM celery_reliable_record", {}) == [(1,)]
        assert session.rows("SELECT count(*) FROM celery_reliable_progress", {}) == [(0,)]
    assert complete(lite, declared("kept"), run) == Settled()


# --- the price


def test_round_trips_of_each_verb(lite: SqlStore) -> None:
    """One transaction for a claim; one statement for a submission without a declared key, and for all renewals."""
    said: list[str] = []
    lite.now()
    link: Any = lite._link
    event.listen(link.engine, "before_cursor_execute", lambda *facts: said.append(facts[2].split()[0]))
    job, own = declared(), Job("B")

    def cost(call: Callable[[], Any]) -> list[str]:
        said.clear()
        call()
        return list(said)

    assert cost(lambda: submit(lite, own, "B", envelope=b"call")) == ["INSERT"]
    assert cost(lambda: submit(lite, job, envelope=b"call")) == ["BEGIN", "SELECT", "INSERT", "INSERT", "COMMIT"]
    assert cost(lambda: claim(lite, job)) == ["BEGIN", "SELECT", "UPDATE", "COMMIT"]
    run = expect(Run, claim(lite, own, task_id="B"))
    assert cost(lambda: lite._extend([(job, "token", LONG), (own, "token", LONG)])) == ["UPDATE"]
    assert cost(lambda: complete(lite, own, run)) == ["BEGIN", "SELECT", "UPDATE", "DELETE", "COMMIT"]
