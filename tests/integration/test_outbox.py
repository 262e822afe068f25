"""What is submitted in a transaction is published after its commit, at the latest by a relay, and not after a rollback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
import sqlalchemy
from celery import chain, group
from click.testing import CliRunner
from sqlalchemy import event
from sqlalchemy.orm import Session

from celery_reliable import ReliableTask
from celery_reliable.cli.relay import relay as relay_command
from celery_reliable.contrib.sqlalchemy import outbox
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.errors import ConfigurationError, DuplicateTask, StoreError
from celery_reliable.keys import HEADER
from celery_reliable.relay import Relay
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.sql import open_sql_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery import Celery
    from sqlalchemy.engine import Engine

    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
APP = "tests.integration.apps.worker"
DEADLINE = 30.0


def engine_of(url: str) -> Engine:
    """Return an engine with the driver that we install."""
    with_driver = url.replace("postgresql://", "postgresql+psycopg://", 1).replace("mariadb://", "mysql+pymysql://", 1)
    return sqlalchemy.create_engine(with_driver)


def with_tables(url: str) -> str:
    """Make the store's tables; return the URL."""
    with contextlib.closing(open_sql_store(url)) as store:
        store.create_tables()
    return url


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A PostgreSQL of this module, with the tables."""
    with servers.start_postgres() as server:
        with_tables(server.url)
        yield server


@pytest.fixture(scope="module")
def broker() -> Iterator[servers.RedisServer]:
    """A broker that can be stopped."""
    with servers.start_redis() as server:
        yield server


@pytest.fixture(scope="module")
def stage(
    module_redis: servers.RedisServer,
    broker: servers.RedisServer,
    server: servers.Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """A broker of its own, the backend in another Redis, the store in PostgreSQL."""
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"))
    return replace(stage, broker=broker.url, store=server.url)


def quietly(stage: Stage, **changes: Any) -> Stage:
    """Return the stage with a queue and a prefix that no worker looks at."""
    name = uuid.uuid4().hex[:16]
    conf = {"task_default_queue": f"quiet-{name}", "reliable_key_prefix": f"{name}:", "reliable_relay_rate": 0}
    return replace(stage, conf=conf, **changes)


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def place(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> Iterator[tuple[Celery, Engine]]:
    """An app without workers, and the engine of its callers, on each database in turn."""
    url = stage.store or ""
    if request.param == "sqlite":
        url = with_tables(f"sqlite:///{tmp_path}/shop.db")
    elif request.param == "mariadb":
        url = with_tables(request.getfixturevalue("mariadb_server").url)
    quiet, engine = quietly(stage, store=url), engine_of(url)
    with client(quiet) as app:
        yield app, engine
    engine.dispose()


def headers(app: Celery) -> list[dict[str, Any]]:
    """Return the headers of the messages in the app's queue, the oldest first."""
    with redis.Redis.from_url(app.conf.broker_url) as broker:
        texts = broker.lrange(app.conf.task_default_queue, 0, -1)
    return [json.loads(text)["headers"] for text in reversed(texts)]


def waiting(app: Celery) -> list[str]:
    """Return their task ids."""
    return [one["id"] for one in headers(app)]


PROMISED = "SELECT task_id FROM celery_reliable_ledger WHERE prefix = :prefix AND made_at > 0 ORDER BY made_at"


def promised(engine: Engine, app: Celery) -> list[str]:
    """Return the ids of the submissions that wait for their publish."""
    with engine.connect() as connection:
        values = {"prefix": runtime_of(app).settings.key_prefix}
        return [task_id for (task_id,) in connection.execute(sqlalchemy.text(PROMISED), values)]


@contextlib.contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect what is said on the caller's connections."""
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


# --- commit and rollback


def test_a_submission_is_one_insert_and_is_published_by_the_commit(place: tuple[Celery, Engine], label: str) -> None:
    """Declared key or not, later or now; not before the commit, and without a second statement."""
    app, engine = place
    with Session(engine) as session, session.begin(), outbox(session):
        app.tasks["add"].apply_async((1, "first of this engine"), countdown=3600)
    before = len(waiting(app))
    with counted(engine) as statements, Session(engine) as session, session.begin():
        with outbox(session):
            app.tasks["add"].apply_async((1, label), task_id=label)
            app.tasks["order"].apply_async((label, label), task_id=f"{label}:order")
        assert len(waiting(app)) == before
        assert [text.split()[0] for text in statements] == ["INSERT", "INSERT"]

    assert waiting(app)[before:] == [label, f"{label}:order"]
    assert promised(engine, app) == []
    assert dict(runtime_of(app).store.ledger()).keys() >= {label, f"{label}:order"}  # until the job's end


