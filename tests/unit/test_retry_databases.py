"""The rules for databases, on the errors of real drivers where they are installed."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import django.db.utils
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.pool

from celery_reliable.retries import Verdict, judge
from tests.provoking import hold_closed_port, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of ours on which nobody listens."""
    with hold_closed_port() as port:
        yield port


@pytest.mark.parametrize(
    ("state", "action"),
    [
        *((state, "retry") for state in ("40001", "40P01", "08006", "08001", "53300", "53100", "55P03", "55006")),
        *((state, "retry") for state in ("57P01", "57P02", "57P03", "57P05", "57014", "58030", "25006", "25P03")),
        *((state, "fail") for state in ("23505", "23503", "23514", "22001", "22P02", "22012", "42P01", "42601")),
        *((state, "fail") for state in ("42501", "28P01", "28000", "3D000", "54001", "0A000", "57P04")),
    ],
)
@pytest.mark.parametrize("wrap", ["psycopg", "sqlalchemy", "django", "psycopg2"])
def test_sqlstate_decides(wrap: str, state: str, action: str) -> None:
    """Serialization, deadlock, connection and resources may pass; integrity, data and syntax will not."""
    exc = psycopg.errors.lookup(state)("text")
    wrapped = {
        "psycopg": lambda: exc,
        "sqlalchemy": lambda: _in_sqlalchemy(exc, psycopg.Error),
        "django": lambda: _in_django(exc, psycopg),
        "psycopg2": lambda: _like("psycopg2.OperationalError", pgcode=state),
    }[wrap]()
    verdict = judge(wrapped)
    assert (verdict.action, verdict.rule) == (action, "sqlstate")


@pytest.mark.parametrize("state", ["XX000", "25P02"])
def test_sqlstate_that_tells_nothing_leaves_it_to_the_setting(state: str) -> None:
    """An internal error, and a transaction that failed earlier, may mean either."""
    assert judge(psycopg.errors.lookup(state)("text")).rule == "unknown"


def test_postgres_that_cannot_be_reached_is_transient(closed_port: int) -> None:
    """There is no SQLSTATE before there is a server."""
    address = f"postgresql://postgres@127.0.0.1:{closed_port}/postgres"
    engine = sqlalchemy.create_engine(address.replace("postgresql", "postgresql+psycopg"))
    assert judge(raised(lambda: psycopg.connect(address))) == Verdict.retry(rule="connection")
    assert judge(raised(engine.connect)) == Verdict.retry(rule="connection")


def test_connection_that_sqlalchemy_found_dead_is_transient() -> None:
    """Its finding counts more than the class of the driver's error."""
    orig = psycopg.InternalError("server closed the connection unexpectedly")
    exc = _in_sqlalchemy(orig, psycopg.Error, connection_invalidated=True)
    assert judge(exc) == Verdict.retry(rule="connection")


def test_pool_of_sqlalchemy_that_is_used_up_is_transient(tmp_path: Path) -> None:
    """Connections come back."""
    engine = sqlalchemy.create_engine(
        f"sqlite:///{tmp_path / 'db'}",
        poolclass=sqlalchemy.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    with engine.connect():
        assert judge(raised(engine.connect)) == Verdict.retry(rule="timeout")


def _in_sqlalchemy(orig: Exception, base: type[Exception], *, connection_invalidated: bool = False) -> BaseException:
    return sqlalchemy.exc.DBAPIError.instance(
        "SELECT 1", None, orig, base, connection_invalidated=connection_invalidated
    )


class _DjangoConnection:
    """What Django's own wrapper needs of a connection."""

    errors_occurred = False

    def __init__(self, driver: Any) -> None:
        self.Database = driver


def _in_django(orig: BaseException, driver: Any) -> BaseException:
    def run() -> None:
        with django.db.utils.DatabaseErrorWrapper(_DjangoConnection(driver)):
            raise orig

    return raised(run)


def _write_while_locked(path: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(path)) as holder,
        contextlib.closing(sqlite3.connect(path, timeout=0)) as other,
    ):
        holder.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")


def _write_on_an_old_snapshot(path: Path) -> None:
    connections = [sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2)]
    with contextlib.closing(connections[0]) as reader, contextlib.closing(connections[1]) as writer:
        writer.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (x)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        writer.execute("INSERT INTO t VALUES (1)")
        reader.execute("INSERT INTO t VALUES (2)")


