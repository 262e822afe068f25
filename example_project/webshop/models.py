"""Keep orders, invoices and reports."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What a customer wants."""

    number = models.CharField(max_length=40, unique=True)
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        """Return its number."""
        return str(self.number)


class Invoice(models.Model):
    """What a charged order gets. Nothing but the inbox keeps an order from having two."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="invoices")
    card = models.CharField(max_length=20)
    fence = models.BigIntegerField()
    issued_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        """Name the order."""
        return f"invoice of {self.order}"


class Report(models.Model):
    """How the shop stood at one slot of the schedule."""

    slot = models.CharField(max_length=40)
    invoices = models.IntegerField()
    total = models.DecimalField(max_digits=10, decimal_places=2)

    def __str__(self) -> str:
        """Return its slot."""
        return str(self.slot)
