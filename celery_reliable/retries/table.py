"""List what the exceptions of many libraries mean.

By name, since none of these libraries is imported here. The nearest class in an exception's method resolution order
that has a row decides, so the order of the rows does not matter. In doubt about a network or a server a row says
``retry``: retries are bounded, and a letter buried by mistake needs a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from celery_reliable.retries import codes
from celery_reliable.retries.verdict import Reason, Verdict

Look = Callable[[BaseException], Verdict | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what an error of these classes means, and why.

    A `Look` reads the exception and may have no opinion; then the next base is asked. ``reason`` is that of the dead
    letter where it is not the usual one.
    """

    name: str
    verdict: Literal["retry", "fail"] | Look
    why: str
    classes: tuple[str, ...]
    reason: Reason | None = None


def _classes(*lines: str) -> tuple[str, ...]:
    """Expand lines of the form ``module: Class Class``."""
    split = (line.partition(": ") for line in lines)
    return tuple(f"{module}.{name}" for module, _, names in split for name in names.split())


def _redis(names: str) -> tuple[str, ...]:
    """Name classes of redis-py, and of its fork valkey-py."""
    return _classes(f"redis.exceptions: {names}", f"valkey.exceptions: {names}")


def _dbapi(names: str, *modules: str) -> tuple[str, ...]:
    """Name classes that PEP 249 defines, in each of these modules."""
    return _classes(*(f"{module}: {names}" for module in modules))


_POSTGRES: Final = ("psycopg", "psycopg2")
_MYSQL: Final = ("MySQLdb", "pymysql.err", "mysql.connector.errors")
_TRANSLATORS: Final = ("sqlalchemy.exc", "django.db.utils")

