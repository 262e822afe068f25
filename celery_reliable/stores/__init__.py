"""Choose the store by the scheme of its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_reliable.errors import ConfigurationError
from celery_reliable.settings import mask_secrets, refuse_unclear

if TYPE_CHECKING:
    from celery_reliable.stores.base import Store
    from celery_reliable.stores.sql.lives import SqlLives

__all__ = ["lives_of", "open_store"]

_REDIS = ("redis", "rediss", "unix", "sentinel", "redis+cluster", "rediss+cluster")
_MEMORY = "memory"
_SQL = (
    "postgresql",
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "mariadb",
    "mariadb+pymysql",
    "mysql+pymysql",
    "sqlite",
    "django",
)
_KNOWN = (*_REDIS, "postgresql", "mariadb", "sqlite", "django", _MEMORY)


def open_store(url: str, *, key_prefix: str = "cr:", **options: Any) -> Store:
    """Return the store that ``url`` (``reliable_store_url``) names. Nothing connects before its first verb.

    ``options`` are ``timeout`` and, for Redis alone, ``wait_replicas``. ``memory://`` is a new, empty store at each
    call, seen by this process only; it has no use for a prefix or options. Raises `ConfigurationError` for any other
    scheme.
    """
    scheme = _scheme(url)
    if scheme == _MEMORY:
        from celery_reliable.stores.memory import MemoryStore  # noqa: PLC0415  # a worker on Redis never needs it

        return MemoryStore()
    if scheme in _REDIS or scheme in _SQL:
        refuse_unclear(url, setting="reliable_store_url")
    if scheme in _REDIS:
        from celery_reliable.stores.redis import RedisStore  # noqa: PLC0415  # the driver is imported where it is used

        return RedisStore(url, key_prefix=key_prefix, **options)
    if scheme in _SQL:
        from celery_reliable.stores.sql import open_sql_store  # noqa: PLC0415  # likewise

        options.pop("wait_replicas", None)
        return open_sql_store(url, key_prefix=key_prefix, **options)
    raise ConfigurationError(_refusal(url, scheme=scheme))


def lives_of(store: Store) -> SqlLives:
    """Return what shows by a lock of PostgreSQL that processes live. Raises `ConfigurationError` for another store."""
    from celery_reliable.stores.sql.lives import not_postgres  # noqa: PLC0415  # for projects that have set it

    lives: SqlLives | None = getattr(store, "lives", None)
    if lives is None:
        raise not_postgres(f"a {type(store).__name__}")
    lives.check()
    return lives


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _refusal(url: str, *, scheme: str) -> str:
    expected = f"reliable_store_url: expected a URL that begins with one of {_listed(_KNOWN)}"
    if not scheme:
        return f"{expected}, found a text without a scheme; write it as redis://HOST:PORT/DB"
    return f"{expected}, found {_masked(url)}; correct the scheme {scheme}://"


def _listed(schemes: tuple[str, ...]) -> str:
    return " ".join(f"{scheme}://" for scheme in schemes)


def _masked(url: str) -> str:
    """Return scheme and host only: passwords also stand in queries."""
    return mask_secrets(url).partition("?")[0]
