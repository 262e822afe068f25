"""Say what a driver's error means: do it again, the server is away, it is full, or it refused.

Told by SQLSTATE on PostgreSQL (psycopg, psycopg2), by number on MariaDB (PyMySQL, mysqlclient), and by SQLite's own words; whether SQLAlchemy or Django stand between
changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from celery_reliable.errors import StoreError, StoreFull, StoreUnavailable
from celery_reliable.settings import mask_secrets

_AGAIN = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
_LOCKED = ("database is locked", "database table is locked", "database schema is locked")
_AWAY_CLASSES = ("08", "57P", "25P")  # connection exception, operator intervention, idle session ended
_AWAY = ("53300", "57014", "25006")  # too many connections, statement timeout, read-only after a fail-over
_MARIADB_DRIVERS = ("pymysql", "MySQLdb")
_DUPLICATE = 1062
# The SQLSTATE that PostgreSQL would give it. MariaDB's own does for few of them, and its drivers keep that to themselves.
_NUMBERS = {
    1020: "40001",  # record has changed since last read
    1213: "40P01",  # deadlock
    1205: "55P03",  # lock wait timeout
    1412: "40001",  # table definition has changed
    1146: "42P01",  # no such table
    1054: "42703",  # unknown column
    1406: "22001",  # data too long
    **dict.fromkeys((1021, 1114), "53100"),  # disk full, table full
    **dict.fromkeys((1037, 1038, 1041), "53200"),  # out of memory
    **dict.fromkeys((1044, 1045, 1142, 1143, 1227, 1698), "28000"),  # access denied
    1049: "3D000",  # unknown database
    **dict.fromkeys((1040, 1203, 1226), "53300"),  # too many connections
    **dict.fromkeys((1317, 1969, 3024), "57014"),  # interrupted, statement time exceeded
    **dict.fromkeys((1290, 1792, 1836), "25006"),  # read-only
    **dict.fromkeys((1053, 1079, 1927, 1928), "57P01"),  # shutdown, killed
    **dict.fromkeys((1152, 1158, 1159, 1160, 1161, 1184, 2002, 2003, 2006, 2013, 2055), "08006"),  # connection
}
_LOST = ("OperationalError", "InterfaceError", "TimeoutError")  # of every driver, where the server gave no SQLSTATE


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What an error with one of these states, or else one of these texts, means."""

    states: tuple[str, ...]
    texts: tuple[str, ...]
    remedy: str
    error: type[StoreError] = StoreError


_MEANINGS = (
    _Meaning(("42P01",), ("no such table",), "the tables are missing: {tables}"),
    _Meaning(
        ("42703",),
        ("no such column", "has no column named"),
        "the tables are those of another version of celery_reliable: {tables}",
    ),
    _Meaning(("22001",), (), "a task id or name is longer than the 255 characters of its column: shorten it"),
    _Meaning(("1153",), (), "raise max_allowed_packet of the server above the largest payload or outcome"),
    _Meaning(("53100", "53200"), ("disk is full",), "make room on the disk of the database server", error=StoreFull),
    _Meaning(
        ("28000", "28P01", "3D000", "42501"),
        ("password authentication failed", "no password supplied", "no pg_hba.conf entry", '" does not exist'),
        "check user, password, database and rights in reliable_store_url",
    ),
    _Meaning(
        (),
        ("unable to open database file", "readonly database", "file is not a database"),
        "the file and its directory must exist and be writable for this user",
    ),
)


class TryAgain(Exception):
    """The step met another one and did nothing: begin it again."""


def is_again(exc: BaseException) -> bool:
    """Say whether the step was undone because of another one, and will do when repeated."""
    text = str(_driver_error(exc))
    return isinstance(exc, TryAgain) or sqlstate(exc) in _AGAIN or any(found in text for found in _LOCKED)


def translated(exc: BaseException, *, tables: str) -> StoreError:
    """Return our exception for a driver's. ``tables`` says how the tables are made."""
    state, text = sqlstate(exc), str(_driver_error(exc))
    said = f"store (reliable_store_url): {type(exc).__name__}: {mask_secrets(text.strip())[:300]}"
    for meaning in _MEANINGS:
        if state in meaning.states or (not state and any(words in text for words in meaning.texts)):
            return meaning.error(f"{said}; {meaning.remedy.format(tables=tables)}")
    if is_away(exc) or is_again(exc):
        return StoreUnavailable(f"{said}; the call is tried again")
    return StoreError(f"{said}; see the server's log")


def is_away(exc: BaseException) -> bool:
    """Say whether the server cannot be asked now; the connection is of no use any more, or was never made."""
    state = sqlstate(exc)
    if state:
        return state.startswith(_AWAY_CLASSES) or state in _AWAY
    kinds = {kind.__name__ for kind in type(_driver_error(exc)).__mro__}
    return isinstance(exc, OSError) or bool(kinds.intersection(_LOST))


def is_broken(exc: BaseException) -> bool:
    """Say whether the caller's transaction had failed before, as the server, SQLAlchemy and Django each say it."""
    kinds = {"PendingRollbackError", "TransactionManagementError"}
    return sqlstate(exc) == "25P02" or type(exc).__name__ in kinds


def is_missing_table(exc: BaseException) -> bool:
    """Say whether a table is not there."""
    return sqlstate(exc) == "42P01" or "no such table" in str(_driver_error(exc))


def is_read_only(exc: BaseException) -> bool:
    """Say whether the transaction, or its database, takes no writes."""
    return sqlstate(exc) == "25006" or "readonly database" in str(_driver_error(exc))


def is_duplicate(exc: BaseException) -> bool:
    """Say whether MariaDB refused a row that is there. The transaction goes on."""
    return _number(_driver_error(exc)) == _DUPLICATE


def duplicate_of(exc: BaseException) -> str:
    """Return the name of the unique index in which MariaDB found such a row, "" for every other error."""
    named = (
        re.search(r"for key '(?:[^']*\.)?([^'.]+)'$", str(_driver_error(exc).args[-1])) if is_duplicate(exc) else None
    )
    return named[1] if named else ""


def sqlstate(exc: BaseException) -> str:
    """Return the five characters that PostgreSQL gives an error, or would give MariaDB's; "" where there are none."""
    driver = _driver_error(exc)
    if number := _number(driver):
        return _NUMBERS.get(number, str(number))
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or ""


def _number(driver: BaseException) -> int:
    """Return the number that MariaDB gives an error, 0 for other drivers."""
    known = type(driver).__module__.partition(".")[0] in _MARIADB_DRIVERS and driver.args
    return driver.args[0] if known and isinstance(driver.args[0], int) else 0


def _driver_error(exc: BaseException) -> BaseException:
    """Return the driver's own exception from below SQLAlchemy's or Django's."""
    return getattr(exc, "orig", None) or exc.__cause__ or exc
