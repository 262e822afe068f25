"""The SQL store on MariaDB: when many want the same row, when the server goes away, and what the server is told."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from celery_reliable.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_reliable.stores.base import Busy, Job, Run, Settled
from celery_reliable.stores.notes import Write
from celery_reliable.stores.sql import SqlStore, ddl, open_sql_store
from celery_reliable.testing import servers
from tests.integration.claims import (
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


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A MariaDB with the store's tables, which may be broken."""
    with servers.start_mariadb() as server:
        with contextlib.closing(open_sql_store(server.url)) as store:
            store.create_tables()
        yield server


@pytest.fixture
def prefix() -> str:
    """A prefix that nobody else uses."""
    return uuid.uuid4().hex


@pytest.fixture
def store(server: servers.Server, prefix: str) -> Iterator[SqlStore]:
    """A store on the running server."""
    server.start()
    with contextlib.closing(open_sql_store(server.url, key_prefix=prefix, timeout=3.0)) as store:
        yield store


@pytest.fixture
def someone(server: servers.Server) -> Iterator[Connection]:
    """Another client of the same database."""
    server.start()
    url = server.url.replace("mariadb://", "mariadb+pymysql://", 1)
    engine = sqlalchemy.create_engine(url, isolation_level="READ COMMITTED")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


# --- many at once


def test_fifty_claimers_on_connections_of_their_own_give_one_run_a_key(server: servers.Server, prefix: str) -> None:
    """Keys that were submitted, and keys without a row, where only the unique index can decide."""
    server.start()
    expect_one_run_a_key(server.url, prefix)


def test_buries_and_replays_that_cross_do_not_stop_each_other(store: SqlStore) -> None:
    """Keys, letters and counts are locked in one order, whoever begins."""
    expect_sound_counts_after_crossing(store)


def test_fifty_claimers_through_a_crash_of_the_server_give_at_most_one_run_a_key(
    server: servers.Server, prefix: str
) -> None:
    """Each asks until it is answered. A claim whose answer was cut off is nobody's until its lease ends: never two."""
    expect_at_most_one_run_a_key_through_a_crash(server, prefix)


def test_a_deadlock_is_answered_by_beginning_again(store: SqlStore, someone: Connection, prefix: str) -> None:
    """Another client locks in the wrong order: MariaDB ends our step, which has written less, and it is done again."""
    job = declared()
    submit(store, job)
    run = expect(Run, claim(store, job))
    store.keep_letter("first", letter=b"", letter_ttl=LONG, letter_max=9)
    before = status(someone, "Innodb_deadlocks")
    copies = "SELECT seq, '', '', 0, 0, 0 FROM seq_1_to_100"
    someone.exec_driver_sql(f"INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends) {copies}")
    someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_fleet WHERE prefix = '{prefix}' FOR UPDATE")
    facts: dict[str, Any] = {"letter_id": "L", "letter": b"letter", "letter_ttl": LONG, "letter_max": 9}
    with in_thread(partial(store.bury, job, task_id="A", fence=run.fence, token="token", **facts)) as burial:
        wait_until(lambda: status(someone, "Innodb_row_lock_current_waits") == 1, what="the burial waiting")
        someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_record WHERE prefix = '{prefix}' FOR UPDATE")
        someone.rollback()
        assert burial.result(timeout=LONG) == Settled()
    assert status(someone, "Innodb_deadlocks") == before + 1
    assert store.letter("L") == ("dead", b"letter")


def status(connection: Connection, name: str) -> int:
    """Return a number that the server keeps; its tables of locks are as old as the last look at them."""
    ((_, value),) = connection.exec_driver_sql(f"SHOW GLOBAL STATUS LIKE '{name}'").all()
    return int(value)


