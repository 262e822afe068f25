"""Say where the store is."""

from __future__ import annotations

import re

from celery_reliable.errors import ConfigurationError

STORE_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "sentinel",
    "redis+cluster",
    "rediss+cluster",
    "postgresql",
    "mariadb",
    "sqlite",
    "django",
    "memory",
)
_DRIVERS = (
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "mariadb+pymysql",
    "mysql+pymysql",
)  # as SQLAlchemy spells them
SCHEMES = " ".join(f"{scheme}://" for scheme in STORE_SCHEMES)
STORE_URL = "|".join(rf"{re.escape(scheme)}://.*" for scheme in (*STORE_SCHEMES, *_DRIVERS))


def resolve_store_url(explicit: str | None, *, result_backend: object, broker_url: object) -> str:
    """Return the store's URL: the explicit one, else the result backend, else the broker, if that is Redis.

    Of several URLs the first counts. Raises ConfigurationError when neither is Redis, or when it is a Redis behind
    Sentinel: Celery's URL does not name the master that the sentinels watch.
    """
    if explicit is not None:
        return explicit
    backend, broker = _first(result_backend), _first(broker_url)
    for url in (backend, broker):
        if _scheme(url) in ("redis", "rediss"):
            return url if "://" in url else f"{url}://"
        if _scheme(url) == "sentinel":
            raise ConfigurationError(_expected("sentinel://host:port,host:port/master_name", "it behind Sentinel"))
    found = f"neither as result backend ({_scheme(backend) or 'none'}) nor as broker ({_scheme(broker) or 'none'})"
    raise ConfigurationError(_expected(f"a URL that begins with one of {SCHEMES}", found))


def refuse_unclear(url: str, *, setting: str) -> None:
    """Refuse a URL in which it is not clear where the password ends: its parts would be shown as host, port or path.

    Raises `ConfigurationError`, which shows nothing of it.
    """
    scheme, _, rest = url.partition("://")
    if not scheme.startswith(_PARTED):
        return
    for one in re.split(r";\w[\w+.-]*://", rest):
        server, tail = _SERVER.fullmatch(one).groups()  # type: ignore[union-attr]  # it fits every text
        user, _, hosts = server.rpartition("@")
        is_plain = all(_HOST.fullmatch(host) for host in re.split("[,;]", hosts))
        has_more = not scheme.startswith(_WITH_ANY_PATH) and _USER_IN_TAIL.match(tail)
        if not is_plain or has_more or ";" in user or ("@" in user and scheme.startswith("postgresql")):
            raise ConfigurationError(
                f"{setting}: expected scheme://user:password@host:port/..., found one of @ / ? # ; in user or password; write "
                "them as %40 %2F %3F %23 %3B"
            )


_WITH_ANY_PATH = ("amqp", "pyamqp")
_PARTED = ("redis", "sentinel", "postgresql", *_WITH_ANY_PATH)  # others are read in ways of their own
_SERVER = re.compile(r"([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d+)?")
_USER_IN_TAIL = re.compile(r"[^?]*@|[^?]*\?[^=]*@", re.DOTALL)


def _expected(expected: str, found: str) -> str:
    return f"reliable_store_url: expected a Redis to keep state in, found {found}; set reliable_store_url to {expected}"


def _first(value: object) -> str:
    if isinstance(value, list | tuple):
        return _first(value[0]) if value else ""
    return value.split(";")[0] if isinstance(value, str) else ""


def _scheme(url: str) -> str:
    return url.partition("://")[0] if re.fullmatch(r"[a-z][a-z0-9+.-]*(://.*)?", url) else ""
