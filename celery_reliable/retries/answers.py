"""Judge an exception by the HTTP answer it carries.

Found without importing the client: requests, httpx and most API clients keep the answer in ``exc.response``, others
keep the status on the exception itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any, Final

from celery_reliable.retries.peek import entry, names, peek, whole
from celery_reliable.retries.verdict import Verdict, seconds

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Carrier:
    """Where a family of exceptions keeps the status and the headers. ``only``: this class and its subclasses."""

    status: tuple[str, ...]
    headers: tuple[str, ...]
    only: str = "builtins.BaseException"


CARRIERS: Final = (
    # requests, httpx, and the many API clients that keep one of their answers
    Carrier(("response", "status_code"), ("response", "headers")),
    # botocore
    Carrier(("response", "ResponseMetadata", "HTTPStatusCode"), ("response", "ResponseMetadata", "HTTPHeaders")),
    # Stripe and its like
    Carrier(("http_status",), ("headers",)),
    # clients and frameworks that put the status on the exception
    Carrier(("status_code",), ("headers",)),
    # ``status`` and ``code`` mean too many other things to be trusted on a stranger
    Carrier(("status",), ("headers",), only="aiohttp.client_exceptions.ClientResponseError"),
    Carrier(("code",), ("headers",), only="urllib.error.HTTPError"),
)

ERROR_STATUS: Final = range(400, 600)
TRANSIENT_STATUS: Final = frozenset({408, 425, 429, *range(500, 600)})

# AWS answers 400 to a client that is too fast; the names are those of botocore's standard retry mode.
AWS_TRANSIENT_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)


def judge_answer(exc: BaseException, *, clock: Clock) -> Verdict | None:
    """Judge by the status: 408, 425, 429 and 5xx may pass, any other 4xx will not. None: no such answer.

    ``Retry-After`` is kept on either verdict, so that a task which overrules a 4xx still waits as told.
    """
    status, headers = _answer(exc)
    if status is None:
        return None
    wait = retry_after(headers, clock=clock)
    if _may_pass(exc, status):
        return Verdict.retry(rule="http_status", retry_after=wait)
    return Verdict.fail(rule="http_status", retry_after=wait)


def _answer(exc: BaseException) -> tuple[int | None, Any]:
    classes = frozenset(names(exc))
    for carrier in CARRIERS:
        status = whole(peek(exc, *carrier.status)) if carrier.only in classes else None
        if status is not None and status in ERROR_STATUS:
            return status, peek(exc, *carrier.headers)
    return None, None


def _may_pass(exc: BaseException, status: int) -> bool:
    code = peek(exc, "response", "Error", "Code")
    return status in TRANSIENT_STATUS or (isinstance(code, str) and code in AWS_TRANSIENT_CODES)


def retry_after(headers: Any, *, clock: Clock) -> float | None:  # Any: every client has headers of its own
    """Read ``Retry-After`` (RFC 9110, 10.2.3): seconds, or a date.

    A date is compared with the server's own ``Date`` where there is one, since the two clocks may differ. A header
    that is neither is ignored.
    """
    value = _header(headers, "Retry-After")
    if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
        return seconds(float(value))
    until = _timestamp(value)
    if until is None:
        return None
    now = _timestamp(_header(headers, "Date"))
    return seconds(until - (clock() if now is None else now))


def _header(headers: Any, name: str) -> str:
    for spelling in (name, name.lower()):
        value = entry(headers, spelling)
        if isinstance(value, (str, int, float)):
            return str(value).strip()
    return ""


def _timestamp(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
