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
REASONS = (("permanent", 1), ("exhausted", 6), ("poison", 0))


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
            "webshop.charge",
            str(uuid.uuid4()),
            json.dumps([args, kwargs, {}]),
            options={"queue": "strange" if last else "payments"},
        )
        error = RuntimeError(MARKUP) if last else ERRORS[count % 7 % 3]
        reason, attempts = REASONS[count % 7 % 3]
        given: dict[str, Any] = {"reason": reason, "attempts": attempts}
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


SECOND = 1_000_000
WEEK = 7 * 86_400 * SECOND
MONDAY_AT_SEVEN = (4 * 86_400 + 7 * 3600) * SECOND  # the first one since 1970


def schedule(store: Any) -> None:
    """Note an entry that fires, one that was dropped, and one that is skipped; a beat leads, and another stands by."""
    from celery_reliable.beat.leadership import LEADER, LEADER_SHELF, MEMBER_SHELF, Member  # noqa: PLC0415
    from celery_reliable.stores.notes import Write  # noqa: PLC0415

    now = store.now()
    leader, other = (Member(f"beat-{n}", f"beat-{n}", 7, now / 1e6, 3600.0, epoch=now - 9_000 * SECOND) for n in "12")
    store.notes.write(LEADER_SHELF, [Write(name=LEADER, value=leader.to_bytes(), ttl=3600, expected=0)])
    store.notes.write(MEMBER_SHELF, [Write(name=one.token, value=one.to_bytes(), ttl=3600) for one in (leader, other)])
    rows()
    for name, record in entries(now).items():
        store.notes.write("beat.slots", [Write(name=name, value=record.to_bytes(), ttl=3600)])


def entries(now: int) -> dict[str, Any]:
    """Return what is known of three entries, with plausible times."""
    from celery_reliable.slots.records import SlotRecord  # noqa: PLC0415

    hourly, weekly, often = 3600 * SECOND, WEEK, 300 * SECOND
    report = SlotRecord("v", now, task="webshop.report", schedule="<freq: 1.00 hour>")
    for count in (3, 2, 1):
        report = fired(report, now - now % hourly - (count - 1) * hourly, hourly)
    monday = now - (now - MONDAY_AT_SEVEN) % weekly
    letter = SlotRecord("v", now, task="webshop.newsletter", schedule="<crontab: 0 7 * * 1 (m/h/dM/MY/d)>")
    letter = fired(letter, monday - weekly, weekly)
    letter = letter.claimed(monday, epoch=1, at=monday, following=monday + weekly, missed=None)
    stock = SlotRecord("v", now, task="webshop.stock", schedule="<freq: 5.00 minutes>")
    stock = fired(stock, now - now % often - often, often)
    stock = stock.claimed(now - now % often, epoch=1, at=now, following=now - now % often + often, missed=None)
    return {
        "report": report,
        "newsletter": letter.dropped("deadline", at=monday + 400 * SECOND),
        "stock": stock.dropped("overlap: task 5f0c2f7e-6b0c-4c7a-9a55-2d1f6a1f7a51 runs", at=now),
    }


def fired(record: Any, slot: int, interval: int) -> Any:
    """Return the record after one more slot was published."""
    claimed = record.claimed(slot, epoch=1, at=slot, following=slot + interval, missed=None)
    return claimed.fired(at=slot + SECOND, epoch=1)


def rows() -> None:
    """Make the rows of two of them, whose headers carry policies."""
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask  # noqa: PLC0415

    monday = CrontabSchedule.objects.create(minute="0", hour="7", day_of_week="1")
    often = IntervalSchedule.objects.create(every=5, period="minutes")
    deadline, forbid = json.dumps({"reliable_start_deadline": 300}), json.dumps({"reliable_overlap": "forbid"})
    PeriodicTask.objects.create(name="newsletter", task="webshop.newsletter", crontab=monday, headers=deadline)
    PeriodicTask.objects.create(name="stock", task="webshop.stock", interval=often, headers=forbid)


if __name__ == "__main__":
    main(int(sys.argv[1]))
