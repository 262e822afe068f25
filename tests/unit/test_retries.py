"""Judging: whose opinion counts, what a verdict is, and that no exception can break it."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest
import requests
from celery.exceptions import SoftTimeLimitExceeded

from celery_reliable.dead_letters.record import REASONS
from celery_reliable.errors import (
    ConfigurationError,
    Draining,
    DuplicateTask,
    LeaseLost,
    PayloadMismatch,
    Permanent,
    QueueFull,
    ReliableError,
    ReplayRefused,
    Snooze,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Transient,
)
from celery_reliable.retries import Verdict, judge
from celery_reliable.retries.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable


class PaymentError(Exception):
    """An exception that no rule knows."""


class CardDeclinedError(PaymentError):
    """A subclass of it."""


# --- the verdict


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.retry(), Verdict("retry", "user:classify", None, "exhausted")),
        (Verdict.retry(retry_after=3), Verdict("retry", "user:classify", 3, "exhausted")),
        (Verdict.fail(), Verdict("fail", "user:classify", None, "permanent")),
        (Verdict.fail(reason="invalid"), Verdict("fail", "user:classify", None, "invalid")),
        (Verdict.snooze(60), Verdict("snooze", "user:classify", 60, "exhausted")),
    ],
)
def test_constructors_fill_in_who_decides_and_how_it_ends(verdict: Verdict, expected: Verdict) -> None:
    """A task's classify needs to name the action only."""
    assert verdict == expected


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Verdict("again", "x", None, "permanent"), "expected action retry or fail or snooze, found 'again'"),  # type: ignore[arg-type]
        (lambda: Verdict.fail(reason="bad luck"), "expected reason permanent or .*, found 'bad luck'"),  # type: ignore[arg-type]
        (lambda: Verdict.retry(retry_after=-1), "expected retry_after in seconds, .*, found -1"),
        (lambda: Verdict.retry(retry_after=float("nan")), "expected retry_after in seconds, .*, found nan"),
        (lambda: Verdict.snooze("soon"), "expected retry_after in seconds, .*, found 'soon'"),  # type: ignore[arg-type]
    ],
)
def test_verdict_that_nobody_could_act_on_is_refused(build: Callable[[], Verdict], text: str) -> None:
    """The error says what was expected and what was found."""
    with pytest.raises(ConfigurationError, match=text):
        build()


def test_verdict_survives_pickling() -> None:
    """A verdict may travel from a pool child to its parent."""
    verdict = Verdict.retry(retry_after=1.5, rule="http_status")
    assert pickle.loads(pickle.dumps(verdict)) == verdict


def test_every_reason_of_a_verdict_is_a_dead_letter_reason() -> None:
    """The closed set of dead letters has a place for each."""
    assert set(get_args(Reason)) <= set(REASONS)


# --- ours


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (Snooze(90), Verdict.snooze(90, rule="snooze")),
        (Snooze(), Verdict.snooze(0, rule="snooze")),
        (Snooze(-5), Verdict.snooze(0, rule="snooze")),
        (Snooze(float("nan")), Verdict.snooze(0, rule="snooze")),
        (Transient("busy"), Verdict.retry(rule="transient")),
        (Transient("busy", retry_after=7), Verdict.retry(retry_after=7, rule="transient")),
        (Transient("busy", retry_after=0), Verdict.retry(retry_after=0, rule="transient")),
        (Transient("busy", retry_after=-3), Verdict.retry(retry_after=0, rule="transient")),
        (Transient("busy", retry_after="soon"), Verdict.retry(rule="transient")),  # type: ignore[arg-type]
        (Permanent("no such order"), Verdict.fail(rule="permanent")),
        (StoreUnavailable("away"), Verdict.retry(rule="store")),
        (StoreFull("full"), Verdict.retry(rule="store")),
        (LeaseLost("taken over"), Verdict.retry(rule="store")),
        (Draining(), Verdict.snooze(0, rule="draining")),
    ],
    ids=repr,
)
def test_our_exceptions_are_verdicts_that_no_option_overrules(exc: BaseException, expected: Verdict) -> None:
    """What a task raises to say what it wants, and what is not its fault, comes before its options."""
    options: dict[str, Any] = {"classify": lambda _: Verdict.fail(), "fail_on": (BaseException,)}
    if expected.action == "fail":
        options = {"classify": lambda _: Verdict.retry(), "retry_on": (BaseException,)}
    assert judge(exc, **options) == expected


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (QueueFull("full", retry_after=12), Verdict.retry(retry_after=12, rule="queue_full")),
        (QueueFull("full"), Verdict.retry(rule="queue_full")),
        (ConfigurationError("wrong"), Verdict.fail(rule="reliable")),
        (DuplicateTask("alive", existing_id="1"), Verdict.fail(rule="reliable")),
        (PayloadMismatch("other"), Verdict.fail(rule="reliable")),
        (ReplayRefused("gone"), Verdict.fail(rule="reliable")),
        (StoreError("refused"), Verdict.fail(rule="reliable")),
        (ReliableError("ours, but says nothing"), Verdict.fail(rule="unknown")),
    ],
    ids=repr,
)
def test_a_refused_submission_inside_a_task_is_judged_by_rule(exc: BaseException, expected: Verdict) -> None:
    """A full queue empties; a wrong call stays wrong."""
    assert judge(exc) == expected


