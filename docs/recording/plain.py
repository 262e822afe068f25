"""Be a Celery project as most are."""

from __future__ import annotations

import requests
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="redis://localhost:6379/0", backend="redis://localhost:6379/1")
app.conf.update(accept_content=["json", "pickle"], timezone="Europe/Berlin", task_acks_late=True)
app.conf.beat_schedule = {"nightly": {"task": "shop.report", "schedule": crontab(hour=2, minute=30)}}


@app.task(name="shop.charge", bind=True, max_retries=None)
def charge(self, order):  # noqa: ANN001, ANN201  # as most are
    """Charge an order, and again, and again."""
    try:
        requests.post("https://payments.example/charge", json=order, timeout=5)
    except requests.ConnectionError as exc:
        raise self.retry(exc=exc) from exc


@app.task(name="shop.report")
def report() -> int:
    """Render a report."""
    return 1
