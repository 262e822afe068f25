"""Give tests real workers, beats and servers as fixtures. Loaded by pytest where celery_reliable is installed.

Nothing but pytest is imported before a test asks for a fixture: whoever does not use them pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.bench import Bench
    from celery_reliable.testing.servers import RedisServer, Server
    from celery_reliable.testing.site import Site, StartBeat, StartWorker


# --- servers


@pytest.fixture
def reliable_redis() -> Iterator[RedisServer]:
    """Start a private Redis (or Valkey) for this test alone, to be killed, frozen and restarted."""
    from celery_reliable.testing.servers import start_redis  # noqa: PLC0415  # see the module's docstring

    with start_redis() as server:
        yield server


@pytest.fixture(scope="session")
def reliable_rabbitmq() -> Iterator[Server]:
    """Start a private RabbitMQ for all tests of this process: it takes seconds to start."""
    from celery_reliable.testing.servers import start_rabbitmq  # noqa: PLC0415

    with start_rabbitmq() as server:
        yield server


@pytest.fixture(scope="session")
def reliable_postgres() -> Iterator[Server]:
    """Start a private PostgreSQL for all tests of this process."""
    from celery_reliable.testing.servers import start_postgres  # noqa: PLC0415

    with start_postgres() as server:
        yield server


# --- which of them the app under test has: override what differs


@pytest.fixture
def reliable_broker_url(reliable_redis: RedisServer) -> str:
    """Name the broker of the workers and beats of a test: the first database of `reliable_redis`."""
    return _database(reliable_redis, 0)


@pytest.fixture
def reliable_backend_url(reliable_redis: RedisServer) -> str:
    """Name the result backend: the second database of `reliable_redis`."""
    return _database(reliable_redis, 1)


@pytest.fixture
def reliable_store_url(reliable_redis: RedisServer) -> str:
    """Name the store: the third database of `reliable_redis`."""
    return _database(reliable_redis, 2)


def _database(server: RedisServer, number: int) -> str:
    return f"{server.url.removesuffix('/0')}/{number}"


# --- processes


@pytest.fixture
def _reliable_site(
    reliable_broker_url: str, reliable_backend_url: str, reliable_store_url: str, tmp_path: Path
) -> Iterator[Site]:
    from celery_reliable.testing.site import Addresses, Site  # noqa: PLC0415

    addresses = Addresses(broker=reliable_broker_url, backend=reliable_backend_url, store=reliable_store_url)
    with Site(addresses, directory=tmp_path) as site:
        yield site


@pytest.fixture
def reliable_worker(_reliable_site: Site) -> StartWorker:
    """Start real workers, of an app that is named as after ``celery -A``.

    ``worker = reliable_worker("shop", pool="threads")``. From the first on, the app in the test submits to the same servers. All are killed when the test ends, their logs
    shown if it failed.
    """
    return _reliable_site.start_worker


@pytest.fixture
def reliable_beat(_reliable_site: Site) -> StartBeat:
    """Start real beats, as `reliable_worker` starts workers."""
    return _reliable_site.start_beat


# --- no process at all


@pytest.fixture
def reliable_bench() -> Iterator[Callable[[Celery], Bench]]:
    """Run an app in memory until the test ends; see `in_memory`. The bench's clock stands until it is moved."""
    from contextlib import ExitStack  # noqa: PLC0415

    from celery_reliable.testing.bench import in_memory  # noqa: PLC0415

    with ExitStack() as exits:

        def bench(app: Celery, **options: Any) -> Bench:
            return exits.enter_context(in_memory(app, **options))

        yield bench
