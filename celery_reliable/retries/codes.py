"""Judge an exception by the code it carries: SQLSTATE, errno, a reply code.

Every function answers None when the code says nothing, or is not there.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Final

from celery_reliable.retries.peek import names, peek, text, whole
from celery_reliable.retries.verdict import Verdict, seconds


def _numbers(module: object, spelling: str) -> frozenset[int]:
    """Return the numbers that this platform gives to these names; it does not know all of them."""
    found = (getattr(module, name, None) for name in spelling.split())
    return frozenset(number for number in found if number is not None)


# --- SQL: five characters, the first two are the class; the longest prefix counts

SQLSTATES: Final = {
    "08": "retry",  # connection exception
    "22": "fail",  # data exception
    "23": "fail",  # integrity constraint violation
    "25006": "retry",  # read-only transaction: still connected to what was the primary before a fail-over
    "25P03": "retry",  # idle in transaction for too long: the server has closed the connection
    "25P04": "retry",  # transaction timeout: likewise
    "28": "fail",  # wrong user or password
    "3D": "fail",  # no such database
    "40": "retry",  # transaction rollback: serialization failure, deadlock
    "42": "fail",  # syntax error, access rule violation
    "53": "retry",  # insufficient resources: too many connections, disk full
    "54": "fail",  # program limit exceeded: statement too complex
    "55006": "retry",  # object in use
    "55P03": "retry",  # lock not available
    "57014": "retry",  # query cancelled: a statement timeout under load, or an administrator
    "57P0": "retry",  # shutdown, crash, not yet up, idle session closed
    "57P04": "fail",  # database dropped
    "58": "retry",  # system error: I/O
    "72": "retry",  # snapshot too old
    "0A": "fail",  # feature not supported
}
_SQLSTATE_LENGTH: Final = 5


def judge_sqlstate(exc: BaseException) -> Verdict | None:
    """Judge by SQLSTATE, as psycopg, psycopg2, asyncpg, MySQL Connector and their adapters carry it."""
    state = _sqlstate(exc)
    prefixes = (state[:length] for length in (_SQLSTATE_LENGTH, 4, 2))
    return _verdict(next(filter(None, map(SQLSTATES.get, prefixes)), None), rule="sqlstate")


def _sqlstate(exc: BaseException) -> str:
    for name in ("sqlstate", "pgcode"):
        state = peek(exc, name)
        if isinstance(state, str) and len(state) == _SQLSTATE_LENGTH:
            return state
    return ""


def judge_invalidated(exc: BaseException) -> Verdict | None:
    """Judge by SQLAlchemy's own finding that the connection is dead."""
    return Verdict.retry(rule="connection") if peek(exc, "connection_invalidated") is True else None


def judge_dropped(exc: BaseException) -> Verdict | None:
    """Judge an OperationalError or InterfaceError: without SQLSTATE the connection failed or was cut."""
    return None if _sqlstate(exc) else Verdict.retry(rule="connection")


# --- MySQL: numbers, since most of its errors share the SQLSTATE HY000

MYSQL_TRANSIENT: Final = frozenset(
    {
        *(1040, 1203, 1226),  # too many connections; too many, or too much, for this user
        *(1043, 1047, 1053, 1077, 1079),  # bad handshake; Galera node not ready; shutdown
        *(1158, 1159, 1160, 1161, 1184),  # network read or write failed or took too long; connection aborted
        *(1205, 1213, 3572),  # lock wait timeout; deadlock; lock not available (NOWAIT)
        *(1290, 1792, 1836),  # read-only: still connected to what was the primary before a fail-over
        *(1317, 3024),  # query interrupted; ran longer than max_execution_time
        *(1637, 4031),  # too many transactions; closed after inactivity
        *(2002, 2003, 2005, 2006, 2012, 2013, 2026, 2027, 2055),  # client: cannot connect, connection lost or garbled
    }
)


def judge_mysql(exc: BaseException) -> Verdict | None:
    """Judge by MySQL's error number, as MySQLdb, PyMySQL and MySQL Connector carry it.

    A number that is not listed is a refusal; an OperationalError or InterfaceError without one a connection cut.
    """
    number = whole(peek(exc, "errno")) or _first_number(exc)
    if number > 0:
        return _verdict("retry" if number in MYSQL_TRANSIENT else "fail", rule="mysql")
    return Verdict.retry(rule="connection") if _is_operational(exc) else None


def _first_number(exc: BaseException) -> int:
    return next(filter(None, map(whole, exc.args[:1])), 0)