def test_a_rollback_drops_a_submission(place: tuple[Celery, Engine], label: str) -> None:
    """Also one to a savepoint, whose session goes on and commits; what was submitted outside of it is published."""
    app, engine = place
    with Session(engine) as session, outbox(session):
        app.tasks["add"].apply_async((1, label), task_id=f"{label}:gone")
        session.rollback()
    with Session(engine) as session, session.begin(), outbox(session):
        app.tasks["add"].apply_async((1, label), task_id=f"{label}:kept")
        with contextlib.suppress(LookupError), session.begin_nested():
            app.tasks["add"].apply_async((1, label), task_id=f"{label}:back")
            raise LookupError
        with session.begin_nested():
            app.tasks["add"].apply_async((1, label), task_id=f"{label}:nested")
        assert waiting(app) == []

    assert waiting(app) == [f"{label}:kept", f"{label}:nested"]
    assert promised(engine, app) == []


def test_a_call_that_is_queued_behind_another_is_refused_in_a_transaction(
    place: tuple[Celery, Engine], label: str
) -> None:
    """Which round it joins can only be decided by who sees the others."""
    app, engine = place
    app.task(name="queued", base=ReliableTask, shared=False, idempotency_key="{x}", on_conflict="queue_one")(_queued)
    refused = pytest.raises(ConfigurationError, match="expected a call outside of a transaction")
    with Session(engine) as session, session.begin(), outbox(session), refused:
        app.tasks["queued"].delay(label)
    assert waiting(app) == []


def _queued(x: str) -> None:
    """Do nothing."""


def test_outside_of_the_block_nothing_changes(place: tuple[Celery, Engine], label: str) -> None:
    """A submission belongs to a transaction only where that was said."""
    app, engine = place
    with Session(engine) as session:
        session.execute(sqlalchemy.text("SELECT 1"))
        app.tasks["add"].apply_async((1, label), task_id=label)
        assert waiting(app) == [label]
        session.rollback()


# --- relays


def test_of_one_key_the_older_is_published_first(place: tuple[Celery, Engine], label: str) -> None:
    """The younger ones are not even taken before, by the process that committed them neither. Nor does the ledger's sweep."""
    app, engine = place
    ids = [f"{label}:{number}" for number in range(3)]
    with engine.begin() as connection, outbox(connection):
        for task_id in ids:
            app.tasks["order"].apply_async((label, label), task_id=task_id)
            connection.exec_driver_sql("UPDATE celery_reliable_ledger SET resent_at = 0, made_at = made_at - 1000000")
        connection.exec_driver_sql("UPDATE celery_reliable_ledger SET resent_at = made_at * -1")  # the youngest first
    found = runtime_of(app).store.outbox
    assert found is not None
    for number, task_id in enumerate(ids):
        assert dict(runtime_of(app).store.ledger()).keys() == {*ids[:number]}
        assert found.take(limit=10, hold=0.0, task_ids=ids[number + 1 :]) == [] or number == 2
        (promise,) = found.take(limit=10, hold=0.0)
        assert promise.task_id == task_id
        found.published(promise, envelope=promise.envelope)


def test_relays_share_what_waits(place: tuple[Celery, Engine], label: str) -> None:
    """Two at once publish each message once, no more at a time than they are told.

    Stamped now: the sweep compares it with others of its queue. A connection tells of no commit.
    """
    app, engine = place
    with engine.begin() as connection, outbox(connection):
        for number in range(40):
            app.tasks["add"].apply_async((number, label), task_id=f"{label}:{number}")
    assert len(promised(engine, app)) == 40
    committed = runtime_of(app).store.now()
    prefix, url = runtime_of(app).settings.key_prefix, str(app.conf.reliable_store_url)
    relays = [Relay(app, open_sql_store(url, key_prefix=prefix).outbox) for _ in range(2)]

    def relay_all(relay: Relay) -> list[int]:
        counts = []
        while promised(engine, app):
            counts.append(relay.look(limit=5))
        return counts

    with ThreadPoolExecutor(2) as pool:
        counts = [count for found in pool.map(relay_all, relays) for count in found]
    assert sum(counts) == 40
    assert max(counts) <= 5
    assert sorted(waiting(app)) == sorted(f"{label}:{number}" for number in range(40))
    assert min(one[HEADER]["s"] for one in headers(app)) >= committed