def test_a_task_may_overrule_a_refused_submission() -> None:
    """Whether a duplicate child is worth a retry is the task's business."""
    assert judge(DuplicateTask("alive"), retry_on=(DuplicateTask,)).action == "retry"


def test_subclass_of_transient_that_looks_like_an_http_error_is_transient() -> None:
    """What a project raises on purpose counts more than what it carries."""

    class NotYetThereError(Transient):
        status_code = 404

    assert judge(NotYetThereError()).rule == "transient"


def test_subclass_of_ours_without_its_fields_gets_a_verdict() -> None:
    """A project's subclass may forget to call our constructor."""

    class ForgetfulError(Snooze):
        def __init__(self) -> None:
            """Forget."""

    assert judge(ForgetfulError()) == Verdict.snooze(0, rule="snooze")


# --- classify


def test_classify_comes_before_the_options_and_the_rules() -> None:
    """The task's own function has the first word on other people's exceptions."""
    verdict = judge(ValueError("x"), classify=lambda _: Verdict.retry(retry_after=5), fail_on=(ValueError,))
    assert verdict == Verdict.retry(retry_after=5)


def test_classify_without_opinion_leaves_it_to_the_rules() -> None:
    """None is no opinion."""
    assert judge(ConnectionResetError(), classify=lambda _: None).rule == "connection"


