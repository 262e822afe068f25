"""Fill the example's Django project with what the pages show: ``python -m tests.browser.scene NUMBER``."""

from __future__ import annotations

import json
import sys
import time
import uuid
from dataclasses import replace
from typing import Any

import django

MARKUP = '<img src=x onerror="window.owned = 1"><script>window.owned = 1</script>'
PASSWORD = "pw"
ERRORS = (
    ValueError("card 4000 0000 0000 0002 was declined: do not honour"),
    TimeoutError("the bank did not answer within 10 s"),
    ConnectionResetError("[Errno 104] Connection reset by peer"),
)
STACK = """Traceback (most recent call last):
  File "/srv/shop/webshop/tasks.py", line 28, in charge
    receipt = bank.charge(number, amount=order.amount, card=card)
  File "/srv/shop/webshop/bank.py", line 61, in charge
    raise error_of(answer)
{error}
"""
REASONS = ("permanent", "exhausted", "poison")


def main(number: int) -> None:
    """Make tables, users and letters, a lease that hangs, and entries of the schedule."""
    django.setup()
    from django.apps import apps  # noqa: PLC0415  # there after the setup
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("ann", password=PASSWORD)
    bob = User.objects.create_user("bob", password=PASSWORD, is_staff=True)
    bob.user_permissions.set(Permission.objects.filter(codename="view_deadletter"))
    store = apps.get_app_config("celery_reliable").project.store
    for letter in letters(number, now=store.now() / 1e6):
        store.keep_letter(letter.id, job=letter.job, letter=letter.to_bytes(), letter_ttl=86_400, letter_max=100_000)
    hang(store)
    schedule(store)


def letters(number: int, *, now: float) -> list[Any]:
    """Return letters of charges, the last of them with markup in its payload."""
    from celery_reliable.dead_letters import DeadLetter, Worker  # noqa: PLC0415
    from celery_reliable.payloads import Envelope  # noqa: PLC0415
    from celery_reliable.stores.base import Job  # noqa: PLC0415

    found: list[Any] = []
    for count in range(number):
        last = count == number - 1
        args, kwargs = [f"A-{count}"], {"card": "0002", **({"seconds": MARKUP} if last else {})}
        call = Envelope(
            "webshop.charge", str(uuid.uuid4()), json.dumps([args, kwargs, {}]), options={"queue": "browser"}
        )
        error = RuntimeError(MARKUP) if last else ERRORS[count % 7 % 3]
        given: dict[str, Any] = {"reason": REASONS[count % 7 % 3], "attempts": 1 + count % 3}
        given |= {
            "job": Job(f"charge:A-{count}", "declared"),
            "life": 1,
            "worker": Worker("web-7", 311, "5.7.0", "0.1.0"),
        }
        letter = DeadLetter.of(error, envelope=call, now=now - 41.0 * (number - count), **given)
        stack = STACK.format(error=f"{type(error).__name__}: {error}")
        found.append(replace(letter, traceback=stack))
    return found


def hang(store: Any) -> None:
    """Claim a job for a worker that gives signs of life."""
    from celery_reliable.heartbeats import LifeSign, Process  # noqa: PLC0415
    from celery_reliable.stores.base import Job  # noqa: PLC0415
    from celery_reliable.stores.notes import Write  # noqa: PLC0415

    job, task_id = Job("charge:A-4711", "declared"), str(uuid.uuid4())
    store.submit(job, task_id=task_id, ttl=3600)
    store.claim(job, task_id=task_id, token="k3Jd02.1f", life=1, ttl=3600, max_deliveries=5, record_ttl=3600)
    sign = LifeSign(
        role="worker", node="celery@web-7", state="busy", owner="k3Jd02", process=Process.current(),
        at=time.time(), clock=1.0, interval=5.0, running=1,
    )  # fmt: skip
    store.notes.write("workers", [Write(name="k3Jd02", value=sign.to_json().encode(), ttl=3600)])


def schedule(store: Any) -> None:
    """Note one entry that fires and one that was dropped."""
    from celery_reliable.slots.records import SlotRecord  # noqa: PLC0415
    from celery_reliable.stores.notes import Write  # noqa: PLC0415

    now, second = store.now(), 1_000_000
    report = SlotRecord("v", now, task="webshop.report", schedule="<freq: 1.00 hour>")
    for age in (7200, 3600):
        slot = now - age * second
        claimed = report.claimed(slot, epoch=1, at=slot, following=slot + 3600 * second, missed=None)
        report = claimed.fired(at=slot + second, epoch=1)
    letter = SlotRecord("v", now, task="webshop.newsletter", schedule="<crontab: 0 7 * * 1 (m/h/dM/MY/d)>")
    claimed = letter.claimed(now - 400 * second, epoch=1, at=now, following=now + 86_400 * second, missed=None)
    for name, record in {"report": report, "newsletter": claimed.dropped("deadline", at=now)}.items():
        store.notes.write("beat.slots", [Write(name=name, value=record.to_bytes(), ttl=3600)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