def test_what_cannot_be_published_becomes_a_letter(place: tuple[Celery, Engine], label: str) -> None:
    """Whether its error is its own or looks like the broker's, and without keeping anything else waiting."""
    app, engine = place
    add, relay = app.tasks["add"], relay_of(app)
    with redis.Redis.from_url(app.conf.broker_url) as broker:
        broker.set(label, "no list, so no queue")
    with engine.begin() as connection, outbox(connection):
        add.apply_async((1, label), task_id=f"{label}:A", queue=label)
        add.apply_async((1, label), task_id=f"{label}:B", queue=label)
        add.apply_async((1, label), task_id=f"{label}:C", compression="no such")
    for number in range(10):
        with engine.begin() as connection, outbox(connection):
            add.apply_async((1, label), task_id=f"{label}:{number}")
            connection.exec_driver_sql("UPDATE celery_reliable_ledger SET resent_at = resent_at - 20000000")
        relay.look(limit=10)

    assert waiting(app) == [f"{label}:{number}" for number in range(10)]
    assert promised(engine, app) == []
    letters = [DeadLetter.from_bytes(body) for _, _, body in runtime_of(app).store.letters().letters]
    assert sorted(letter.task_id for letter in letters) == [f"{label}:{name}" for name in "ABC"]
    assert {letter.reason for letter in letters} == {"lost"}
    assert all("could not be published" in letter.error_message for letter in letters)


def relay_of(app: Celery) -> Relay:
    """Return a relay of this process."""
    found = runtime_of(app).store.outbox
    assert found is not None
    return Relay(app, found)


# --- a worker


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """Two threads."""
    return module_workers.start(APP, pool="threads", concurrency=2, env=stage.environment(), arguments=QUICK)


@pytest.fixture
def engine(stage: Stage) -> Iterator[Engine]:
    """The engine of the module's callers."""
    engine = engine_of(stage.store or "")
    yield engine
    engine.dispose()


@pytest.mark.usefixtures("worker")
def test_commits_go_on_while_the_broker_is_away(
    app: Celery, stage: Stage, broker: servers.RedisServer, engine: Engine, label: str
) -> None:
    """No submission raises, chains and groups neither; everything arrives once afterwards."""
    add = app.tasks["add"]
    broker.stop()
    for number in range(10):
        with Session(engine) as session, session.begin(), outbox(session):
            add.delay(number, f"{label}:{number}")
    with Session(engine) as session, session.begin(), outbox(session):
        chained = chain(add.s(1, f"{label}:chain"), add.s(f"{label}:chain")).apply_async()
        grouped = group(add.s(number, f"{label}:group") for number in range(3)).apply_async()
    assert len(promised(engine, app)) == 14
    broker.start()

    assert chained.get(timeout=DEADLINE) == 3
    assert sorted(grouped.get(timeout=DEADLINE)) == [1, 2, 3]
    counts = {f"{label}:{number}": 1 for number in range(10)} | {f"{label}:chain": 2, f"{label}:group": 3}
    for name, count in counts.items():
        stage.wait_entries(name, count, timeout=DEADLINE)
    stage.wait_no_message()
    assert {name: len(stage.entries(name)) for name in counts} == counts
    wait_until(lambda: not dict(runtime_of(app).store.ledger()), DEADLINE, "an empty ledger")


KILLED = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.orm import Session
from celery_reliable.cli.relay import relay as relay_command
from celery_reliable.contrib.sqlalchemy import outbox
from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage
from tests.integration.test_outbox import engine_of