def _fill(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


def _insert_twice(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x UNIQUE)")
        connection.execute("INSERT INTO t VALUES (1), (1)")


def _open_garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    sqlite3.connect(path).execute("SELECT * FROM t")


SQLITE: dict[str, tuple[Callable[[Path], object], str]] = {
    "locked": (_write_while_locked, "retry"),
    "locked, with an extended code": (_write_on_an_old_snapshot, "retry"),
    "full": (_fill, "retry"),
    "no such table": (lambda path: sqlite3.connect(path).execute("SELECT * FROM nothing"), "fail"),
    "cannot open": (lambda path: sqlite3.connect(path / "no" / "such" / "directory"), "fail"),
    "unique": (_insert_twice, "fail"),
    "misuse": (lambda path: sqlite3.connect(path).execute("SELECT ?"), "fail"),
    "not a database": (_open_garbage, "fail"),
}


@pytest.mark.parametrize("wrap", ["sqlite3", "sqlalchemy", "django"])
@pytest.mark.parametrize("case", SQLITE)
def test_sqlite_lock_is_transient_and_the_rest_permanent(tmp_path: Path, case: str, wrap: str) -> None:
    """All of them are OperationalError and the like: the result code tells them apart."""
    provoke, action = SQLITE[case]
    exc = raised(lambda: provoke(tmp_path / "db"))
    assert isinstance(exc, sqlite3.Error)
    if wrap == "sqlalchemy":
        exc = _in_sqlalchemy(exc, sqlite3.Error)
    elif wrap == "django":
        exc = _in_django(exc, sqlite3)
    verdict = judge(exc)
    assert (verdict.action, verdict.rule) == (action, "sqlite")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("database is locked", "retry"),
        ("database table is locked: t", "retry"),
        ("disk I/O error", "retry"),
        ("database or disk is full", "retry"),
        ("no such table: t", "fail"),
        ('near "SELEC": syntax error', "fail"),
    ],
)
def test_sqlite_is_told_by_its_text_where_python_gives_no_code(text: str, action: str) -> None:
    """Python 3.10 has no sqlite_errorcode."""
    assert judge(sqlite3.OperationalError(text)).action == action


@pytest.mark.parametrize("name", ["DataError", "IntegrityError", "NotSupportedError", "ProgrammingError"])
@pytest.mark.parametrize("module", ["psycopg", "sqlite3", "django.db.utils", "MySQLdb", "pymysql.err"])
def test_database_error_without_a_code_is_judged_by_its_class(module: str, name: str) -> None:
    """The same statement fails again."""
    home = sys.modules.get(module)
    exc = _like(f"{module}.{name}") if home is None else vars(home)[name]("text")
    assert judge(exc).action == "fail"


@pytest.mark.parametrize("name", ["InterfaceError", "OperationalError"])
@pytest.mark.parametrize("module", ["psycopg", "django.db.utils", "psycopg2", "MySQLdb", "pymysql.err"])
def test_operational_error_without_a_code_is_a_connection_cut(module: str, name: str) -> None:
    """A server that closes the connection sends neither SQLSTATE nor number."""
    home = sys.modules.get(module)
    exc = _like(f"{module}.{name}") if home is None else vars(home)[name]("server closed the connection unexpectedly")
    assert judge(exc) == Verdict.retry(rule="connection")


@pytest.mark.parametrize(
    ("number", "action"),
    [
        *((number, "retry") for number in (1040, 1053, 1205, 1213, 1290, 2002, 2003, 2006, 2013, 3572)),
        *((number, "fail") for number in (1044, 1045, 1049, 1054, 1062, 1064, 1146, 1242, 1406, 1452)),
    ],
)
@pytest.mark.parametrize(
    ("name", "keeps_errno"),
    [
        ("MySQLdb.OperationalError", False),
        ("pymysql.err.OperationalError", False),
        ("mysql.connector.errors.DatabaseError", True),
    ],
)
def test_mysql_is_told_by_its_number(name: str, keeps_errno: bool, number: int, action: str) -> None:  # noqa: FBT001
    """PyMySQL makes an OperationalError of every number that it does not know."""
    exc = _like(name, errno=number) if keeps_errno else _like(name, number, "text")
    assert judge(exc) == Verdict(action, "mysql", None, "exhausted" if action == "retry" else "permanent")  # type: ignore[arg-type]


MYSQL_BASES = {
    "MySQLdb": "MySQLError",
    "pymysql.err": "MySQLError",
    "mysql.connector.errors": "Error",
    "psycopg2": "Error",
}


def _like(name: str, *args: object, **attributes: object) -> Exception:
    """Build an exception of a driver that is not installed: same names, same bases, same fields."""
    module, _, class_name = name.rpartition(".")
    base = type(MYSQL_BASES[module], (Exception,), {"__module__": module})
    cls = type(class_name, (base,), {"__module__": module})
    exc: Exception = cls(*args)
    vars(exc).update(attributes)
    return exc
