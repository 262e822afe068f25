"""The SQL store over Django's connection. Each test is a process of its own: Django's settings are one for a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy

if TYPE_CHECKING:
    from celery_reliable.testing import servers

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SETTINGS = "tests.integration.apps.django_settings"

CONTRACT = """
import contextlib, sys, time, uuid
import django, pytest
django.setup()
from django.core.management import call_command
call_command("migrate", "celery_reliable", database=sys.argv[1], verbosity=0)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-x", "tests/integration/apps/django_contract.py", *sys.argv[2:]]))
"""

EFFECTS = """
import sys
import django
django.setup()
from django.core.management import call_command
from django.db import connections, transaction
from celery_reliable.stores import open_store
from celery_reliable.stores.base import Busy, Job, Run

alias = sys.argv[1]
call_command("migrate", "celery_reliable", database=alias, verbosity=0)
store, job = open_store(f"django://{alias}"), Job("order:1", "declared")
store.submit(job, task_id="A", ttl=60)
given = {"task_id": "A", "life": 1, "ttl": 60, "max_deliveries": 5, "record_ttl": 60}
try:
    with transaction.atomic(using=alias):
        if alias != "default":
            connections[alias].cursor().execute("SELECT count(*) FROM celery_reliable_record")
        assert isinstance(store.claim(job, token="one", **given), Run)
        raise ValueError("the task failed")
except ValueError:
    pass
assert isinstance(store.claim(job, token="two", **given), Busy), "the claim was undone with the task's transaction"
try:
    open_store("django://nowhere").now()
except Exception as exc:
    assert "reliable_store_url" in str(exc) and "nowhere" in str(exc), exc
else:
    raise AssertionError("an alias that is not there")
store.close()
call_command("migrate", "celery_reliable", "zero", database=alias, verbosity=0)
try:
    store.claim(job, token="two", **given)
except Exception as exc:
    assert "manage.py migrate celery_reliable" in str(exc), exc
else:
    raise AssertionError("tables that are not there")
"""

CONNECTIONS = """
import os, sys, time
import django
django.setup()
from django.core import signals
from django.core.management import call_command
from django.db import close_old_connections, connections
from celery_reliable.stores import open_store
from celery_reliable.stores.notes import Write

alias = sys.argv[1]
call_command("migrate", "celery_reliable", database=alias, verbosity=0)
store = open_store(f"django://{alias}")

if alias == "mariadb":
    ((level, zone),) = store._step(lambda session: session.rows("SELECT @@tx_isolation, @@time_zone", {}))
    assert (level, zone) == ("READ-COMMITTED", "+00:00"), "whatever the alias says"

def note(name):
    [version] = store.notes.write("test", [Write(name=name, value=b"1", ttl=60)])
    assert version and name in store.notes.read("test", [name])

if alias == "postgres":
    other = open_store(f"django://{alias}")
    sign = other.lives.sign()
    assert sign == other.lives.sign() and not store.lives.is_gone(sign)
    other.close()
    deadline = time.monotonic() + 30
    while not store.lives.is_gone(sign):
        assert time.monotonic() < deadline
for age in (0, 600, None):
    connections.settings[alias]["CONN_MAX_AGE"] = age
    note("before")
    close_old_connections()