@pytest.mark.parametrize("verb", ["claim", "extend", "lead", "write"])
def test_a_step_locks_the_rows_of_its_own_key_alone(
    store: SqlStore, someone: Connection, prefix: str, verb: str
) -> None:
    """Other rows of the same prefix are locked by somebody else, and nobody waits for him."""
    mine, other = declared("order:1"), declared("order:2")
    for job in (mine, other):
        submit(store, job)
        expect(Run, claim(store, job, token=job.key))
    write(store, "shelf 2")
    assert lead(store, "role 2") != "no"
    someone.execute(
        sqlalchemy.text("SELECT 1 FROM celery_reliable_record WHERE prefix = :p AND digest = :d FOR UPDATE"),
        {"p": prefix, "d": other.digest},
    )
    someone.exec_driver_sql(
        f"SELECT 1 FROM celery_reliable_note WHERE prefix = '{prefix}' AND name IN ('', 'role 2') AND shelf <> 'shelf 1' FOR UPDATE"
    )
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: isinstance(claim(store, mine, token="another"), Busy),
        "extend": lambda: store._extend([(mine, "order:1", LONG)]) == [],
        "lead": lambda: lead(store, "role 1") != "no",
        "write": lambda: write(store, "shelf 1") != [None],
    }
    assert calls[verb]()


def lead(store: SqlStore, role: str) -> str:
    """Take a role."""
    return store.lead(role, token="token", ttl=LONG, pulse_ttl=LONG)


def write(store: SqlStore, shelf: str) -> list[int | None]:
    """Write one note."""
    return store.notes.write(shelf, [Write(name="name", value=b"value", ttl=LONG)])


def test_the_clock_is_read_after_the_row_is_locked(store: SqlStore, someone: Connection, prefix: str) -> None:
    """Who had to wait must not judge leases by the time at which he began to."""
    job = declared()
    submit(store, job)
    someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_record WHERE prefix = '{prefix}' FOR UPDATE")
    with in_thread(lambda: store._atomically(lambda tables: (tables.record(job), tables.now))) as step:
        wait_until(lambda: status(someone, "Innodb_row_lock_current_waits") == 1, what="the step waiting")
        ((waited,),) = someone.exec_driver_sql("SELECT UNIX_TIMESTAMP(SYSDATE(6))").all()
        someone.rollback()
        record, now = step.result(timeout=LONG)
    assert record is not None
    assert now > waited


def test_no_lock_is_held_while_a_task_runs(store: SqlStore, someone: Connection, prefix: str) -> None:
    """Between claim and complete anyone may lock the row, and no session of ours has a transaction open."""
    job = declared()
    submit(store, job)
    run = expect(Run, claim(store, job))
    someone.exec_driver_sql(f"SELECT 1 FROM celery_reliable_record WHERE prefix = '{prefix}' FOR UPDATE NOWAIT")
    someone.rollback()
    assert someone.exec_driver_sql("SELECT count(*) FROM information_schema.innodb_trx").all() == [(0,)]
    assert complete(store, job, run) == Settled()


# --- a server that goes away


def test_a_server_that_restarts_is_found_again(store: SqlStore, server: servers.Server) -> None:
    """By the next call."""
    expect_a_restart_to_be_outlived(store, server)


def test_a_connection_that_the_server_ended_is_replaced_without_a_word(store: SqlStore, someone: Connection) -> None:
    """As a firewall, a fail-over or ``wait_timeout`` does it between two calls."""
    job = declared()
    submit(store, job)
    ((mine,),) = shown(store, "CONNECTION_ID()")
    someone.exec_driver_sql(f"KILL {mine}")
    assert isinstance(claim(store, job), Run)
    assert shown(store, "CONNECTION_ID()") != [(mine,)]


def test_a_server_that_answers_nothing_is_given_up(server: servers.Server) -> None:
    """Frozen: a keeper of leases must know in time."""
    server.start()
    with contextlib.closing(open_sql_store(server.url, timeout=1.0)) as store:
        store.now()
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable):
                claim(store, declared())
        finally:
            server.thaw()
        assert isinstance(claim(store, declared(uuid.uuid4().hex)), Run)


# --- what the server is told


