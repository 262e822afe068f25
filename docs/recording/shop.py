"""Be a shop that has a bad day: payments time out now and then, some orders lack what they need."""

from __future__ import annotations

import os
import random
import time

from celery import Celery
from celery.schedules import crontab

from celery_reliable import ReliableTask, Snooze

REDIS = os.environ.get("SHOP_REDIS", "redis://localhost:6379")
app = Celery("shop", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.config_from_object("celery_reliable.presets")
app.conf.update(
    reliable_store_url=f"{REDIS}/2",
    reliable_retry_backoff=0.2,
    reliable_retry_backoff_max=0.5,
    reliable_heartbeat_interval=1,
    reliable_leader_ttl=3,
    reliable_release="2.3.1",
    reliable_letter_url="https://shop.example/admin/celery_reliable/deadletter/{letter_id}/change/",
    task_time_limit=300,
    reliable_breakers={"payments": {"failures": 1000}},  # opened by hand, to be shown
    reliable_kill_switches={"mails": {}, "reports": {}},
    reliable_metrics_port=int(os.environ.get("SHOP_METRICS", "0")),
    task_routes={"shop.report": {"queue": "reports"}, "shop.mail": {"queue": "mails"}},
    beat_schedule={
        "collect": {"task": "shop.collect", "schedule": 60.0},
        "digest": {"task": "shop.digest", "schedule": 3.0},
        "invoices": {"task": "shop.mail", "schedule": crontab(minute=0), "args": ("all", "invoice")},
        "nightly": {"task": "shop.report", "schedule": crontab(hour=4, minute=30), "args": (0,)},
    },
)


@app.task(base=ReliableTask, name="shop.charge", idempotency_key="charge:{order}", max_retries=2, breaker="payments")
def charge(order: int, amount: float) -> str:
    """Charge an order once."""
    time.sleep(random.uniform(0.02, 0.12))  # the payment
    if order % 10 == 7:  # noqa: PLR2004  # a bad day
        raise TimeoutError("payments.example did not answer within 5 s")
    if order % 25 == 3:  # noqa: PLR2004
        raise KeyError("total")
    return f"ch_{order}_{amount}"


@app.task(base=ReliableTask, name="shop.mail", idempotency_key="mail:{address}:{what}")
def mail(address: str, what: str) -> str:
    """Send a mail."""
    time.sleep(random.uniform(0.01, 0.04))
    if random.random() < 0.03:  # noqa: PLR2004
        raise Snooze(0.5)
    if "@" not in address and address != "all":
        raise ValueError(f"no mail address: {address}")
    return what


@app.task(base=ReliableTask, name="shop.report")
def report(day: int) -> int:
    """Render a report."""
    time.sleep(random.uniform(0.5, 1.5))
    return day


@app.task(base=ReliableTask, name="shop.collect")
def collect() -> int:
    """Look for what is new."""
    return 0


@app.task(base=ReliableTask, name="shop.digest", overlap="forbid")
def digest() -> None:
    """Write to all who wait, for longer than until the next slot."""
    time.sleep(20)
