"""Keep the store in a database."""

from __future__ import annotations

from celery_reliable.stores.sql.store import SqlStore

__all__ = ["SqlStore", "open_sql_store"]


def open_sql_store(url: str, *, key_prefix: str = "cr:", timeout: float = 5.0) -> SqlStore:
    """Return the store that ``postgresql://``, ``mariadb://``, ``sqlite:///PATH`` or ``django://ALIAS`` names; nothing connects yet."""
    if url.startswith("django://"):
        from celery_reliable.stores.sql.django import DjangoLink  # noqa: PLC0415  # needs Django, and only this does

        return SqlStore(DjangoLink(url, timeout=timeout), key_prefix=key_prefix, timeout=timeout)
    from celery_reliable.stores.sql.alchemy import AlchemyLink  # noqa: PLC0415  # needs SQLAlchemy, and only this does

    return SqlStore(AlchemyLink(url, timeout=timeout), key_prefix=key_prefix, timeout=timeout)
