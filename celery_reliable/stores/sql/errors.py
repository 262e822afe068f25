"""Say what a driver's error means: do it again, the server is away, it is full, or it refused.

Told by SQLSTATE on PostgreSQL (psycopg, psycopg2) and by SQLite's own words; whether SQLAlchemy or Django stand between
changes nothing.
"""

from __future__ import annotations

from celery_reliable.errors import StoreError, StoreFull, StoreUnavailable

_AGAIN = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
_LOCKED = ("database is locked", "database table is locked", "database schema is locked")
_AWAY_CLASSES = ("08", "57P", "25P")  # connection exception, operator intervention, idle session ended
_AWAY = ("53300", "57014", "25006")  # too many connections, statement timeout, read-only after a fail-over
_FULL = ("53100", "53200")
_FULL_TEXTS = ("database or disk is full",)
_NO_TABLE = ("42P01",)
_NO_TABLE_TEXTS = ("no such table",)
_OTHER_SCHEMA = ("42703",)
_OTHER_SCHEMA_TEXTS = ("no such column", "has no column named")
_NOT_LET_IN_TEXTS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", '" does not exist')
_NO_FILE_TEXTS = ("unable to open database file", "readonly database", "file is not a database")
_LOST_TYPES = ("OperationalError", "InterfaceError")


class TryAgain(Exception):
    """The step met another one and did nothing: begin it again."""


def is_again(exc: BaseException) -> bool:
    """Say whether the step was undone because of another one, and will do when repeated."""
    text = str(_driver_error(exc))
    return isinstance(exc, TryAgain) or sqlstate(exc) in _AGAIN or any(found in text for found in _LOCKED)


def translated(exc: BaseException, *, remedy: str) -> StoreError:
    """Return our exception for a driver's. ``remedy`` says how the tables are made."""
    state, text = sqlstate(exc), str(_driver_error(exc))
    said = f"store (reliable_store_url): {type(exc).__name__}: {text[:300]}"
    if state in _NO_TABLE or _has(text, _NO_TABLE_TEXTS):
        return StoreError(f"{said}; the tables are missing: {remedy}")
    if state in _OTHER_SCHEMA or _has(text, _OTHER_SCHEMA_TEXTS):
        return StoreError(f"{said}; the tables are of another version of celery_reliable: {remedy}")
    if state in _FULL or _has(text, _FULL_TEXTS):
        return StoreFull(f"{said}; make room on the database server's disk")
    if not state and _has(text, _NOT_LET_IN_TEXTS):
        return StoreError(f"{said}; check user, password and database in reliable_store_url")
    if not state and _has(text, _NO_FILE_TEXTS):
        return StoreError(f"{said}; the file and its directory must exist and be writable for this user")
    if is_away(exc) or is_again(exc):
        return StoreUnavailable(f"{said}; the call is tried again")
    return StoreError(f"{said}; see the server's log")


def is_away(exc: BaseException) -> bool:
    """Say whether the server cannot be asked now; the connection is of no use any more, or was never made."""
    state = sqlstate(exc)
    if state:
        return state.startswith(_AWAY_CLASSES) or state in _AWAY
    kinds = {kind.__name__ for kind in type(_driver_error(exc)).__mro__}
    return isinstance(exc, OSError) or bool(kinds.intersection((*_LOST_TYPES, "TimeoutError")))


def sqlstate(exc: BaseException) -> str:
    """Return the five characters that PostgreSQL gives an error, "" where there are none."""
    driver = _driver_error(exc)
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or ""


def _driver_error(exc: BaseException) -> BaseException:
    """Return the driver's own exception from below SQLAlchemy's or Django's."""
    return getattr(exc, "orig", None) or exc.__cause__ or exc


def _has(text: str, wanted: tuple[str, ...]) -> bool:
    return any(words in text for words in wanted)