kept = list(store._link._idle)
signals.request_finished.send(None)
connections.close_all()
note("after a request")
assert list(store._link._idle) == kept, "the store's connection belongs to no request"
for number in range(2):
    child = os.fork()
    if child == 0:
        try:
            note(f"child {number}")
            ours = store._link._idle
            os._exit(1 if any(one is other for one in ours for other in kept) else 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
note("after the children")
assert list(store._link._idle) == kept, "a child's end closed its parent's session"
if alias != "default":
    with connections[alias].cursor() as cursor:
        if alias == "postgres":
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        else:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> connection_id()")
            for (session,) in cursor.fetchall():
                cursor.execute(f"KILL {session}")
    note("after its session was ended")
"""


INBOX = """
import contextlib, sys
from functools import partial
import django
django.setup()
from django.core.management import call_command
from django.db import connections
from celery_reliable.django.inbox import transaction
from celery_reliable.errors import AlreadyCommitted, ConfigurationError
from celery_reliable.inbox import Claim, once_committed, tidy
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore

alias = sys.argv[1]
call_command("migrate", "celery_reliable", database=alias, verbosity=0)

def said(statement, *values):
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

def pay(label, *, ttl=60.0, result=None):
    claim = Claim(Job(label, "own"), 1, "inbox:", ttl, MemoryStore())
    with once_committed(partial(transaction, alias), claim) as done:
        said("INSERT INTO payment VALUES (%s)", label)
        done.result = result

def payments(label):
    [(count,)] = said("SELECT count(*) FROM payment WHERE label = %s", label)
    return count

said("DROP TABLE IF EXISTS payment")
said("CREATE TABLE payment (label varchar(80))")
pay("once", result={"paid": 7})
try:
    pay("once")
except AlreadyCommitted as exc:
    assert exc.result == {"paid": 7} and payments("once") == 1
else:
    raise AssertionError("it was paid twice")
with contextlib.suppress(ConfigurationError):
    pay("rolled back", result=object())
assert payments("rolled back") == 0
pay("rolled back")
assert payments("rolled back") == 1
for _ in range(2):
    pay("over", ttl=0.0)
assert payments("over") == 2
with transaction(alias) as database:
    assert tidy(database, prefix="inbox:") == 1
call_command("migrate", "celery_reliable", "zero", database=alias, verbosity=0)
try:
    pay("nowhere")
except ConfigurationError as exc:
    assert f"manage.py migrate celery_reliable --database={alias}" in str(exc), exc
else:
    raise AssertionError("a table that is not there")
said("DROP TABLE payment")
"""


def python(code: str, *words: str, tmp_path: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Run a program of the Django project."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, "PYTHONPATH": str(ROOT)}
    environment |= {"CR_TEST_FILE": str(tmp_path / "django.db"), "CR_TEST_PORT": str(port), "CR_TEST_ALIAS": words[0]}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture
def port(request: pytest.FixtureRequest, alias: str) -> int:
    """Where the server of the alias listens."""
    if alias == "default":
        return 1
    server: servers.Server | servers.ExternalServer = request.getfixturevalue(f"{alias}_server")
    return sqlalchemy.make_url(server.url).port or 1


PARTS = [("postgres", "Claiming"), ("mariadb", "Claiming or Notes"), ("default", "KeepingNotes")]


@pytest.mark.parametrize(("alias", "part"), PARTS)
def test_parts_of_the_contract_hold_over_django(tmp_path: Path, port: int, alias: str, part: str) -> None:
    """The statements are those of the other link; what differs is how they are sent and how rows come back."""
    done = python(CONTRACT, alias, "-k", part, tmp_path=tmp_path, port=port)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("alias", ["postgres", "mariadb", "default"])
def test_a_claim_does_not_belong_to_the_transaction_of_the_task(tmp_path: Path, port: int, alias: str) -> None:
    """It stays when that is rolled back; a wrong alias and missing tables are said in words."""
    done = python(EFFECTS, alias, tmp_path=tmp_path, port=port)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("alias", ["postgres", "mariadb", "default"])
def test_the_store_s_connections_outlive_requests_and_forks(tmp_path: Path, port: int, alias: str) -> None:
    """Neither the end of a request nor a pool child touches them; one that the server ended is replaced."""
    done = python(CONNECTIONS, alias, tmp_path=tmp_path, port=port)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("alias", ["postgres", "mariadb"])
def test_a_marker_is_committed_with_its_effect(tmp_path: Path, port: int, alias: str) -> None:
    """On a server; on SQLite, a whole worker shows it. Once, with its result; after a rollback, or its time, again."""
    done = python(INBOX, alias, tmp_path=tmp_path, port=port)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
