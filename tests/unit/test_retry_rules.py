"""The built-in rules, on the exceptions that real libraries raise, and the table behind them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import importlib
import io
import json
import multiprocessing
import smtplib
import socket
import ssl
import subprocess
import sys
import urllib.error
from typing import TYPE_CHECKING

import amqp
import celery.exceptions
import gevent
import kombu
import kombu.exceptions
import pytest
import redis
import valkey
from redis._parsers.base import BaseParser

from celery_reliable.retries import Verdict, judge
from celery_reliable.retries.peek import qualified
from celery_reliable.retries.table import BY_CLASS, RULES, TRANSLATES
from tests.provoking import hold_closed_port, raise_, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of ours on which nobody listens."""
    with hold_closed_port() as port:
        yield port


# --- Redis, AMQP, kombu, Celery


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", "retry"),
        ("READONLY You can't write against a read only replica.", "retry"),
        ("LOADING Redis is loading the dataset in memory", "retry"),
        ("MASTERDOWN Link with MASTER is down", "retry"),
        ("CLUSTERDOWN The cluster is down", "retry"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "retry"),
        ("MOVED 3999 127.0.0.1:6381", "retry"),
        ("ASK 3999 127.0.0.1:6381", "retry"),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist on disk.", "retry"),
        ("NOREPLICAS Not enough good replicas to write.", "retry"),
        ("BUSY Redis is busy running a script.", "retry"),
        ("ERR max number of clients reached", "retry"),
        ("ERR unknown command 'SETT'", "fail"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "fail"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "fail"),
        ("NOAUTH Authentication required.", "fail"),
        ("NOPERM this user has no permissions to run the 'set' command", "fail"),
        ("CROSSSLOT Keys in request don't hash to the same slot", "fail"),
    ],
)
def test_redis_reply_decides(reply: str, action: str) -> None:
    """A state of the server may pass; a wrong password, right or command will not."""
    exc = BaseParser.parse_error(reply)
    assert judge(exc).action == action


def test_redis_that_cannot_be_reached_is_transient(closed_port: int) -> None:
    """For both clients."""
    clients = redis.Redis(port=closed_port), valkey.Valkey(port=closed_port)
    assert [judge(raised(client.ping)) for client in clients] == [Verdict.retry(rule="redis")] * 2


@pytest.mark.parametrize(
    ("code", "action"),
    [
        *((code, "retry") for code in (313, 320, 405, 506)),
        *((code, "fail") for code in (311, 403, 404, 406, 501, 504, 530, 540)),
    ],
)
def test_amqp_reply_decides(code: int, action: str) -> None:
    """As py-amqp says, which knows what can be recovered; a message too large stays too large."""
    exc = amqp.exceptions.error_for_code(code, "text", (60, 40), amqp.exceptions.AMQPError)
    assert judge(exc) == Verdict(action, "amqp", None, "exhausted" if action == "retry" else "permanent")  # type: ignore[arg-type]


def test_broker_that_cannot_be_reached_is_transient(closed_port: int) -> None:
    """An OperationalError of kombu wraps what the socket said."""
    connection = kombu.Connection(f"amqp://guest@127.0.0.1:{closed_port}//")
    exc = raised(lambda: connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0))
    assert isinstance(exc, kombu.exceptions.OperationalError)
    assert judge(exc) == Verdict.retry(rule="connection")


def test_kombu_error_is_judged_by_what_it_wraps() -> None:
    """A wrong password of the broker is not a broker that is away."""
    wrong = redis.exceptions.AuthenticationError("WRONGPASS")
    assert judge(raised(lambda: raise_(kombu.exceptions.OperationalError("text"), cause=wrong))).action == "fail"
    assert judge(kombu.exceptions.OperationalError("text")) == Verdict.retry(rule="kombu")


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (celery.exceptions.SoftTimeLimitExceeded(), Verdict.retry(rule="soft_time_limit", reason="time_limit")),
        (celery.exceptions.TimeoutError("text"), Verdict.retry(rule="timeout")),
        (celery.exceptions.BackendStoreError("text"), Verdict.retry(rule="celery")),
        (celery.exceptions.MaxRetriesExceededError("text"), Verdict.fail(rule="celery", reason="exhausted")),
        (celery.exceptions.NotRegistered("proj.task"), Verdict.fail(rule="python")),
        (kombu.exceptions.EncodeError("text"), Verdict.fail(rule="kombu")),
        (kombu.exceptions.ConnectionLimitExceeded(10), Verdict.retry(rule="kombu")),
        (gevent.Timeout(1), Verdict.retry(rule="timeout")),
        (gevent.GreenletExit(), Verdict.fail(rule="exit")),
        (asyncio.CancelledError(), Verdict.fail(rule="exit")),
    ],
    ids=lambda value: value.rule if isinstance(value, Verdict) else type(value).__name__,
)
def test_celery_and_green_threads(exc: BaseException, expected: Verdict) -> None:
    """A soft limit is a retry; a timeout of gevent is one too, although it is no Exception."""
    assert judge(exc) == expected


# --- the machine and Python

FOREVER = "import threading; threading.Event().wait()"


