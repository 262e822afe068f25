"""A write that comes too late, or twice, is refused by the row it would change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from celery import Celery
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from celery_reliable import ReliableTask, Transient
from celery_reliable.contrib.sqlalchemy import fenced_update, insert_once, transition
from celery_reliable.errors import ConfigurationError, LeaseLost
from celery_reliable.testing import drain_all, in_memory, servers
from tests.integration.apps.jobs import QUICK, RESTORING, client
from tests.integration.apps.parcels.tables import Base, Parcel, Receipt, Stop
from tests.integration.apps.sink_worker import app_of
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
APP = "tests.integration.apps.sink_worker"
CALLERS = 8
DEADLINE = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A PostgreSQL of this module."""
    with servers.start_postgres() as server:
        yield server


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Each database in turn, with empty tables."""
    url = f"sqlite:///{tmp_path}/parcels.db"
    if request.param == "postgresql":
        url = url_of(request.getfixturevalue("server"))
    elif request.param == "mariadb":
        url = request.getfixturevalue("mariadb_server").url.replace("mariadb://", "mariadb+pymysql://", 1)
    engine = sqlalchemy.create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def url_of(server: servers.Server) -> str:
    """Return the URL with the driver that we install."""
    return server.url.replace("postgresql://", "postgresql+psycopg://", 1)


def parcels(engine: Engine, count: int) -> list[int]:
    """Return the ids of new parcels."""
    with Session(engine) as session, session.begin():
        made = [Parcel() for _ in range(count)]
        session.add_all(made)
        session.flush()
        return [one.id for one in made]


def rows(engine: Engine) -> list[tuple[Any, ...]]:
    """Return all parcels."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT status, carrier, fence FROM parcel ORDER BY id")
        return [tuple(row) for row in found]


def at_once(engine: Engine, call: Callable[[Session], bool]) -> list[bool]:
    """Return what callers with connections of their own are told at the same time."""
    barrier = threading.Barrier(CALLERS)

    def one(_: int) -> bool:
        with Session(engine) as session, session.begin():
            barrier.wait(timeout=20.0)
            return call(session)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(one, range(CALLERS)))


# --- fenced_update


def test_a_row_of_a_later_claim_is_not_overwritten(engine: Engine) -> None:
    """The late run is told, and its transaction leaves nothing."""
    first, second = parcels(engine, 2)
    with Session(engine) as session, session.begin():
        assert fenced_update(session, Parcel, Parcel.id == first, fence=20, state="later") == 1
    with pytest.raises(LeaseLost, match="parcel"), Session(engine) as session, session.begin():
        fenced_update(session, Parcel, Parcel.id.in_([first, second]), fence=10, state="late", carrier="late")

    assert rows(engine) == [("later", "", 20), ("pending", "", 0)]


def test_a_run_may_write_again_and_what_has_no_fence_yet(engine: Engine) -> None:
    """Equal is not higher, NULL is lower than all; by a table and a connection as by a class and a session."""
    (number,) = parcels(engine, 1)
    table: Any = Parcel.__table__
    with engine.begin() as connection:
        connection.execute(table.update().values(fence=None))
        for status in ("one", "two"):
            assert fenced_update(connection, table, table.c.id == number, fence=10, status=status) == 1
        assert fenced_update(connection, table, table.c.id == -1, fence=10, status="none") == 0
    assert rows(engine) == [("two", "", 10)]


def test_a_transaction_that_shows_the_past_is_no_way_around_a_fence(engine: Engine) -> None:
    """It read before the later run wrote, and would read the same again on MariaDB, whose transactions are REPEATABLE READ."""
    (number,) = parcels(engine, 1)
    with Session(engine) as late, Session(engine) as later:
        late.get(Parcel, number)
        late.expire_all()
        if engine.name == "sqlite":
            late.commit()  # its readers keep writers from committing
        assert fenced_update(later, Parcel, Parcel.id == number, fence=20, state="later") == 1
        later.commit()
        with pytest.raises(LeaseLost):
            fenced_update(late, Parcel, Parcel.id == number, fence=10, state="late")
    assert rows(engine) == [("later", "", 20)]


