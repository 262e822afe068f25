"""The rules for HTTP, on what real clients raise about a real server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import threading
import urllib.request
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import botocore.config
import botocore.exceptions
import botocore.session
import httpx
import pytest
import requests
import trustme
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable.retries import Verdict, judge
from celery_reliable.retries.answers import retry_after
from tests.provoking import hold_closed_port, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 5.0
DATE = 1_700_000_000


# --- an HTTP server that answers as told, and the clients


class _Handler(BaseHTTPRequestHandler):
    """Answer /status/N with N, with the headers of the query, and /short, /garbled, /text, /loop, /silent as named."""

    server: HttpServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        headers = {name: values[0] for name, values in parse_qs(url.query).items()}
        kind, _, argument = url.path.strip("/").partition("/")
        getattr(self, f"_{kind}")(
            argument, {name: text for name, text in headers.items() if "-" in name or name == "Date"}
        )

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response_only(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _status(self, argument: str, headers: dict[str, str]) -> None:
        self._answer(int(argument), headers)

    def _aws(self, argument: str, headers: dict[str, str]) -> None:
        self._answer(400, headers, f"<Error><Code>{argument}</Code></Error>".encode())

    def _short(self, _: str, headers: dict[str, str]) -> None:
        self._answer(200, {"Content-Length": "1000"}, b"cut")
        self.close_connection = True

    def _garbled(self, _: str, headers: dict[str, str]) -> None:
        self._answer(200, {"Content-Encoding": "gzip"}, b"this is no gzip at all")

    def _text(self, _: str, headers: dict[str, str]) -> None:
        self._answer(200, {"Content-Type": "text/plain"}, b"not JSON")

    def _loop(self, _: str, headers: dict[str, str]) -> None:
        self._answer(302, {"Location": self.path})

    def _silent(self, _: str, headers: dict[str, str]) -> None:
        self.server.ending.wait(TIMEOUT)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


class HttpServer(ThreadingHTTPServer):
    """Ends requests that wait, when it ends."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        """Listen on a free port of loopback."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ending = threading.Event()
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'http' if context is None else 'https'}://localhost:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are the subject of these tests."""