RULES: Final[tuple[Rule, ...]] = (
    # --- celery_reliable, as far as a task may overrule it; see `judging` for what it may not
    Rule("queue_full", codes.judge_queue_full, "queues empty", _classes("celery_reliable.errors: QueueFull")),
    Rule(
        "reliable",
        "fail",
        "the same call would be refused again",
        _classes("celery_reliable.errors: ConfigurationError DuplicateTask PayloadMismatch ReplayRefused StoreError"),
    ),
    # --- time
    Rule(
        "soft_time_limit",
        "retry",
        "the next run may be faster, or its worker less busy",
        _classes("billiard.exceptions: SoftTimeLimitExceeded"),
        reason="time_limit",
    ),
    Rule(
        "timeout",
        "retry",
        "no answer in time says nothing about the next one",
        _classes(
            "builtins: TimeoutError",
            "asyncio.exceptions: TimeoutError",
            "concurrent.futures._base: TimeoutError",
            "multiprocessing.context: TimeoutError",
            "subprocess: TimeoutExpired",
            "celery.exceptions: TimeoutError",
            "gevent.timeout: Timeout",
            "eventlet.timeout: Timeout",
            "requests.exceptions: Timeout",
            "urllib3.exceptions: TimeoutError",
            "httpx: TimeoutException",
            "httpcore: TimeoutException",
            "sqlalchemy.exc: TimeoutError",
            "mysql.connector.errors: ConnectionTimeoutError ReadTimeoutError WriteTimeoutError",
        ),
    ),
    # --- network
    Rule(
        "connection",
        "retry",
        "refused, cut, or ended in the middle of an answer",
        _classes(
            "builtins: ConnectionError",
            "asyncio.exceptions: IncompleteReadError",
            "http.client: BadStatusLine IncompleteRead",
            "urllib.error: ContentTooShortError",
            "smtplib: SMTPServerDisconnected",
            "requests.exceptions: ChunkedEncodingError ConnectionError RetryError",
            "urllib3.exceptions: NewConnectionError PoolError ProtocolError ProxyError ResponseError",
            "httpx: TransportError",
            "httpcore: ConnectionNotAvailable NetworkError ProtocolError ProxyError",
            "aiohttp.client_exceptions: ClientConnectionError ClientPayloadError",
            "botocore.exceptions: ConnectionError CredentialRetrievalError HTTPClientError IncompleteReadError",
            "stripe._error: APIConnectionError",
        ),
    ),
    Rule(
        "certificate",
        "fail",
        "a certificate does not get better by itself",
        _classes(
            "ssl: SSLCertVerificationError",
            "aiohttp.client_exceptions: ClientConnectorCertificateError ServerFingerprintMismatch",
        ),
    ),
    Rule(
        "tls",
        "retry",
        "a connection cut during the handshake looks like this",
        _classes("ssl: SSLError", "urllib3.exceptions: SSLError"),
    ),
    Rule(
        "dns",
        codes.judge_name_lookup,
        "a name unknown now may be known soon: a service that starts, a resolver that reloads",
        _classes("socket: gaierror herror"),
    ),
    Rule(
        "request",
        "fail",
        "the request itself is wrong: its address, parameters or credentials",
        _classes(
            "http.client: InvalidURL",
            "requests.exceptions: InvalidHeader InvalidJSONError InvalidSchema InvalidURL MissingSchema URLRequired",
            "requests.exceptions: TooManyRedirects UnrewindableBodyError",
            "urllib3.exceptions: HostChangedError InvalidHeader LocationValueError UnrewindableBodyError",
            "httpx: CookieConflict InvalidURL LocalProtocolError StreamError TooManyRedirects UnsupportedProtocol",
            "httpcore: LocalProtocolError UnsupportedProtocol",
            "aiohttp.client_exceptions: InvalidURL NonHttpUrlClientError RedirectClientError TooManyRedirects",
            "botocore.exceptions: NoCredentialsError NoRegionError ParamValidationError PartialCredentialsError",
            "botocore.exceptions: UnknownServiceError ValidationError",
        ),
    ),
    Rule(
        "response",
        "fail",
        "the whole answer arrived and cannot be read",
        _classes(
            "requests.exceptions: ContentDecodingError",
            "urllib3.exceptions: DecodeError",
            "httpx: DecodingError",
            "aiohttp.client_exceptions: ContentTypeError",
        ),
    ),
    Rule("smtp", codes.judge_smtp, "the reply says whether to come back", _classes("smtplib: SMTPResponseException")),
    Rule("smtp", codes.judge_smtp_recipients, "one reply per recipient", _classes("smtplib: SMTPRecipientsRefused")),
    # --- Redis
    Rule(
        "redis",
        "retry",
        "away, starting, failing over, moving slots, out of memory, or a race lost",
        _redis(
            "AskError ClusterError ConnectionError InvalidResponse LockError OutOfMemoryError ReadOnlyError"
            " SlotNotCoveredError TimeoutError TryAgainError WatchError"
        ),
    ),
    Rule(
        "redis",
        "fail",
        "a wrong password, right or argument, although two of these derive from ConnectionError",
        _redis("AuthenticationError AuthorizationError DataError NoPermissionError"),
    ),
    Rule("redis", codes.judge_redis_reply, "an error reply begins with a code", _redis("ResponseError")),
    # --- AMQP, kombu, Celery
    Rule(
        "amqp",
        "retry",
        "py-amqp calls them recoverable; a publish refused now may be accepted later",
        _classes("amqp.exceptions: ConnectionError MessageNacked RecoverableChannelError RecoverableConnectionError"),
    ),
    Rule(
        "amqp",
        "fail",
        "py-amqp calls them irrecoverable; a message too large stays too large",
        _classes("amqp.exceptions: ContentTooLarge IrrecoverableChannelError IrrecoverableConnectionError"),
    ),
    Rule(
        "kombu",
        "retry",
        "the broker is away, or the pool used up",
        _classes("kombu.exceptions: LimitExceeded OperationalError"),
    ),
    Rule(
        "kombu",
        "fail",
        "it cannot be serialised or read",
        _classes("kombu.exceptions: SerializationError SerializerNotInstalled"),
    ),
    Rule("celery", "retry", "the result backend is away", _classes("celery.exceptions: BackendError")),
    Rule(
        "celery",
        "fail",
        "the task's own self.retry() has given up",
        _classes("celery.exceptions: MaxRetriesExceededError"),
        reason="exhausted",
    ),
    # --- databases, where no SQLSTATE has decided
    Rule(
        "database",
        "fail",
        "the same statement fails again",
        _dbapi("DataError IntegrityError NotSupportedError ProgrammingError", *_POSTGRES, *_MYSQL, *_TRANSLATORS),
    ),
    Rule(
        "connection",
        codes.judge_dropped,
        "without a SQLSTATE the connection failed or was cut",
        _dbapi("InterfaceError OperationalError", *_POSTGRES, *_TRANSLATORS),
    ),
    Rule(
        "connection",
        "retry",
        "dead, closed, or none free",
        _classes(
            "sqlalchemy.exc: DisconnectionError",
            "mysql.connector.errors: PoolError",
            "asyncpg.exceptions._base: InterfaceError OutdatedSchemaCacheError TargetServerAttributeNotMatched",
        ),
    ),
    Rule(
        "database",
        "fail",
        "the driver or the server cannot do that",
        _classes(
            "asyncpg.exceptions._base: ClientConfigurationError",
            "asyncpg.exceptions._base: UnsupportedClientFeatureError UnsupportedServerFeatureError",
        ),
    ),
    Rule(
        "mysql",
        codes.judge_mysql,
        "the error number says it",
        _classes("MySQLdb: MySQLError", "pymysql.err: MySQLError", "mysql.connector.errors: Error"),
    ),
    Rule("sqlite", codes.judge_sqlite, "the result code says it", _classes("sqlite3: Error")),
    # --- the machine
    Rule("memory", "retry", "another moment, or another worker, has more of it", _classes("builtins: MemoryError")),
    Rule(
        "errno",
        "retry",
        "a system call that was interrupted or would have had to wait",
        _classes("builtins: BlockingIOError InterruptedError"),
    ),
    Rule(
        "errno",
        "fail",
        "a path or a right",
        _classes("builtins: FileExistsError FileNotFoundError IsADirectoryError NotADirectoryError PermissionError"),
    ),
    Rule("errno", codes.judge_errno, "the number says it", _classes("builtins: OSError")),
    # --- Python
    Rule(
        "python",
        "fail",
        "the same code with the same arguments fails in the same way",
        _classes(
            "builtins: ArithmeticError AssertionError AttributeError ImportError LookupError NameError",
            "builtins: NotImplementedError RecursionError SyntaxError TypeError ValueError",
        ),
    ),
)

BY_CLASS: Final[Mapping[str, Rule]] = MappingProxyType({name: rule for rule in RULES for name in rule.classes})

TRANSLATES: Final = frozenset(
    _classes(
        "urllib.error: URLError",
        "requests.exceptions: ConnectionError RetryError",
        "urllib3.exceptions: MaxRetryError NewConnectionError ProtocolError ProxyError SSLError",
        "httpx: TransportError",
        "httpcore: NetworkError ProtocolError TimeoutException",
        "botocore.exceptions: ConnectionError HTTPClientError",
        "kombu.exceptions: OperationalError",
        "sqlalchemy.exc: StatementError",
        "django.db.utils: Error",
    )
)
"""Classes that put another library's error in their own words: what they wrap is asked first."""