@pytest.mark.parametrize(
    ("call", "action", "rule"),
    [
        (lambda path: (path / "no" / "such").read_text(), "fail", "errno"),
        (lambda path: path.read_text(), "fail", "errno"),
        (lambda path: path.mkdir(), "fail", "errno"),
        (lambda path: (path / "x").rmdir(), "fail", "errno"),
        (lambda _: raise_(FileNotFoundError("without a number")), "fail", "errno"),
        (lambda _: raise_(PermissionError("without a number")), "fail", "errno"),
        (lambda _: raise_(InterruptedError()), "retry", "errno"),
        (lambda _: raise_(BlockingIOError()), "retry", "errno"),
        (lambda _: raise_(OSError(errno.ENOSPC, "text")), "retry", "errno"),
        (lambda _: raise_(OSError(errno.EMFILE, "text")), "retry", "errno"),
        (lambda _: raise_(OSError(errno.EHOSTUNREACH, "text")), "retry", "errno"),
        (lambda _: raise_(OSError(errno.ENETUNREACH, "text")), "retry", "errno"),
        (lambda _: raise_(OSError(errno.EIO, "text")), "retry", "errno"),
        (lambda _: raise_(OSError(errno.EROFS, "text")), "fail", "errno"),
        (lambda _: raise_(OSError(errno.ENAMETOOLONG, "text")), "fail", "errno"),
        (lambda _: raise_(OSError("a text only")), "fail", "unknown"),
        (lambda _: raise_(ConnectionResetError()), "retry", "connection"),
        (lambda _: raise_(BrokenPipeError()), "retry", "connection"),
        (lambda _: raise_(TimeoutError()), "retry", "timeout"),
        (lambda _: raise_(socket.timeout()), "retry", "timeout"),  # noqa: UP041  # the name that older code uses
        (lambda _: raise_(asyncio.TimeoutError()), "retry", "timeout"),  # a class of its own before 3.11
        (lambda _: raise_(concurrent.futures.TimeoutError()), "retry", "timeout"),  # likewise
        (lambda _: raise_(multiprocessing.TimeoutError()), "retry", "timeout"),
        (
            lambda _: subprocess.run([sys.executable, "-c", FOREVER], check=True, timeout=0.01),
            "retry",
            "timeout",
        ),
        (lambda _: raise_(socket.gaierror(socket.EAI_AGAIN, "text")), "retry", "dns"),
        (lambda _: raise_(socket.gaierror(socket.EAI_NONAME, "text")), "retry", "dns"),
        (lambda _: socket.getaddrinfo("127.0.0.1", "no-such-service"), "fail", "dns"),
        (lambda _: raise_(urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "text"))), "retry", "dns"),
        (lambda _: raise_(ssl.SSLError(1, "text")), "retry", "tls"),
        (lambda _: raise_(ssl.SSLEOFError(8, "text")), "retry", "tls"),
        (lambda _: raise_(ssl.SSLCertVerificationError(1, "text")), "fail", "certificate"),
        (lambda _: raise_(MemoryError()), "retry", "memory"),
    ],
)
def test_the_machine(tmp_path: Path, call: Callable[[Path], object], action: str, rule: str) -> None:
    """Network, locks and resources may pass; paths, rights and certificates will not."""
    verdict = judge(raised(lambda: call(tmp_path)))
    assert (verdict.action, verdict.rule) == (action, rule)


@pytest.mark.parametrize(
    "call",
    [
        lambda: len(1),  # type: ignore[arg-type]
        lambda: int("x"),
        b"\xff".decode,
        lambda: json.loads("{"),
        lambda: {"y": 1}["x"],
        lambda: "".index("x"),
        lambda: [1].pop(1),
        lambda: None.x,  # type: ignore[attr-defined]
        lambda: eval("no_such_name"),
        lambda: eval("1 +"),
        lambda: importlib.import_module("no_such_module"),
        lambda: 1 / 0,
        lambda: raise_(AssertionError()),
        lambda: raise_(NotImplementedError()),
        lambda: raise_(RecursionError()),
        lambda: raise_(OverflowError()),
        io.StringIO().fileno,
    ],
)
def test_mistakes_in_the_code_are_permanent(call: Callable[[], object]) -> None:
    """The same code with the same arguments fails in the same way."""
    assert judge(raised(call), on_unknown_error="retry").action == "fail"


@pytest.mark.parametrize(
    ("exc", "action"),
    [
        (smtplib.SMTPServerDisconnected("text"), "retry"),
        (smtplib.SMTPConnectError(421, b"try again later"), "retry"),
        (smtplib.SMTPDataError(451, b"greylisted"), "retry"),
        (smtplib.SMTPDataError(550, b"spam"), "fail"),
        (smtplib.SMTPAuthenticationError(535, b"wrong"), "fail"),
        (smtplib.SMTPSenderRefused(452, b"full", "a@example.org"), "retry"),
        (smtplib.SMTPRecipientsRefused({"a@example.org": (450, b"")}), "retry"),
        (smtplib.SMTPRecipientsRefused({"a@example.org": (450, b""), "b@example.org": (550, b"")}), "fail"),
    ],
    ids=repr,
)
def test_mail_server_says_whether_to_come_back(exc: Exception, action: str) -> None:
    """4xx is temporary, 5xx is final, and a final refusal of one recipient stays final."""
    assert judge(exc, on_unknown_error="retry").action == action


# --- the table itself

NOT_IN_THE_TEST_EXTRA = {"MySQLdb", "asyncpg", "mysql", "psycopg2", "stripe"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted({*BY_CLASS, *TRANSLATES}))
def test_every_class_in_the_table_exists_under_that_name(name: str) -> None:
    """A library that renames a class would silently lose its row."""
    module, _, class_name = name.rpartition(".")
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError:
        assert module.partition(".")[0] in NOT_IN_THE_TEST_EXTRA
        return
    cls = getattr(home, class_name)
    assert issubclass(cls, BaseException)
    assert qualified(cls) in {name, "builtins.TimeoutError"}


def test_no_class_has_two_rows() -> None:
    """The nearest class decides, so a class has one meaning."""
    assert len(BY_CLASS) == sum(len(rule.classes) for rule in RULES)


def test_every_row_says_why() -> None:
    """The table is read by people who wonder why their task was (not) retried."""
    assert [rule.name for rule in RULES if not rule.why] == []