def test_a_session_does_not_depend_on_the_server_s_defaults(store: SqlStore) -> None:
    """Isolation, what is too long, the clock, and the bounds of each wait; a frozen process loses its locks."""
    names = "tx_isolation sql_mode time_zone max_statement_time innodb_lock_wait_timeout idle_transaction_timeout"
    assert shown(store, ", ".join(f"@@{name}" for name in names.split())) == [
        ("READ-COMMITTED", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION", "+00:00", 3.0, 3, 10)
    ]


def shown(store: SqlStore, what: str) -> list[Any]:
    """Return what a session of the store says."""
    with store._link.session() as session:
        return session.rows(f"SELECT {what}", {})


def test_names_are_told_apart_by_every_character(store: SqlStore) -> None:
    """By case, accent and trailing space, which the usual collations of MariaDB leave out; emoji are kept."""
    ids = ["a", "A", "\u00e4", "a ", " a", "\U0001f600", "\U0001f601", "e" * 255]
    for task_id in ids:
        store.submit(Job(task_id), task_id=task_id, ttl=LONG, envelope=task_id.encode())
    assert dict(store.ledger()) == {task_id: task_id.encode() for task_id in ids}
    assert [store.entry(Job(task_id), task_id=task_id) for task_id in ids] == [task_id.encode() for task_id in ids]


def test_what_waits_for_its_publish_is_found_by_an_index(store: SqlStore) -> None:
    """Every relay looks each second, however many submissions are on their way."""
    for name in ("some_promise", "due_promises"):
        with store._link.session() as session:
            plan = session.rows(f"EXPLAIN {store._statements.texts[name]}", {"prefix": store._prefix, "limit": 10})
        assert plan[0][5] == "celery_reliable_ledger_waits"


def test_what_does_not_fit_a_column_is_refused_in_words(store: SqlStore) -> None:
    """And not cut."""
    with pytest.raises(StoreError, match="255 characters"):
        submit(store, declared(), "A" * 300, envelope=b"call")
    with pytest.raises(StoreError, match="255 characters"):
        claim(store, declared(), task_id="A" * 300)


def test_findings_name_what_is_missing_and_what_is_forgetful(store: SqlStore, server: servers.Server) -> None:
    """The server of these tests does not flush at each commit."""
    assert [finding.partition(":")[0] for finding in store.findings()] == ["innodb_flush_log_at_trx_commit is 2"]
    with contextlib.closing(open_sql_store(f"{server.url.rpartition('/')[0]}/mysql")) as empty:
        (finding,) = empty.findings()
    assert "celery -A PROJECT reliable schema" in finding


def test_a_database_that_does_not_exist_is_a_mistake(server: servers.Server) -> None:
    """Trying again cannot help; nor with a user that is not known."""
    server.start()
    wrong = (f"{server.url.rpartition('/')[0]}/nowhere", server.url.replace("root@", "stranger:secret@"))
    for url in wrong:
        with contextlib.closing(open_sql_store(url)) as store:
            with pytest.raises(StoreError, match="check user, password, database") as caught:
                store.now()
            assert not isinstance(caught.value, StoreUnavailable)
            assert "secret" not in str(caught.value)


def test_a_server_that_may_only_be_read_is_away(store: SqlStore, someone: Connection) -> None:
    """As after a fail-over: the call is tried again."""
    someone.exec_driver_sql("CREATE USER IF NOT EXISTS clerk")
    someone.exec_driver_sql("GRANT ALL ON reliable.* TO clerk")
    someone.exec_driver_sql("SET GLOBAL read_only = 1")
    url = store._link._url.set(username="clerk", host="127.0.0.1")  # type: ignore[attr-defined]
    try:
        with contextlib.closing(open_sql_store(str(url))) as clerk, pytest.raises(StoreUnavailable, match="read-only"):
            submit(clerk, declared())
    finally:
        someone.exec_driver_sql("SET GLOBAL read_only = 0")


def test_tables_of_a_newer_version_are_refused(store: SqlStore, server: servers.Server, prefix: str) -> None:
    """Making them again does not count down."""
    changed = "UPDATE celery_reliable_note SET version = :number WHERE shelf = '.schema'"
    submit(store, declared())
    with store._link.session() as session:
        session.change(changed, {"number": ddl.NUMBER + 1})
    try:
        with contextlib.closing(open_sql_store(server.url, key_prefix=prefix)) as older:
            for call in (partial(claim, older, declared()), older.create_tables, older.create_tables):
                with pytest.raises(StoreError, match=r"\(schema 1\), found .* schema 2.*upgrade celery-reliable"):
                    call()
    finally:
        with store._link.session() as session:
            session.change(changed, {"number": ddl.NUMBER})


def test_a_lock_that_shows_who_lives_is_refused(store: SqlStore) -> None:
    """It is PostgreSQL's."""
    with pytest.raises(ConfigurationError, match=r"reliable_overlap_lock.*found mariadb"):
        store.lives.check()