def test_classify_that_raises_is_logged_and_the_original_is_judged(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in classify must not replace the error being judged."""

    def classify(_: BaseException) -> Verdict:
        raise KeyError("a bug")

    with caplog.at_level(logging.ERROR, logger="celery_reliable"):
        verdict = judge(ConnectionResetError(), classify=classify)
    assert verdict == Verdict.retry(rule="connection")
    assert [record.reliable_error for record in caplog.records] == ["ConnectionResetError"]  # type: ignore[attr-defined]


def test_classify_that_returns_something_else_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A string or a bool is not a verdict, and is not guessed to be one."""
    with caplog.at_level(logging.ERROR, logger="celery_reliable"):
        verdict = judge(ConnectionResetError(), classify=lambda _: "fail")  # type: ignore[arg-type,return-value]
    assert verdict == Verdict.retry(rule="connection")
    assert "expected a Verdict or None, found a str" in caplog.text


def test_draining_raised_inside_classify_passes() -> None:
    """The interruption of a draining worker is not an error of classify."""

    def classify(_: BaseException) -> Verdict:
        raise Draining

    with pytest.raises(Draining):
        judge(ValueError(), classify=classify)


# --- fail_on and retry_on


@pytest.mark.parametrize(
    ("options", "action", "rule"),
    [
        ({"retry_on": (PaymentError,)}, "retry", "user:retry_on"),
        ({"fail_on": (PaymentError,)}, "fail", "user:fail_on"),
        ({"retry_on": (PaymentError,), "fail_on": (CardDeclinedError,)}, "fail", "user:fail_on"),
        ({"retry_on": (CardDeclinedError,), "fail_on": (PaymentError,)}, "retry", "user:retry_on"),
        ({"retry_on": (CardDeclinedError,), "fail_on": (CardDeclinedError,)}, "fail", "user:fail_on"),
        ({"retry_on": (Exception,), "fail_on": (PaymentError,)}, "fail", "user:fail_on"),
        ({"retry_on": (ValueError,), "fail_on": (KeyError,)}, "fail", "unknown"),
        ({"retry_on": (f"{__name__}.PaymentError",)}, "retry", "user:retry_on"),
        ({"retry_on": (f"{__name__}:PaymentError",)}, "retry", "user:retry_on"),
        ({"retry_on": (f"{__name__}.OtherError",)}, "fail", "unknown"),
    ],
)
def test_the_nearest_listed_class_decides_and_a_tie_fails(options: dict[str, Any], action: str, rule: str) -> None:
    """A list of special cases can be written in either direction."""
    verdict = judge(CardDeclinedError(), **options)
    assert (verdict.action, verdict.rule) == (action, rule)


@pytest.mark.parametrize("path", ["requests.ConnectionError", "requests.exceptions.ConnectionError"])
def test_a_dotted_path_may_be_the_one_that_users_import(path: str) -> None:
    """Libraries define their exceptions elsewhere than where they offer them."""
    assert judge(requests.ConnectionError(), fail_on=(path,)).rule == "user:fail_on"


def test_a_dotted_path_of_a_library_that_is_not_there_matches_nothing() -> None:
    """Nothing is imported to compare names."""
    verdict = judge(PaymentError(), retry_on=("no_such_library.Error", "json.tool.no_such_name"))
    assert verdict.rule == "unknown"
    assert "no_such_library" not in sys.modules
    assert "json.tool" not in sys.modules


def test_options_overrule_the_rules_but_keep_what_the_server_told() -> None:
    """A 403 that the project retries is retried when the server says; Retry-After is a floor."""
    response = requests.Response()
    response.status_code = 403
    response.headers["Retry-After"] = "30"
    exc = requests.HTTPError(response=response)
    assert judge(exc).action == "fail"
    assert judge(exc, retry_on=(requests.HTTPError,)) == Verdict.retry(retry_after=30, rule="user:retry_on")


def test_a_soft_time_limit_stays_one_whoever_decides() -> None:
    """The letter says time_limit, also when the project retries every exception, or none."""
    assert judge(SoftTimeLimitExceeded()) == Verdict.retry(rule="soft_time_limit", reason="time_limit")
    assert judge(SoftTimeLimitExceeded(), retry_on=(Exception,)).reason == "time_limit"
    assert judge(SoftTimeLimitExceeded(), fail_on=(Exception,)) == Verdict.fail(
        rule="user:fail_on", reason="time_limit"
    )


# --- what nobody knows


def test_what_no_rule_knows_follows_the_setting() -> None:
    """The default is to fail."""
    assert judge(PaymentError()) == Verdict.fail(rule="unknown")
    assert judge(PaymentError(), on_unknown_error="retry") == Verdict.retry(rule="unknown")


@pytest.mark.parametrize("exc", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exit_fails_unless_the_task_says_otherwise(exc: BaseException) -> None:
    """A body that calls sys.exit has said that it is over; the setting for unknown errors does not apply."""
    assert judge(exc, on_unknown_error="retry") == Verdict.fail(rule="exit")
    assert judge(exc, retry_on=(BaseException,)).action == "retry"


def test_the_cause_of_a_translated_error_is_not_asked() -> None:
    """Who writes `raise Mine from exc` has chosen the meaning."""
    exc = PaymentError()
    exc.__cause__ = ConnectionResetError()
    assert judge(exc).rule == "unknown"


# --- hostile exceptions


class _Raises:
    def __init__(self, exc: Exception) -> None:
        self.exc = exc

    def __get__(self, *_: object) -> object:
        """Raise, whoever reads the attribute."""
        raise self.exc


class PropertiesRaiseError(Exception):
    """Every attribute that a rule may read raises."""

    response = status_code = http_status = headers = sqlstate = pgcode = connection_invalidated = _Raises(OSError("no"))


class PropertiesOfAConnectionRaiseError(ConnectionResetError):
    """Likewise, but of a class that is known."""

    response = status_code = http_status = headers = sqlstate = pgcode = connection_invalidated = _Raises(OSError("no"))


class TextRaisesError(Exception):
    """It cannot be printed."""

    def __str__(self) -> str:
        """Raise instead of speaking."""
        raise RuntimeError("no text")

    __repr__ = __str__


class ClassRaisesError(Exception):
    """It lies about its class, badly."""

    __class__ = _Raises(RuntimeError("no class"))  # type: ignore[assignment]


class ArgumentsAreNoTupleError(requests.exceptions.ConnectionError):
    """A wrapper whose args cannot be searched."""

    args = None  # type: ignore[assignment]


class EverythingExistsError(Exception):
    """Like a mock: every attribute exists, and is an object."""

    def __getattr__(self, name: str) -> object:
        """Answer anything with something."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type("Anything", (), {"__getattr__": lambda *_: object()})()


class _NoModule(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no module")


class NamelessError(Exception, metaclass=_NoModule):
    """Its class cannot be named."""


class _NoHeaders:
    status_code = 503


class _HeadersRaise:
    status_code = 503

    class headers:  # noqa: N801  # an attribute of a response
        @staticmethod
        def get(_: str) -> str:
            raise RuntimeError("no header")


def _carrying(**attributes: object) -> Exception:
    exc = PaymentError()
    vars(exc).update(attributes)
    return exc


def _ring() -> Exception:
    first, second = requests.exceptions.ConnectionError(), requests.exceptions.ConnectionError()
    first.__cause__, second.__cause__ = second, first
    return first


HOSTILE: list[tuple[BaseException, str, str]] = [
    (PropertiesRaiseError(), "fail", "unknown"),
    (PropertiesOfAConnectionRaiseError(), "retry", "connection"),
    (TextRaisesError(), "fail", "unknown"),
    (ClassRaisesError(), "fail", "unknown"),
    (NamelessError(), "fail", "unknown"),
    (ArgumentsAreNoTupleError(), "fail", "unknown"),
    (EverythingExistsError(), "fail", "unknown"),
    (_ring(), "retry", "connection"),
    (_carrying(response=None), "fail", "unknown"),
    (_carrying(response={}), "fail", "unknown"),
    (_carrying(response={"ResponseMetadata": None}), "fail", "unknown"),
    (_carrying(response=_NoHeaders()), "retry", "http_status"),
    (_carrying(response=_HeadersRaise()), "retry", "http_status"),
    (_carrying(status_code=None), "fail", "unknown"),
    (_carrying(status_code=True), "fail", "unknown"),
    (_carrying(status_code="503"), "fail", "unknown"),
    (_carrying(status_code=200), "fail", "unknown"),
    (_carrying(status_code=10**400), "fail", "unknown"),
    (_carrying(status_code=503, headers=7), "retry", "http_status"),
    (_carrying(status_code=503, headers={"Retry-After": object()}), "retry", "http_status"),
    (_carrying(sqlstate=40001), "fail", "unknown"),
    (_carrying(sqlstate="4"), "fail", "unknown"),
    (OSError(), "fail", "unknown"),
    (OSError("text", "text"), "fail", "unknown"),
]


@pytest.mark.parametrize(("exc", "action", "rule"), HOSTILE, ids=[type(exc).__name__ for exc, _, _ in HOSTILE])
def test_no_exception_is_too_strange_to_get_a_verdict(exc: BaseException, action: str, rule: str) -> None:
    """Judging happens in the middle of a failure: it must not fail too."""
    verdict = judge(exc)
    assert (verdict.action, verdict.rule) == (action, rule)


# --- what it costs to import


def test_judging_imports_none_of_the_libraries_it_knows() -> None:
    """A probe or a producer that imports the rules pays for no client library, and needs none."""
    script = (
        "import sys, celery_reliable.retries as retries\n"
        "retries.judge(ConnectionError(), retry_on=('requests.ConnectionError',))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    loaded = set(output.stdout.split())
    assert "celery_reliable" in loaded
    known = "aiohttp amqp asyncpg billiard botocore celery django eventlet gevent httpcore httpx kombu mysql MySQLdb"
    known += " psycopg psycopg2 pymysql redis requests sqlalchemy sqlite3 ssl smtplib urllib3 valkey"
    assert not loaded & set(known.split())
