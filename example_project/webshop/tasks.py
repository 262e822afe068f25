"""Charge orders and report."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from django.db.models import Sum

from celery_reliable import Permanent
from example_project.webshop.models import Invoice, Order, Report

DECLINED = "0002"


@shared_task(name="webshop.charge", bind=True, idempotency_key="charge:{number}")
def charge(self: Any, number: str, card: str = "4242", seconds: float = 0.0) -> str:
    """Charge an order: its invoice and the marker that it exists are one commit, so it gets one, whoever dies."""
    if card.endswith(DECLINED):
        msg = f"card {card} of order {number} was declined: <b>do not honour</b>"
        raise Permanent(msg)
    time.sleep(seconds)  # the bank thinks; not in the transaction, which would keep everybody else waiting
    with self.inbox() as done:
        order = Order.objects.get(number=number)
        Invoice.objects.create(order=order, card=card, fence=self.fence)
        done.result = f"charged {order.amount}"
    return str(done.result)


@shared_task(name="webshop.report", bind=True, inbox=True)
def report(self: Any) -> int:
    """Count invoices, once for each slot of the schedule."""
    invoices = Invoice.objects.count()
    total = Invoice.objects.aggregate(total=Sum("order__amount"))["total"] or 0
    Report.objects.create(slot=self.slot or "now", invoices=invoices, total=total)
    return invoices
