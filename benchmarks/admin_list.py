"""Time the admin's list of very many dead letters: ``python -m benchmarks.admin_list [--letters 1000000]``.

The store is SQLite, in the example's Django project; pages come through Django's test client, so the figure is the site's own
time: views, store, templates.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

LIST = "/admin/celery_reliable/deadletter/"
ROUNDS = 10
NUMBER = 987654321
"""Stands in the one letter of which all others are copies."""


def main() -> None:
    """Fill a store, then ask for pages; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_list", description=__doc__)
    parser.add_argument("--letters", type=int, default=1_000_000)
    number = parser.parse_args().letters
    with tempfile.TemporaryDirectory(prefix="letters-") as folder:
        os.environ |= {"WEBSHOP_DIRECTORY": folder, "WEBSHOP_BROKER_URL": "memory://", "WEBSHOP_DEBUG": "0"}
        os.environ |= {"WEBSHOP_STORE_URL": "django://default"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.webshop.settings"
        fill(number)
        size = Path(folder, "webshop.sqlite3").stat().st_size >> 20
        print(
            f"{number:,} letters, {size:,} MiB\n\n| page | median | fastest | slowest | processor, least |\n|---|--:|--:|--:|--:|"
        )
        pages = {
            "newest": "",
            "from the middle": f"?after={number // 2}",
            "a filter that fits nothing": "?text=nothing-has-this",
            "a filter that fits all": "?task=webshop.*",
            "groups": "groups/",
        }
        for name, address in pages.items():
            print(f"| {name} | {measured(LIST + address)} |", flush=True)


def fill(number: int) -> None:
    """Make tables, a user, and copies of a letter."""
    import django  # noqa: PLC0415  # reads the environment
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)
    from django.apps import apps  # noqa: PLC0415
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415

    User.objects.create_superuser("ann")
    store = apps.get_app_config("celery_reliable").project.store
    rows = copies(number, now=store.now() / 1e6)
    store.letter_counts()  # makes the row of counts
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.connection.executemany(
            "INSERT INTO celery_reliable_letter "
            "(prefix, letter_id, number, status, body, ends, life, new_id, new_life, label) VALUES (?,?,?,?,?,?,?,?,?,?)",
            rows,
        )
        cursor.execute("UPDATE celery_reliable_fleet SET buried = %s", [number])
        cursor.execute("COMMIT")


def copies(number: int, *, now: float) -> Iterator[tuple[object, ...]]:
    """Iterate over rows of letters that differ in id and order number."""
    from celery_reliable.dead_letters import DeadLetter  # noqa: PLC0415
    from celery_reliable.payloads import Envelope  # noqa: PLC0415
    from celery_reliable.stores.base import Job  # noqa: PLC0415

    body = json.dumps([[f"A-{NUMBER}"], {"card": "0002"}, {}])
    call = Envelope("webshop.charge", f"00000000-0000-0000-0000-000{NUMBER}", body, options={"queue": "celery"})
    job = Job(f"charge:A-{NUMBER}", "declared")
    letter = DeadLetter.of(ValueError("declined"), reason="permanent", envelope=call, now=now, job=job, life=1)
    raw = letter.to_bytes()
    for count in range(number):
        name = f"{count:016x}"
        mine = raw.replace(letter.id.encode(), name.encode()).replace(str(NUMBER).encode(), b"%09d" % count)
        yield ("cr:", name, count + 1, "dead", mine, 1 << 60, 1, "", 0, letter.label)


def measured(address: str) -> str:
    """Return the cells of one page: how long it took, and how much of that was computing."""
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415
    from django.test.utils import override_settings  # noqa: PLC0415

    client = Client()
    client.force_login(User.objects.get(username="ann"))
    took = []
    with override_settings(ALLOWED_HOSTS=["testserver"]):
        for _ in range(ROUNDS + 1):
            began, computed = time.perf_counter(), time.process_time()
            answer = client.get(address)
            assert answer.status_code == HTTPStatus.OK, answer.status_code
            took.append(((time.perf_counter() - began) * 1000, (time.process_time() - computed) * 1000))
    took = sorted(took[1:])  # the first one imports the tasks
    median, fastest, slowest = (took[place][0] for place in (len(took) // 2, 0, -1))
    return f"{median:.0f} ms | {fastest:.0f} ms | {slowest:.0f} ms | {min(computed for _, computed in took):.0f} ms"


if __name__ == "__main__":
    main()