@contextlib.contextmanager
def _serving(server: HttpServer) -> Iterator[HttpServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    """The address of a plain server."""
    with _serving(HttpServer()) as server:
        yield server.url


@pytest.fixture(scope="module")
def https() -> Iterator[str]:
    """The address of a server whose certificate nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with _serving(HttpServer(context)) as server:
        yield server.url


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of ours on which nobody listens."""
    with hold_closed_port() as port:
        yield port


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def get_requests(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by requests."""
    requests.get(url, timeout=timeout).raise_for_status()


def get_httpx(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by httpx."""
    httpx.get(url, timeout=timeout, follow_redirects=True).raise_for_status()


def get_urllib(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by the standard library."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        answer.read()


def get_urllib3(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by urllib3, which raises for no status."""
    with urllib3.PoolManager() as pool:
        pool.request("GET", url, timeout=timeout, retries=urllib3.Retry(total=0, redirect=2))


def get_aiohttp(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by aiohttp."""

    async def get() -> None:
        limit = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=limit, raise_for_status=True) as session, session.get(url) as answer:
            await answer.read()

    asyncio.run(get())


def get_botocore(url: str, timeout: float = TIMEOUT) -> None:
    """Ask by botocore, as if for an object of S3."""
    parts = urlsplit(url)
    bucket, _, key = parts.path.strip("/").partition("/")
    client = _s3_client(f"{parts.scheme}://{parts.netloc}", timeout)
    add_query = functools.partial(_add_query, query=parts.query)
    client.meta.events.register("before-send", add_query)
    try:
        client.get_object(Bucket=bucket, Key=key)["Body"].read()
    finally:
        client.meta.events.unregister("before-send", add_query)


@functools.cache
def _s3_client(endpoint: str, timeout: float) -> Any:
    return botocore.session.Session().create_client(
        "s3",
        region_name="eu-central-1",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=botocore.config.Config(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
            connect_timeout=timeout,
            read_timeout=timeout,
        ),
    )


def _add_query(request: Any, *, query: str, **_: object) -> None:
    request.url = f"{request.url.partition('?')[0]}?{query}"


STATUS_CLIENTS = (get_requests, get_httpx, get_urllib, get_aiohttp, get_botocore)
CLIENTS = (*STATUS_CLIENTS, get_urllib3)


# --- HTTP


@pytest.mark.parametrize("get", STATUS_CLIENTS)
@pytest.mark.parametrize(
    ("status", "action"),
    [
        *((status, "retry") for status in (408, 425, 429, 500, 502, 503, 504, 599)),
        *((status, "fail") for status in (400, 401, 402, 403, 404, 405, 409, 410, 413, 422, 451)),
    ],
)
def test_http_status_decides(http: str, get: Callable[[str], None], status: int, action: str) -> None:
    """408, 425, 429 and 5xx may pass, any other 4xx will not."""
    verdict = judge(raised(lambda: get(f"{http}/status/{status}")))
    assert (verdict.action, verdict.rule, verdict.retry_after) == (action, "http_status", None)


@pytest.mark.parametrize("get", STATUS_CLIENTS)
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": formatdate(DATE + 90, usegmt=True), "Date": formatdate(DATE, usegmt=True)}, 90.0),
        ({"Retry-After": formatdate(DATE + 90, usegmt=True)}, 60.0),
        ({"Retry-After": formatdate(DATE - 90, usegmt=True)}, 0.0),
        ({"Retry-After": "in a while"}, None),
        ({"Retry-After": "-7"}, None),
    ],
)
def test_retry_after_is_honoured(
    http: str, get: Callable[[str], None], headers: dict[str, str], expected: float | None
) -> None:
    """It is seconds, or a date by the server's own clock, or by ours where the server does not tell its own."""
    query = "&".join(f"{name}={text.replace(' ', '%20')}" for name, text in headers.items())
    verdict = judge(raised(lambda: get(f"{http}/status/503?{query}")), clock=lambda: DATE + 30.0)
    assert verdict == Verdict.retry(retry_after=expected, rule="http_status")


@pytest.mark.parametrize("code", ["SlowDown", "ThrottlingException", "RequestTimeout"])
def test_aws_throttles_with_status_400(http: str, code: str) -> None:
    """The code in the body counts more than the status."""
    assert judge(raised(lambda: get_botocore(f"{http}/aws/{code}"))).action == "retry"


def test_aws_code_of_a_wrong_request_fails(http: str) -> None:
    """Other codes leave the status its meaning."""
    assert judge(raised(lambda: get_botocore(f"{http}/aws/InvalidRequest"))).action == "fail"


@pytest.mark.parametrize("attributes", [{"http_status": 429}, {"status_code": 429}, {"response": {"status_code": 429}}])
def test_status_of_an_unknown_client_is_found_where_clients_keep_it(attributes: dict[str, Any]) -> None:
    """Stripe's way, and that of most generated API clients."""
    exc = Exception("too many requests")
    vars(exc).update(attributes, headers={"retry-after": "3"})
    assert judge(exc).action == "retry"


@pytest.mark.parametrize("name", ["code", "status"])
def test_a_number_called_code_or_status_is_not_taken_for_http(name: str) -> None:
    """Those names mean too many other things."""
    exc = Exception("error 404 of something")
    setattr(exc, name, 404)
    assert judge(exc).rule == "unknown"


@pytest.mark.parametrize("get", CLIENTS)
def test_refused_connection_is_transient(closed_port: int, get: Callable[[str], None]) -> None:
    """A service that restarts refuses connections for a while."""
    assert judge(raised(lambda: get(f"http://127.0.0.1:{closed_port}/status/200"))).action == "retry"


@pytest.mark.parametrize("get", CLIENTS)
def test_timeout_is_transient(http: str, get: Callable[..., None]) -> None:
    """No answer in time says nothing about the next one."""
    assert judge(raised(lambda: get(f"{http}/silent/x", timeout=0.1))).action == "retry"


@pytest.mark.parametrize("get", CLIENTS)
def test_answer_cut_short_is_transient(http: str, get: Callable[[str], None]) -> None:
    """The connection ended in the middle of the body."""
    assert judge(raised(lambda: get(f"{http}/short/x"))).action == "retry"


@pytest.mark.parametrize("get", CLIENTS)
def test_untrusted_certificate_is_permanent(https: str, get: Callable[[str], None]) -> None:
    """However deep the client wraps it: a certificate does not get better by itself."""
    assert judge(raised(lambda: get(f"{https}/status/200"))) == Verdict.fail(rule="certificate")


def test_untrusted_certificate_is_found_where_urllib3_keeps_it() -> None:
    """Version 1 did not chain the reason."""
    exc = urllib3.exceptions.MaxRetryError(None, "/", ssl.SSLCertVerificationError(1, "text"))  # type: ignore[arg-type]
    assert judge(requests.exceptions.SSLError(exc)) == Verdict.fail(rule="certificate")


@pytest.mark.parametrize("get", CLIENTS)
def test_failed_handshake_is_transient(http: str, get: Callable[[str], None]) -> None:
    """Any other TLS error may be a connection that was cut."""
    assert judge(raised(lambda: get(f"{http.replace('http', 'https', 1)}/status/200"))).action == "retry"


@pytest.mark.parametrize("get", [get_requests, get_httpx, get_urllib, get_aiohttp, get_urllib3])
@pytest.mark.parametrize("url", ["http://[::1", "http://localhost:port/"])
def test_malformed_address_is_permanent(get: Callable[[str], None], url: str) -> None:
    """No attempt can succeed."""
    assert judge(raised(lambda: get(url))).action == "fail"


@pytest.mark.parametrize("get", [get_requests, get_httpx, get_aiohttp, get_urllib3])
def test_unknown_scheme_is_permanent(get: Callable[[str], None]) -> None:
    """Although httpx calls it a TransportError."""
    assert judge(raised(lambda: get("gopher://localhost/"))).action == "fail"


@pytest.mark.parametrize("get", [get_requests, get_httpx, get_aiohttp])
def test_endless_redirect_is_permanent(http: str, get: Callable[[str], None]) -> None:
    """It would go round again."""
    assert judge(raised(lambda: get(f"{http}/loop/x"))).rule == "request"


@pytest.mark.parametrize("get", [get_requests, get_httpx, get_urllib3])
def test_answer_that_cannot_be_decoded_is_permanent(http: str, get: Callable[[str], None]) -> None:
    """All of it arrived."""
    assert judge(raised(lambda: get(f"{http}/garbled/x"))).rule == "response"


def test_answer_that_is_no_json_is_permanent(http: str) -> None:
    """Each client has an error of its own for it."""

    async def get() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{http}/text/x") as answer:
            await answer.json()

    errors = [
        raised(lambda: requests.get(f"{http}/text/x", timeout=TIMEOUT).json()),
        raised(lambda: httpx.get(f"{http}/text/x").json()),
        raised(lambda: asyncio.run(get())),
    ]
    assert [judge(exc).action for exc in errors] == ["fail"] * 3


def test_retries_of_the_client_that_are_used_up_are_transient(http: str) -> None:
    """urllib3's own retries ended, ours come later; requests wraps that once more."""
    retries = urllib3.Retry(total=0, status_forcelist=[503])
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
    with session, urllib3.PoolManager() as pool:
        errors = [
            raised(lambda: pool.request("GET", f"{http}/status/503", retries=retries)),
            raised(lambda: session.get(f"{http}/status/503", timeout=TIMEOUT)),
        ]
    assert [judge(exc).action for exc in errors] == ["retry", "retry"]


def test_missing_aws_credentials_and_wrong_parameters_are_permanent() -> None:
    """They are found before anything is sent."""
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    client = session.create_client("s3", region_name="eu-central-1")
    assert judge(raised(client.get_object)).rule == "request"
    assert judge(botocore.exceptions.NoCredentialsError()).rule == "request"


@given(st.text(max_size=60), st.text(max_size=60), st.floats())
def test_any_text_in_the_headers_is_survived(value: str, date: str, now: float) -> None:
    """A header is a stranger's text: the answer is None or a number of seconds that can be waited for."""
    wait = retry_after({"Retry-After": value, "Date": date}, clock=lambda: now)
    assert wait is None or wait >= 0


@pytest.mark.parametrize("value", ["9" * 5000, "1e999", "Fri, 31 Dec 9999 23:59:59 +0000", "٣"])
def test_absurd_retry_after_is_a_number_or_nothing(value: str) -> None:
    """It neither raises nor becomes infinite."""
    wait = retry_after({"retry-after": value}, clock=lambda: 0.0)
    assert wait is None or 0 <= wait <= 1e12
