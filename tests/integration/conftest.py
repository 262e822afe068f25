"""Real workers for the integration tests."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from celery_reliable.stores.sql import open_sql_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.integration.beats import Beats
from tests.integration.drains import PATIENT, TIMEOUT, Finishers, Scene, scene_on, stage_of_drain
from tests.integration.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

collect_ignore = ["docker_suite"]  # run by `test_pytest_celery`, in a pytest of its own


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Start real workers with ``workers.start("module", ...)``; all are killed at the end, their logs shown on failure."""
    fleet = Workers(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[Beats]:
    """Start beats; all are killed at the end."""
    fleet = Beats(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


# --- one Redis, one app and the workers of a whole module


@pytest.fixture(scope="module")
def module_redis() -> Iterator[servers.RedisServer]:
    """A Redis for the tests of one module."""
    with servers.start_redis() as server:
        yield server


@pytest.fixture(scope="module")
def module_postgres() -> Iterator[servers.Server]:
    """A PostgreSQL with the store's tables for the tests of one module, which may break it."""
    with servers.start_postgres() as server:
        with contextlib.closing(open_sql_store(server.url)) as store:
            store.create_tables()
        yield server


@pytest.fixture(scope="module")
def module_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Start workers that serve all tests of a module."""
    fleet = Workers(tmp_path_factory.mktemp("workers"))
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(autouse=True)
def _show_module_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print what the module's workers logged: pytest shows it if the test failed."""
    yield
    if "module_workers" in request.fixturenames:
        for worker in request.getfixturevalue("module_workers")._started:
            sys.stdout.write(worker.last_words())


@pytest.fixture(scope="module")
def stage(module_redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Broker, backend and store in three databases of the module's Redis."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the module's stage, to submit with."""
    with client(stage) as app:
        yield app


@pytest.fixture
def label() -> str:
    """A name that no other test uses, for ledger, keys and task ids."""
    return uuid.uuid4().hex


# --- drains


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, module_redis: servers.RedisServer) -> str:
    """The URL of each broker in turn."""
    if request.param == "redis":
        return f"{module_redis.url.removesuffix('/0')}/0"
    url: str = request.getfixturevalue("rabbitmq_server").url
    return url


@pytest.fixture(scope="module")
def drain_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ledger and gates of a module's drains."""
    return tmp_path_factory.mktemp("drains")


@pytest.fixture(scope="module")
def finishers(module_workers: Workers) -> Finishers:
    """Workers that go on where drained ones left off."""
    return Finishers(module_workers)


Drains = Callable[[float], "AbstractContextManager[Scene]"]


@pytest.fixture
def drains(
    module_redis: servers.RedisServer, drain_directory: Path, workers: Workers, finishers: Finishers, broker: str
) -> Drains:
    """Make the scene of a test, with the drain timeout of its workers."""

    def scene(timeout: float) -> AbstractContextManager[Scene]:
        stage = stage_of_drain(module_redis, drain_directory, broker=broker, timeout=timeout)
        return scene_on(stage, workers, finishers)

    return scene


@pytest.fixture
def patient(drains: Drains) -> Iterator[Scene]:
    """Workers that let tasks run on for long."""
    with drains(PATIENT) as scene:
        yield scene


@pytest.fixture
def hasty(drains: Drains) -> Iterator[Scene]:
    """Workers that interrupt tasks after half a second."""
    with drains(TIMEOUT) as scene:
        yield scene