def test_objects_of_the_session_see_what_was_written(engine: Engine) -> None:
    """The session's copies are brought up to date."""
    (number,) = parcels(engine, 1)
    with Session(engine) as session, session.begin():
        parcel = session.get_one(Parcel, number)
        fenced_update(session, Parcel, Parcel.id == number, fence=10, state="sent")
        assert (parcel.state, parcel.fence) == ("sent", 10)


@pytest.mark.parametrize("fence", [None, "7", True, -1, 1.5])
def test_what_is_no_fence_is_refused(engine: Engine, fence: Any) -> None:
    """Before anything is written; as are a column that is not there, and rows that nobody named."""
    with Session(engine) as session:
        with pytest.raises(ConfigurationError, match=r"self\.fence"):
            fenced_update(session, Parcel, Parcel.id == 1, fence=fence, state="x")
        with pytest.raises(ConfigurationError, match="found 'epoch'"):
            fenced_update(session, Parcel, Parcel.id == 1, fence=1, fence_column="epoch", state="x")
        with pytest.raises(TypeError, match=r"Order\.id == 7"):
            fenced_update(session, Parcel, fence=1, state="x")


def test_a_higher_fence_of_nobody_is_tried_again(tmp_path: Path) -> None:
    """The store forgot fences, or its clock went back: the claim is still the last one, so the run is not replaced."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/parcels.db")
    Base.metadata.create_all(engine)
    (number,) = parcels(engine, 1)
    raised: list[type[Exception]] = []
    shop = Celery("shop", broker="memory://", set_as_current=False)
    shop.config_from_object("celery_reliable.presets")

    @shop.task(base=ReliableTask, bind=True, max_retries=0, shared=False)
    def deliver(self: Any) -> None:
        try:
            with Session(engine) as session, session.begin():
                fenced_update(session, Parcel, Parcel.id == number, fence=self.fence, state="sent")
        except Exception as exc:
            raised.append(type(exc))
            raise

    with Session(engine) as session, session.begin():
        fenced_update(session, Parcel, Parcel.id == number, fence=2**62, state="far ahead")
    with in_memory(shop):
        deliver.delay()
        drain_all()
    engine.dispose()
    assert raised == [Transient]


# --- transition


def test_one_of_many_moves_a_row(engine: Engine) -> None:
    """The others are told that they did not; further changes go with the move."""
    (number,) = parcels(engine, 1)

    def move(session: Session) -> bool:
        return transition(session, Parcel, number, field="state", from_="pending", to="sent", carrier="mail")

    assert sorted(at_once(engine, move)) == [False] * (CALLERS - 1) + [True]
    assert rows(engine) == [("sent", "mail", 0)]


def test_a_row_is_moved_from_any_of_the_named_states(engine: Engine) -> None:
    """NULL among them; not from another one; a key of two columns is a tuple."""
    (number,) = parcels(engine, 1)
    table: Any = Parcel.__table__
    with Session(engine) as session, session.begin():
        session.execute(table.update().values(status=None))
        assert not transition(session, table, number, from_=("pending", "held"), to="sent")
        assert transition(session, table, number, from_=("pending", None), to="sent")
        session.add(Stop(parcel=number, place=3))
        session.flush()
        assert not transition(session, Stop, (number, 4), from_="pending", to="passed")
        assert transition(session, Stop, (number, 3), from_="pending", to="passed")
        with pytest.raises(ConfigurationError, match="without 'sent'"):
            transition(session, table, number, from_=("pending", "sent"), to="sent")


# --- insert_once


def test_one_of_many_inserts_a_row(engine: Engine) -> None:
    """Whoever comes while the insert is not committed waits for it."""
    (number,) = parcels(engine, 1)

    def insert(session: Session) -> bool:
        return insert_once(session, Receipt, unique="parcel", parcel=number, number=1, note="")

    assert sorted(at_once(engine, insert)) == [False] * (CALLERS - 1) + [True]


def test_another_violation_is_an_error(engine: Engine) -> None:
    """What is not there yet was not inserted by anybody; and a column without an index decides nothing."""
    first, second = parcels(engine, 2)
    with Session(engine) as session, session.begin():
        assert insert_once(session, Receipt, unique="parcel", parcel=first, number=1, note="")
    with pytest.raises(IntegrityError), Session(engine) as session:
        insert_once(session, Receipt, unique="parcel", parcel=second, number=1, note="")
    refusal: Any = (
        (ConfigurationError, "a unique index over") if engine.name == "mariadb" else (DBAPIError, "ON CONFLICT")
    )
    with pytest.raises(refusal[0], match=refusal[1]), Session(engine) as session:
        insert_once(session, Receipt, unique="note", parcel=second, number=2, note="x")
    with Session(engine) as session:
        assert not insert_once(session, Receipt, unique="parcel", parcel=first, number=2, note="")
        assert insert_once(session, Receipt, unique="parcel", parcel=second, number=2, note=""), (
            "the transaction goes on"
        )
        session.commit()
    with pytest.raises(ConfigurationError, match="found none for parcel"), Session(engine) as session:
        insert_once(session, Receipt, unique="parcel", parcel=None, number=2, note="x")


# --- Django


@pytest.fixture
def project(server: servers.Server, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the Django project, with a SQLite of its own."""
    facts = {"CR_TEST_FILE": str(tmp_path / "django.db"), "CR_TEST_PORT": str(server.port)}
    facts |= {"CR_TEST_EFFECTS": url_of(server), "PYTHONPATH": str(ROOT)}
    return {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.parcels_settings", **facts}


DJANGO = """
import sys
import django, pytest
django.setup()
from django.core.management import call_command
call_command("migrate", database=sys.argv[1], run_syncdb=True, verbosity=0)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/integration/apps/django_sinks.py"]))
"""


@pytest.mark.parametrize("alias", ["postgres", "mariadb", "default"])
def test_the_same_through_django(request: pytest.FixtureRequest, project: dict[str, str], alias: str) -> None:
    """All of `django_sinks`, on each database."""
    environment = {**os.environ, **project, "CR_TEST_ALIAS": alias}
    if alias == "mariadb":
        environment["CR_TEST_PORT"] = str(sqlalchemy.make_url(request.getfixturevalue("mariadb_server").url).port)
    command = [sys.executable, "-c", DJANGO, alias]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# --- the paused holder


@pytest.fixture
def stage(module_redis: servers.RedisServer, tmp_path: Path) -> Stage:
    """Broker, backend and store in Redis; a broker that gives the messages of a silent worker away."""
    module_redis.flush()
    return Stage.on(module_redis.url, directory=tmp_path, conf=RESTORING)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage."""
    with client(stage, make=app_of) as app:
        yield app


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_paused_holder_wakes_up_and_writes_nothing(
    app: Celery, engine: Engine, project: dict[str, str], workers: Workers, label: str
) -> None:
    """Frozen before its write until its lease was over and another run had written: the thawed one is refused."""
    stage: Stage = app.stage
    numbers = parcels(engine, 2)
    names = {"deliver": f"{label}:table", "deliver_by_model": f"{label}:model"}
    environment = {**stage.environment(), **project}
    for name in names.values():
        stage.plan("paused", name, "block")
    frozen = workers.start(APP, env=environment, arguments=QUICK, concurrency=2)
    results = [
        app.tasks[task].apply_async((name, number), task_id=name)
        for (task, name), number in zip(names.items(), numbers, strict=True)
    ]
    for name in names.values():
        stage.wait_met("paused", name)
    frozen.freeze()
    workers.start(APP, env=environment, arguments=QUICK, concurrency=2)
    assert [result.get(timeout=DEADLINE) for result in results] == ["run 2", "run 2"]
    frozen.thaw()
    for name in names.values():
        stage.release("paused", name)

    fences = [[event["fence"] for event in stage.events("claimed", name)] for name in names.values()]
    for (first, _), name in zip(fences, names.values(), strict=True):
        assert [event["fence"] for event in stage.wait_event("stale", name)] == [first]
    assert rows(engine) == [("run 2", "", second) for _, second in fences]
