"""What happens to the shop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.contrib.auth.models import Permission, User

from celery_reliable.stores.base import Job
from example_project.demo.fleet import wait_for
from example_project.webshop.demo.staff import PASSWORD, Person
from example_project.webshop.demo.verdict import Evidence
from example_project.webshop.models import Order, Report
from example_project.webshop.tasks import charge

if TYPE_CHECKING:
    from example_project.demo.fleet import Fleet

ORDERS: Final = {"A-1": "19.90", "A-2": "120.00", "A-3": "7.50"}
SUBMITTED: Final = 5
_PATIENCE: Final = 45.0
_CELERY: Final = ("celery", "-A", "example_project.webshop")
_BANK_SECONDS: Final = 1.5


class Story:
    """Worker, beat and site, two people, three orders."""

    def __init__(self, fleet: Fleet, *, port: int, say: Callable[[str], object]) -> None:
        """Begin nothing yet."""
        self._fleet, self._port, self._say = fleet, port, say
        self._site = f"http://127.0.0.1:{port}"
        self.evidence = Evidence()

    def play(self) -> None:
        """Tell it all."""
        self._open_shop()
        self._submit_often()
        self._kill_a_worker()
        self._repair_in_the_admin()
        self._read_reports()

    def _open_shop(self) -> None:
        for name, permissions in {
            "ann": ("view_deadletter", "can_replay", "view_beatentry"),
            "bob": ("view_deadletter",),
        }.items():
            user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        for number, amount in ORDERS.items():
            Order.objects.create(number=number, amount=amount)
        self._start_worker("worker-1")
        self._fleet.start(
            "beat",
            *_CELERY,
            "beat",
            "-S",
            "celery_reliable.django:ReliableDatabaseScheduler",
            "--loglevel",
            "INFO",
            ready="beat: Starting",
        )
        server = ("example_project.webshop", "runserver", "--noreload", str(self._port))
        self._fleet.start("site", *server, ready="Quit the server")
        for name in ("worker-1", "beat", "site"):
            self._fleet[name].wait_ready(timeout=_PATIENCE)
        self._say(f"worker, beat and site are up: {self._site}/admin/")

    def _start_worker(self, name: str) -> None:
        words = ("worker", "--concurrency", "2", "--hostname", f"{name}@%h", "--loglevel", "INFO")
        self._fleet.start(name, *_CELERY, *words, ready=" ready.")

    def _submit_often(self) -> None:
        self.evidence.ids = {charge.delay("A-1").id for _ in range(SUBMITTED)}
        self._charged("A-1")
        self._say(f"order A-1 was submitted {SUBMITTED} times, and charged")

    def _kill_a_worker(self) -> None:
        store, job = apps.get_app_config("celery_reliable").project.store, Job("charge:A-2", "declared")
        charge.delay("A-2", seconds=_BANK_SECONDS)
        wait_for(lambda: store.inspect(job).get("state") == "running", timeout=_PATIENCE, what="A-2 is being charged")
        self._fleet["worker-1"].kill()
        killed = time.monotonic()
        self._say("worker-1 was killed while it charged order A-2")
        self._start_worker("worker-2")
        self._charged("A-2")
        self.evidence.recovered = time.monotonic() - killed
        self._say("worker-2 charged it")

    def _repair_in_the_admin(self) -> None:
        charge.delay("A-3", card="0002")
        ann, bob = Person("ann", site=self._site), Person("bob", site=self._site)
        wait_for(lambda: bool(ann.letters("A-3")), timeout=_PATIENCE, what="A-3 is a dead letter in the admin")
        self.evidence.letters = ann.letters("A-3")
        [letter] = self.evidence.letters
        self.evidence.early = self.evidence.invoices("A-3")
        changed = {"args": '["A-3"]', "kwargs": '{"card": "4242"}'}
        edit = letter.replace("/change/", "/edit/")
        self.evidence.denied = bob.send(edit, **changed)[0]
        self.evidence.replayed = "Replayed with other arguments" in ann.send(edit, **changed)[1]
        self._charged("A-3")
        self._say(
            "order A-3 had a bad card; ann gave it another one in the admin and replayed it, bob was not allowed to"
        )

    def _read_reports(self) -> None:
        wait_for(lambda: Report.objects.count() > 1, timeout=_PATIENCE, what="beat has asked for two reports")
        page = Person("ann", site=self._site).read("/admin/celery_reliable/beatentry/")
        self.evidence.beat_page = "webshop.report" in page and " leads for " in page
        self._say("beat fires the report, and its page says so")

    def _charged(self, number: str) -> None:
        wait_for(lambda: self.evidence.invoices(number) > 0, timeout=_PATIENCE, what=f"order {number} has an invoice")
