"""A task that takes and returns pydantic models, and a worker with it: not in `jobs`, whose workers start without pydantic."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from celery import current_task
from pydantic import BaseModel

from celery_reliable import ReliableTask
from tests.integration.apps.jobs import make_app, note
from tests.integration.apps.stage import VARIABLE, Stage

if TYPE_CHECKING:
    from celery import Celery


class Invoice(BaseModel):
    """What a pydantic task takes."""

    number: int
    total: float = 1.0


class Receipt(BaseModel):
    """What a pydantic task returns."""

    number: int
    paid: bool


def settle(invoice: Invoice, label: str) -> Receipt:
    """Take and return models."""
    note(current_task, label, number=invoice.number)
    return Receipt(number=invoice.number, paid=True)


def with_invoices(app: Celery) -> Celery:
    """Register the task above."""
    app.task(base=ReliableTask, name="settle", shared=False, pydantic=True, idempotency_key="arguments")(settle)
    return app


if VARIABLE in os.environ:
    app = with_invoices(make_app(Stage.from_environment(), task_cls=True))
