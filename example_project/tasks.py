"""Do the shop's work: four tasks, each of which may be stopped, killed or delivered twice at any line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests

from celery_reliable import ReliableTask
from example_project import reports
from example_project.app import app, settings
from example_project.ledger import Event, Ledger, Row


@app.task(base=ReliableTask, bind=True)
def collect(self: ReliableTask, opened_at: float) -> int:
    """Ask for today's report. Beat fires this many times a day; the report's key makes all of them one report."""
    with recorded(self) as record:
        day = reports.day_at(time.time(), opened_at=opened_at, day_seconds=settings.day_seconds)
        record.submit(render_report, key=f"report:{day}")
        render_report.delay(day)
    return day


@app.task(base=ReliableTask, bind=True, idempotency_key="report:{day}")
def render_report(self: ReliableTask, day: int) -> str:
    """Render one section after the other, so that any worker can go on where another one stopped."""
    with recorded(self) as record:
        lines: list[str] = self.checkpoint.load() or []
        for number in range(len(lines) + 1, settings.sections + 1):
            self.stop_if_draining()
            time.sleep(settings.section_seconds)  # this is the work
            lines.append(reports.section(day, number))
            self.checkpoint.save(lines)
            record("checkpoint", section=number)
        report = reports.publish(settings.reports_directory, day=day, lines=lines)
        record("effect", kind="report", path=str(report), sections=reports.numbers(lines))
    return str(report)


@app.task(base=ReliableTask, bind=True, idempotency_key="charge:{order_id}")
def charge_order(self: ReliableTask, order_id: str, amount: str) -> str:
    """Charge an order once. A refusal for now (429, 503) is tried again, one for good (402) becomes a dead letter."""
    with recorded(self) as record:
        answer = requests.post(
            f"{settings.payment_url}/charges",
            json={"order_id": order_id, "amount": amount},
            headers={"Idempotency-Key": str(self.idempotency_key)},
            timeout=5,
        )
        answer.raise_for_status()
        charge_id = str(answer.json()["id"])
        record("effect", kind="charge", order_id=order_id, charge_id=charge_id)
        record.submit(send_invoice, key=f"invoice:{order_id}")
        send_invoice.delay(order_id, charge_id)
    return charge_id


@app.task(base=ReliableTask, bind=True, idempotency_key="invoice:{order_id}")
def send_invoice(self: ReliableTask, order_id: str, charge_id: str) -> None:
    """Send the invoice of a charged order."""
    with recorded(self) as record:
        record("effect", kind="invoice", order_id=order_id, charge_id=charge_id)


class Recorder:
    """Write what one run does to the ledger."""

    def __init__(self, task: ReliableTask) -> None:
        """Take from the task what every row of this run has in common."""
        self._ledger = Ledger(settings.ledger_url)
        self._key = str(task.idempotency_key)
        self._task = task

    def __call__(self, event: Event, **detail: Any) -> None:
        """Write one row; ``detail`` is whatever the event has to say."""
        task = self._task
        worker = str(task.request.hostname).partition("@")[0]
        self._ledger.append(Row(event, task.name, self._key, task.fence, task.attempt, worker, detail=detail))

    def submit(self, task: ReliableTask, *, key: str) -> None:
        """Write that this run is about to submit another task."""
        self._ledger.append(Row("submit", task.name, key))


@contextmanager
def recorded(task: ReliableTask) -> Iterator[Recorder]:
    """Write a start row, and an end row however the run ends. Only a killed process leaves no end."""
    record = Recorder(task)
    record("start")
    try:
        yield record
    except BaseException as exc:
        record("end", outcome=type(exc).__name__)
        raise
    record("end", outcome="done")
