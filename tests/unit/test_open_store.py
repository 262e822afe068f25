"""Choosing the store by its URL."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores import open_store
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.redis import RedisStore
from celery_reliable.stores.sql import SqlStore


def test_memory_url_opens_an_empty_memory_store() -> None:
    """Each call is a store of its own."""
    one, two = open_store("memory://"), open_store("memory://")
    assert isinstance(one, MemoryStore)
    assert one is not two


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "rediss://127.0.0.1:1/0",
        "unix:///nowhere/redis.sock",
        "sentinel://127.0.0.1:1/main",
        "redis+cluster://127.0.0.1:1",
        "rediss+cluster://127.0.0.1:1",
        "REDIS://127.0.0.1:1/0",
    ],
)
def test_redis_urls_open_a_redis_store_without_connecting(url: str) -> None:
    """Nothing listens there: a store that connected at once would fail here."""
    assert isinstance(open_store(url, key_prefix="x:"), RedisStore)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://127.0.0.1:1/none",
        "postgresql+psycopg://127.0.0.1:1/none",
        "mariadb://127.0.0.1:1/none",
        "mysql+pymysql://127.0.0.1:1/none",
        "sqlite:////nowhere/store.db",
        "django://default",
    ],
)
def test_database_urls_open_a_sql_store_without_connecting(url: str) -> None:
    """Nothing listens there, and Django is not set up."""
    assert isinstance(open_store(url, key_prefix="x:", wait_replicas=0), SqlStore)


def test_unknown_scheme_names_setting_found_and_known_schemes() -> None:
    """Error text = expected, found, setting, remedy."""
    with pytest.raises(ConfigurationError) as caught:
        open_store("reddis://127.0.0.1/0")
    text = str(caught.value)
    assert "reliable_store_url" in text
    assert "reddis://127.0.0.1/0" in text
    assert (
        "redis:// rediss:// unix:// sentinel:// redis+cluster:// rediss+cluster:// postgresql:// mariadb:// sqlite:// django:// memory://"
        in text
    )


@pytest.mark.parametrize(
    "url", ["reddis://me:s3cret@host/0", "reddis://:s3cret@host/0?password=s3cret", "me:s3cret@host"]
)
def test_passwords_do_not_reach_the_error(url: str) -> None:
    """Errors end in logs."""
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_opening_a_memory_store_imports_no_driver() -> None:
    """Drivers are optional until a URL needs one."""
    code = "import sys; from celery_reliable.stores import open_store; open_store('memory://'); print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
