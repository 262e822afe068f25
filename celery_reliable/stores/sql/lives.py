"""Show that this process lives, by an advisory lock of PostgreSQL, and tell whether another one does."""

from __future__ import annotations

import os
import secrets
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores.sql.link import Link, Lone, Session

T = TypeVar("T")

_SPACE = 1_668_439_916  # the first half of our locks' numbers; the second half is a process
_LOOK = 5.0  # seconds between two looks at a lock that nothing was heard of
_AGAIN = 0.1  # seconds between two tries to get a lock back: soon after its server is back, others may ask for it
_SECOND_LOOK = 0.4  # seconds after which a lock that was free is looked at again: whoever lives has it back by then

_START = "CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000000 AS bigint)"
_PID = "SELECT pg_backend_pid()"
_UNLIMITED = "SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) IS NOT NULL"
_TAKE = f"SELECT pg_try_advisory_lock(CAST(:space AS integer), CAST(:number AS integer)), {_START}"
_HELD = """
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
AND CAST(classid AS bigint) = :space AND CAST(objid AS bigint) = :number
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_MINE = f"{_HELD} AND pid = pg_backend_pid()"
_LOOK_AT = f"SELECT {_START}, EXISTS ({_HELD})"


@dataclass(eq=False, slots=True)
class _Hold:
    """A lock that is held, and the connection that holds it."""

    lone: Lone
    number: int
    start: int

    @property
    def sign(self) -> str:
        return f"{self.start}:{self.number}"


class _Taken(Exception):
    """Another session has a lock of this number."""


class SqlLives:
    """The lock of this process, and a look at those of others.

    The lock is of the session: the server frees it when the connection of its holder ends, however that comes about, and
    no command of ours is needed. So the connection is one of its own, made at the first `sign` and kept until the process
    ends; a thread takes the lock again when the connection alone was lost. Safe for threads and forks.

    A sign says nothing about a server that was started later than the lock was taken: there nobody holds anything.
    """

    def __init__(self, link: Link, step: Callable[[Callable[[Session], Any]], Any]) -> None:
        """Take the link, and what does a piece of work on a pooled session as one step. Nothing connects."""
        self._link, self._step = link, step
        self._lock = threading.Lock()
        self._hold: _Hold | None = None
        self._pid = 0
        self._inherited: list[_Hold] = []

    def check(self) -> None:
        """Raise `ConfigurationError` unless the database is PostgreSQL. Nothing connects."""
        kind = self._link.dialect.name
        if kind != "postgresql":
            raise not_postgres(kind)

    def sign(self) -> str:
        """Return what names the lock of this process; taken at the first call.

        Raises `ConfigurationError` behind a pooler, and `StoreError` when the server is away.
        """
        with self._lock:
            self._leave_parent()
            if self._hold is None:
                self._hold = self._step(lambda _: self._first())  # a step for its errors, not for its connection
                threading.Thread(target=self._watch, args=(self._hold,), name="reliable-life", daemon=True).start()
            return self._hold.sign

    def is_gone(self, sign: str) -> bool:
        """Tell whether the process of a sign has ended: its lock is free, on the server that had given it.

        One that lost its connection alone has half a second to take its lock again. Raises `StoreError`.
        """
        if not self._is_free(sign):
            return False
        time.sleep(_SECOND_LOOK)
        return self._is_free(sign)

    def close(self) -> None:
        """Let the lock go. May be called twice."""
        with self._lock:
            self._leave_parent()
            hold, self._hold = self._hold, None
        if hold is not None:
            hold.lone.close()

    def _leave_parent(self) -> None:
        """After a fork the lock is the parent's: its connection stays open, and is never used here."""
        if self._pid != os.getpid():
            if self._hold is not None:
                self._inherited.append(self._hold)
            self._hold, self._pid = None, os.getpid()

    def _is_free(self, sign: str) -> bool:
        start, _, number = sign.partition(":")
        values = {"space": _SPACE, "number": int(number)}
        ((now, held),) = self._step(lambda session: session.rows(_LOOK_AT, values))
        return int(now) == int(start) and not held

    # --- hold it

    def _first(self) -> _Hold:
        """Take a lock that nobody has."""
        while True:
            with suppress(_Taken):
                return self._taken(secrets.randbelow(2**31))

    def _taken(self, number: int) -> _Hold:
        """Connect and take the lock with a number. Raises `_Taken` while another session has it."""
        lone = self._link.lone()
        try:
            _expect_no_pooler(lone)
            return _Hold(lone, number, _take(lone, number))
        except BaseException:
            lone.close()
            raise

    def _watch(self, hold: _Hold) -> None:
        """Take the lock again, under its number, whenever its connection was lost."""
        while self._is_ours(hold):
            with suppress(Exception):  # a lost connection shows in many ways, and each is answered by a new one
                _wait_for_word(hold.lone, seconds=_LOOK)
                if hold.lone.session.rows(_MINE, {"space": _SPACE, "number": hold.number}):
                    continue
            if self._is_ours(hold):
                hold = self._again(hold)

    def _again(self, lost: _Hold) -> _Hold:
        with suppress(Exception):
            lost.lone.close()
        try:
            hold = self._taken(lost.number)  # no other: rights are held under this one
        except Exception:  # noqa: BLE001  # the server is away, or does not know yet that the session is over
            time.sleep(_AGAIN)
            return lost
        with self._lock:
            if self._hold is lost:
                self._hold = hold
                return hold
        hold.lone.close()
        return lost

    def _is_ours(self, hold: _Hold) -> bool:
        return self._hold is hold and self._pid == os.getpid()


def _take(lone: Lone, number: int) -> int:
    """Take a lock; return when the server was started, in microseconds."""
    lone.session.rows(_UNLIMITED, {})
    ((taken, start),) = lone.session.rows(_TAKE, {"space": _SPACE, "number": number})
    if not taken:
        raise _Taken
    return int(start)


def not_postgres(found: str) -> ConfigurationError:
    """Return the error of a store that cannot do it."""
    return ConfigurationError(
        "reliable_overlap_lock: expected reliable_store_url on PostgreSQL (postgresql://... or django://ALIAS), whose server "
        f"frees what a dead process held; found {found}; set reliable_store_url, or reliable_overlap_lock to 'lease'"
    )


def _expect_no_pooler(lone: Lone) -> None:
    """Compare the server process that was connected to with the one that answers: a pooler makes up its own number.

    Port and host prove nothing. Behind a pool of transactions the lock would stay with whoever gets the connection next.
    """
    connected = getattr(getattr(lone.driver, "info", None), "backend_pid", None)
    ((answering,),) = lone.session.rows(_PID, {})
    if connected != answering:
        found = f"connected to process {connected}, answered by {answering}"
        raise ConfigurationError(
            f"reliable_overlap_lock: expected a connection of its own to PostgreSQL, found a pooler such as PgBouncer between "
            f"({found}), which gives the connection that has the lock to others; let reliable_store_url name the server "
            "itself, with psycopg or psycopg2, or set reliable_overlap_lock to 'lease'"
        )


def _wait_for_word(lone: Lone, *, seconds: float) -> None:
    """Wait until the server says something without having been asked: as a rule, that it ends the session."""
    with selectors.DefaultSelector() as selector:
        selector.register(lone.driver.fileno(), selectors.EVENT_READ)
        selector.select(seconds)
