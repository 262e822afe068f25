"""A Django project with the app installed: its checks, its command, its databases. Each test is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
WEBSHOP = "example_project.webshop.settings"


class Project:
    """A folder with the example's Django project in it, on SQLite, without a broker."""

    def __init__(self, folder: Path, *, settings: str = WEBSHOP, **environment: str) -> None:
        """Take a folder for the database."""
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        self.environment |= {"WEBSHOP_DIRECTORY": str(folder), "DJANGO_SETTINGS_MODULE": settings}
        self.environment |= {"WEBSHOP_BROKER_URL": "memory://", "WEBSHOP_RESULT_URL": "cache+memory://", **environment}

    def python(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the project; its assertions must hold."""
        return self._run("-c", f"import django\ndjango.setup()\n{program}", *words)

    def manage(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it printed."""
        return "".join(self._run("-m", "django", *words, code=code).__dict__[name] for name in ("stdout", "stderr"))

    def _run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done


# --- checks


def settings_with(folder: Path, text: str) -> Project:
    """Return a project whose settings are the example's and some lines more."""
    (folder / "more_settings.py").write_text(f"from {WEBSHOP} import *\n{text}\n")
    return Project(folder, settings="more_settings")


def test_a_wrong_setting_is_an_error_of_the_check(tmp_path: Path) -> None:
    """As the project spells it, under an id that stays."""
    said = settings_with(tmp_path, "CELERY_RELIABLE_LEESE_TTL = 7").manage("check", code=1)
    assert "(celery_reliable.settings_wrong)" in said
    assert "did you mean CELERY_RELIABLE_LEASE_TTL?" in said


def test_findings_are_warnings_that_can_be_silenced(tmp_path: Path) -> None:
    """By their id. What needs a connection is looked at with --deploy alone: here, tables that are not there."""
    night = "from celery.schedules import crontab\nCELERY_TIMEZONE = 'Europe/Berlin'\nCELERY_BEAT_SCHEDULE = "
    night += "{'night': {'task': 'webshop.report', 'schedule': crontab(hour=2, minute=30)}}"
    said = settings_with(tmp_path, f"{night}\nCELERY_RESULT_EXPIRES = 63072000").manage("check")
    assert "(celery_reliable.results_kept_too_long)" in said
    assert "(celery_reliable.crontab_in_local_night)" in said
    assert "HINT: reference/findings/crontab_in_local_night.html" in said
    for code in ("store_no_tables", "rows_unread"):
        assert f"(celery_reliable.{code})" not in said, "a check without --deploy has connected"
    silenced = "SILENCED_SYSTEM_CHECKS = ['celery_reliable.crontab_in_local_night', 'celery_reliable.zone_differs']"
    project = settings_with(tmp_path, f"{night}\n{silenced}")
    deploy = project.manage("check", "--deploy", "--tag", "celery_reliable")
    assert "crontab_in_local_night)" not in deploy
    assert "(celery_reliable.store_no_tables)" in deploy
    assert "(celery_reliable.rows_unread)" in deploy
    assert "manage.py migrate celery_reliable" in deploy


def test_rows_that_run_in_a_local_night_are_found_where_a_connection_is_allowed(tmp_path: Path) -> None:
    """With --deploy, and with --live: enabled ones, in a zone that changes its clock, and a broken one hinders none."""
    project = Project(tmp_path)
    project.python(ROWS)
    deploy = " ".join(project.manage("check", "--deploy", "--tag", "celery_reliable").split())
    assert "django-celery-beat: 'night 0' at 2:30 in Europe/Berlin, 'night 1' at 2:30 in Europe/Berlin, " in deploy
    assert "'night 2' at 2:30 in Europe/Berlin and 2 more: the clock" in deploy
    assert deploy.count("(celery_reliable.crontab_in_local_night)") == 1
    live = project.manage("reliable", "check", "--live", "--json")
    assert live.count('"crontab_in_local_night"') == 1


ROWS = """
from django.core.management import call_command
call_command("migrate", "django_celery_beat", verbosity=0)
call_command("migrate", "celery_reliable", verbosity=0)
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
def row(name, *, enabled=True, **schedule):
    crontab = CrontabSchedule.objects.get_or_create(**schedule)[0]
    PeriodicTask.objects.create(name=name, task="webshop.report", crontab=crontab, enabled=enabled)
for number in range(5):
    row(f"night {number}", hour="2", minute="30", timezone="Europe/Berlin")
row("switched off", hour="1", minute="30", timezone="Europe/Berlin", enabled=False)
row("in UTC", hour="2", minute="30", timezone="UTC")
row("by day", hour="12", minute="30", timezone="Europe/Berlin")
row("hourly", hour="*", minute="30", timezone="Europe/Berlin")
row("broken", hour="2", minute="77", timezone="Europe/Berlin")
second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.create(name="interval", task="webshop.report", interval=second)
"""


def test_a_site_that_loads_no_celery_app_says_so(tmp_path: Path) -> None:
    """In its checks, in the command and in the admin, in the words that name the remedy."""
    (tmp_path / "bare_urls.py").write_text(
        "from django.contrib import admin\nfrom django.urls import path\nurlpatterns = [path('admin/', admin.site.urls)]\n"
    )
    text = (ROOT / "example_project" / "webshop" / "settings.py").read_text()
    text = text.replace('    "example_project.webshop",\n', "").replace("example_project.webshop.urls", "bare_urls")
    (tmp_path / "bare_settings.py").write_text(text)
    project = Project(tmp_path, settings="bare_settings")
    assert "(celery_reliable.no_app)" in project.manage("check")
    assert "from .celery import app as celery_app" in project.manage("reliable", "dlq", "list", code=1)
    project.python(NO_APP)


NO_APP = """
from django.core.management import call_command
from django.test import Client
from django.test.utils import setup_test_environment
setup_test_environment()
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
client = Client()
client.force_login(User.objects.create_superuser("ann"))
answer = client.get("/admin/celery_reliable/deadletter/")
assert answer.status_code == 503, answer.status_code
assert "no Celery app is loaded" in answer.content.decode()
"""


# --- the command


COMMAND = """
import io
from django.core.management import CommandError, call_command
try:
    call_command("reliable", "dlq", "list")
except CommandError as exc:
    assert "manage.py migrate celery_reliable" in str(exc), exc
else:
    raise AssertionError("tables that are not there")
call_command("migrate", "celery_reliable", verbosity=0)
out = io.StringIO()
call_command("reliable", "dlq", "list", stdout=out)
assert out.getvalue() == "No dead letters match.\\n", out.getvalue()
try:
    call_command("reliable", "dlq", "show", "nothing")
except CommandError as exc:
    assert exc.returncode == 1 and "begins with 'nothing'" in str(exc), exc
else:
    raise AssertionError("a letter that is not there")
"""


def test_the_command_is_that_of_celery(tmp_path: Path) -> None:
    """With its options and exit codes, on the command line and through `call_command`."""
    project = Project(tmp_path)
    project.python(COMMAND)
    assert project.manage("reliable", "dlq", "stats", "--json").startswith('{"kept": 0')


def test_the_scheduler_is_named_below_the_app(tmp_path: Path) -> None:
    """As for `celery beat -S`, which imports it by name."""
    Project(tmp_path).python(
        "from kombu.utils.imports import symbol_by_name\n"
        "found = symbol_by_name('celery_reliable.django:ReliableDatabaseScheduler')\n"
        "import celery_reliable.beat as beat\n"
        "assert issubclass(found, beat.LeaderMixin)\n"
        "from django_celery_beat.schedulers import DatabaseScheduler\n"
        "assert issubclass(found, DatabaseScheduler)\n"
    )


# --- databases


TWO = """
import json, uuid
from django.apps import apps
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import setup_test_environment
setup_test_environment()
call_command("migrate", verbosity=0)
call_command("migrate", "celery_reliable", database="store", verbosity=0)
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.payloads import Envelope
project = apps.get_app_config("celery_reliable").project
call = Envelope("webshop.charge", str(uuid.uuid4()), json.dumps([["A-1"], {}, {}]), options={"queue": "celery"})
letter = DeadLetter.of(ValueError("no"), reason="permanent", envelope=call, now=project.store.now() / 1e6)
project.store.keep_letter(letter.id, letter=letter.to_bytes(), letter_ttl=60, letter_max=10)
client = Client()
client.force_login(User.objects.create_superuser("ann"))
assert letter.id in client.get("/admin/celery_reliable/deadletter/").content.decode()
asked = client.post("/admin/celery_reliable/deadletter/ask/", {"action": "discard", "selected": letter.id})
token = asked.context["token"]
assert "Finished" in client.post("/admin/celery_reliable/deadletter/run/", {"batch": token}).content.decode()
assert LogEntry.objects.using("default").get().change_message == "Discarded."
with connections["default"].cursor() as cursor:
    cursor.execute("SELECT count(*) FROM celery_reliable_fleet")
    assert cursor.fetchone() == (0,), "the store wrote into the other database"
with connections["store"].cursor() as cursor:
    cursor.execute("SELECT discarded FROM celery_reliable_fleet")
    assert cursor.fetchone() == (1,)
"""


def test_store_and_log_may_lie_in_two_databases(tmp_path: Path) -> None:
    """The store's alias needs no tables of Django's own; the log is where the project's users are."""
    Project(tmp_path, settings="tests.integration.apps.webshop_two").python(TWO)


INBOX = """
from functools import partial
from django.core.management import call_command
from django.db import connections, transaction as plain
from celery_reliable.django.inbox import transaction
from celery_reliable.errors import ConfigurationError
from celery_reliable.inbox import Claim, once_committed
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
call_command("migrate", verbosity=0)
from django.contrib.auth.models import Group

def once(using):
    return once_committed(partial(transaction, using), Claim(Job("job", "own"), 1, "cr:", 60.0, MemoryStore()))

def refused(*words, using="default", write="default", run=None):
    try:
        with once(using):
            Group.objects.using(write).create(name="effect") if run is None else run()
    except ConfigurationError as exc:
        assert all(word in str(exc) for word in words), exc
    else:
        raise AssertionError("it was not refused")

refused("celery_reliable_inbox", "DATABASES['store']", "migrate celery_reliable --database=store", using="store")
call_command("migrate", "celery_reliable", database="store", verbosity=0)
call_command("migrate", "auth", database="store", verbosity=0)
refused("DATABASES['default'], found a write to DATABASES['store'] (INSERT INTO", write="store")
refused("DATABASES['store'], found a write to DATABASES['default'] (INSERT INTO", using="store")

def in_a_transaction_of_its_own():
    with plain.atomic(using="store"):
        Group.objects.using("store").filter(name="effect").delete()
        Group.objects.using("store").bulk_create([Group(name="effect")])
refused("found a write to DATABASES['store']", run=in_a_transaction_of_its_own)
assert [Group.objects.using(alias).count() for alias in ("default", "store")] == [0, 0]

with once("default"):
    Group.objects.create(name=f"effect {Group.objects.using('store').count()}")
Group.objects.using("store").create(name="after the block")
assert [Group.objects.using(alias).count() for alias in ("default", "store")] == [1, 1]
assert not any(connections[alias].execute_wrappers for alias in connections)

with plain.atomic():
    plain.set_rollback(True)
    try:
        with once("default"):
            raise AssertionError("the block was entered")
    except ConfigurationError as exc:
        assert "has failed before" in str(exc), exc
"""


def test_an_inbox_and_its_effect_are_in_one_database(tmp_path: Path) -> None:
    """A write to another alias is refused before it is done, as is an alias without the table, or a broken transaction."""
    Project(tmp_path, settings="tests.integration.apps.webshop_two").python(INBOX)


VIEWS = """
from django.http import HttpResponse
from django.urls import path
from example_project.webshop.tasks import charge

def order(request):
    charge.delay(request.GET["order"])
    if "fail" in request.GET:
        raise ValueError("the view failed")
    return HttpResponse("ordered")

urlpatterns = [path("order", order)]
"""

REQUESTS = """
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test import Client
from example_project.webshop.celery import app
from celery_reliable.runtime import runtime_of
call_command("migrate", verbosity=0)
assert settings.DATABASES["default"]["ATOMIC_REQUESTS"]
assert runtime_of(app).settings.store_url == "django://default"

def promised():
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM celery_reliable_ledger WHERE made_at > 0")
        return cursor.fetchone()[0]

client = Client(raise_request_exception=False)
assert client.get("/order?order=A-1").status_code == 200
assert client.get("/order?order=A-2&fail=1").status_code == 500
assert promised() == 1
assert client.get("/order?order=A-2").status_code == 200
assert promised() == 2
"""


def test_a_request_that_fails_submits_nothing(tmp_path: Path) -> None:
    """With ATOMIC_REQUESTS and the store in the same database a view needs no block: its submissions are the request's.

    The broker is away, which no request notices: what was committed waits for a relay.
    """
    (tmp_path / "shop_urls.py").write_text(VIEWS)
    settings = (
        "ROOT_URLCONF = 'shop_urls'\nALLOWED_HOSTS = ['testserver']\nCELERY_RELIABLE_STORE_URL = 'django://default'"
    )
    project = settings_with(tmp_path, settings)
    project.environment["WEBSHOP_BROKER_URL"] = "redis://127.0.0.1:1/0"
    project.python(REQUESTS)


ASYNC = """
import asyncio
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connection
from django.test import AsyncClient
from django.test.utils import setup_test_environment
setup_test_environment()
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from example_project.webshop.tasks import charge
ann = User.objects.create_superuser("ann")

async def view():
    client = AsyncClient()
    await sync_to_async(client.force_login)(ann)  # Django 4.2 has no aforce_login
    assert (await client.get("/admin/celery_reliable/deadletter/")).status_code == 200
    try:
        charge.delay("A-1")
    except SynchronousOnlyOperation as exc:
        assert "sync_to_async" in str(exc)
    else:
        raise AssertionError("the event loop waited for the database")
    results = await asyncio.gather(*(sync_to_async(charge.delay, thread_sensitive=False)("A-1") for _ in range(8)))
    assert len({result.id for result in results}) == 1

asyncio.run(view())
"""


def test_async_views_submit_through_a_thread(tmp_path: Path) -> None:
    """Eight at once are one job; without the thread Django's own error says what to do. The pages work under ASGI."""
    Project(tmp_path).python(ASYNC)