def _is_operational(exc: BaseException) -> bool:
    return any(name.endswith((".OperationalError", ".InterfaceError")) for name in names(exc))


# --- SQLite: primary result codes; by text before Python 3.11, which does not carry them

# Busy, locked, out of memory, interrupted, I/O error, disk full, locking protocol.
SQLITE_TRANSIENT: Final = frozenset({5, 6, 7, 9, 10, 13, 15})
_SQLITE_TEXTS: Final = ("locked", "locking protocol", "disk i/o error", "is full", "interrupted", "out of memory")


def judge_sqlite(exc: BaseException) -> Verdict | None:
    """Judge an error of sqlite3: a lock or a full disk may pass, nothing else will."""
    code = whole(peek(exc, "sqlite_errorcode"))
    if code is None:
        passes = any(part in text(exc).lower() for part in _SQLITE_TEXTS)
    else:
        passes = code & 0xFF in SQLITE_TRANSIENT
    return _verdict("retry" if passes else "fail", rule="sqlite")


# --- the operating system

ERRNO_TRANSIENT: Final = _numbers(
    errno,
    "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENOTCONN ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENETUNREACH "
    "ENETDOWN ENETRESET ENONET EADDRINUSE EADDRNOTAVAIL EAGAIN EWOULDBLOCK EINTR EBUSY EDEADLK ETXTBSY "
    "ENOBUFS ENOMEM ENOSPC EDQUOT EMFILE ENFILE ENOLCK EIO ESTALE EREMOTEIO",
)
ERRNO_PERMANENT: Final = _numbers(
    errno,
    "ENOENT EACCES EPERM EEXIST EISDIR ENOTDIR ENOTEMPTY ENAMETOOLONG ELOOP EROFS EXDEV EFBIG ENOEXEC E2BIG "
    "EINVAL EBADF ENOTSUP EOPNOTSUPP ENOSYS EAFNOSUPPORT EPROTONOSUPPORT",
)


def judge_errno(exc: BaseException) -> Verdict | None:
    """Judge an OSError by its number: network, locks and resources may pass, paths and rights will not."""
    number = whole(peek(exc, "errno"))
    if number in ERRNO_TRANSIENT:
        return Verdict.retry(rule="errno")
    return Verdict.fail(rule="errno") if number in ERRNO_PERMANENT else None


_LOOKUP_PERMANENT: Final = _numbers(socket, "EAI_BADFLAGS EAI_FAMILY EAI_SERVICE EAI_SOCKTYPE")


def judge_name_lookup(exc: BaseException) -> Verdict | None:
    """Judge a failed name lookup: it may pass, unless the question itself was wrong."""
    wrong = whole(peek(exc, "errno")) in _LOOKUP_PERMANENT
    return _verdict("fail" if wrong else "retry", rule="dns")


# --- replies of servers


def judge_smtp(exc: BaseException) -> Verdict | None:
    """Judge by the SMTP reply: 4xx is temporary (greylisting, a full box), 5xx is final (RFC 5321, 4.2.1)."""
    return _judge_smtp_codes([peek(exc, "smtp_code")])


def judge_smtp_recipients(exc: BaseException) -> Verdict | None:
    """Judge refused recipients: worth a retry only if every one of them may pass."""
    refused = peek(exc, "recipients")
    return _judge_smtp_codes([code for code, _ in refused.values()]) if isinstance(refused, dict) else None


def _judge_smtp_codes(codes: Iterable[object]) -> Verdict | None:
    kinds = {str(code)[:1] for code in codes}
    if "5" in kinds:
        return Verdict.fail(rule="smtp")
    return Verdict.retry(rule="smtp") if kinds == {"4"} else None


_REDIS_TRANSIENT: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"}
)


def judge_redis_reply(exc: BaseException) -> Verdict | None:
    """Judge an error reply of Redis by its first word: a state of the server may pass, a wrong command will not."""
    code = text(exc).partition(" ")[0]
    return _verdict("retry" if code in _REDIS_TRANSIENT else "fail", rule="redis")


def judge_queue_full(exc: BaseException) -> Verdict | None:
    """Judge a refused submission: come back when its `QueueFull` says."""
    return Verdict.retry(rule="queue_full", retry_after=seconds(peek(exc, "retry_after")))


def _verdict(action: str | None, *, rule: str) -> Verdict | None:
    if action is None:
        return None
    return Verdict.retry(rule=rule) if action == "retry" else Verdict.fail(rule=rule)