stage = Stage.from_environment()
with Session(engine_of(stage.store)) as session, session.begin():
    event.listen(session, "after_commit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with outbox(session):
        make_app(stage).tasks["add"].apply_async((1, sys.argv[1]), task_id=sys.argv[1])
"""


def killed(code: str, label: str, environment: dict[str, str]) -> None:
    """Run a program that kills itself."""
    command = [sys.executable, "-c", code, label]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.usefixtures("worker")
def test_a_process_that_dies_after_its_commit_is_followed_by_a_relay(app: Celery, stage: Stage, label: str) -> None:
    """The worker publishes what the dead one had promised."""
    killed(KILLED, label, stage.environment())

    assert app.AsyncResult(label).get(timeout=DEADLINE) == 2
    assert len(stage.entries(label)) == 1
    assert len(stage.events("relayed", label)) == 1


@pytest.mark.usefixtures("worker")
def test_a_key_that_is_submitted_twice_runs_once_and_answers_both(
    app: Celery, stage: Stage, engine: Engine, label: str
) -> None:
    """Neither transaction sees the other; both handles get the outcome. ``raise`` is told of what is committed."""
    order, once = app.tasks["order"], app.tasks["order_refused"]
    with Session(engine) as one, one.begin(), Session(engine) as two, two.begin():
        with outbox(one):
            first = order.delay(label, label)
        with outbox(two):
            second = order.delay(label, label)
    assert first.id != second.id
    assert {first.get(timeout=DEADLINE), second.get(timeout=DEADLINE)} == {f"{label}:1"}
    assert len(stage.entries(label)) == 1
    assert once.delay(f"{label}:once", label).get(timeout=DEADLINE)
    with Session(engine) as session, session.begin(), outbox(session), pytest.raises(DuplicateTask, match="done"):
        once.delay(f"{label}:once", label)


def test_the_command_relays_until_it_is_told_to_end(stage: Stage, engine: Engine, tmp_path: Path, label: str) -> None:
    """A clean end is 0. With ``--once`` it ends by itself."""
    quiet, log = quietly(stage), tmp_path / "log"
    command = [sys.executable, "-m", "celery", "-A", APP, "reliable", "relay", "--rate", "100/s"]
    environment = {**os.environ, **quiet.environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with client(quiet) as app, log.open("wb") as output:
        for name in ("one", "two"):
            with engine.begin() as connection, outbox(connection):
                app.tasks["add"].apply_async((1, label), task_id=name)
        relay = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output)
        try:
            wait_until(lambda: waiting(app) == ["one", "two"], DEADLINE, "both messages")
            relay.send_signal(signal.SIGTERM)
            assert relay.wait(10.0) == 0
        finally:
            relay.kill()
            relay.wait()
        assert log.read_text().splitlines() == ["Relaying; SIGTERM or Ctrl-C ends it.", "Published 2."]
        once = CliRunner().invoke(relay_command, ["--once"], obj=SimpleNamespace(app=app), catch_exceptions=False)
        assert once.output == "Published 0.\n"


# --- Django

DJANGO = """
import sys
import django, pytest
django.setup()
from django.core.management import call_command
call_command("migrate", "celery_reliable", database=sys.argv[1], verbosity=0)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/integration/apps/django_outbox.py"]))
"""


@pytest.mark.parametrize("alias", ["postgres", "mariadb", "default"])
def test_django_needs_nothing_but_atomic(
    request: pytest.FixtureRequest, stage: Stage, server: servers.Server, tmp_path: Path, alias: str
) -> None:
    """All of `django_outbox`, on each database."""
    place = server if alias != "mariadb" else request.getfixturevalue("mariadb_server")
    port = sqlalchemy.make_url(place.url).port
    facts = {"CR_TEST_FILE": str(tmp_path / "django.db"), "CR_TEST_PORT": str(port), "CR_TEST_ALIAS": alias}
    facts |= {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.django_settings", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **facts, **quietly(stage, store=f"django://{alias}").environment()}
    command = [sys.executable, "-c", DJANGO, alias]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# --- RabbitMQ


def test_on_rabbitmq_an_entry_goes_with_the_confirm(
    stage: Stage, rabbitmq_server: servers.Server, engine: Engine, label: str
) -> None:
    """There is no ledger behind it: the message is the broker's."""
    quiet = quietly(stage, broker=rabbitmq_server.url)
    with client(quiet) as app:
        with Session(engine) as session, session.begin(), outbox(session):
            app.tasks["order"].apply_async((label, label), task_id=label)
        with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
            message = queue.get(timeout=DEADLINE)
            message.ack()
        assert message.headers["id"] == label
        assert label not in promised(engine, app)
        assert label not in dict(runtime_of(app).store.ledger())


# --- what is refused


def test_a_session_of_another_database_is_refused(place: tuple[Celery, Engine], stage: Stage, tmp_path: Path) -> None:
    """Whether or not it has the tables: nobody would look there. The reason names both."""
    app, _ = place
    other = engine_of(with_tables(f"sqlite:///{tmp_path}/other.db"))
    with Session(other) as session, outbox(session), pytest.raises(ConfigurationError, match=r"other\.db|sqlite"):
        app.tasks["add"].delay(1, "x")
    other.dispose()
    with client(replace(stage, store=None)) as on_redis, Session(other) as session, outbox(session):
        add: Callable[..., Any] = on_redis.tasks["add"].delay
        with pytest.raises(ConfigurationError, match="RedisStore"):
            add(1, "x")


def test_what_the_database_refuses_is_an_error(engine: Engine, app: Celery, stage: Stage, label: str) -> None:
    """Nothing was submitted, and the text says what to do."""
    add: Callable[..., Any] = app.tasks["add"].delay
    with Session(engine) as session, outbox(session):
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):
            session.execute(sqlalchemy.text("SELECT * FROM nowhere"))
        with pytest.raises(StoreError, match="has failed before"):
            add(1, label)
        session.rollback()
        session.execute(sqlalchemy.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(StoreError, match="read-only"):
            add(1, label)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE celery_reliable_ledger RENAME TO hidden")
    try:
        with (
            Session(engine) as session,
            outbox(session),
            pytest.raises(StoreError, match="celery -A PROJECT reliable schema"),
        ):
            add(1, label)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE hidden RENAME TO celery_reliable_ledger")
    assert stage.entries(label) == []
