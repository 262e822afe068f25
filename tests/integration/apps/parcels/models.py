"""Parcels and their receipts, as Django's models."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Parcel(models.Model):  # type: ignore[misc]  # Django is not typed
    """Something that is sent once."""

    status = models.CharField(max_length=20, null=True, default="pending")  # noqa: DJ001  # NULL is one of its states
    carrier = models.CharField(max_length=20, default="")
    fence = models.BigIntegerField(null=True, default=0)

    class Meta:
        """The table that SQLAlchemy knows, too."""

        db_table = "parcel"

    def __str__(self) -> str:
        """Return its state."""
        return str(self.status)


class Receipt(models.Model):  # type: ignore[misc]
    """Written once for each parcel; its number is unique, too."""

    parcel = models.ForeignKey(Parcel, models.CASCADE)
    number = models.IntegerField(unique=True)
    note = models.CharField(max_length=20, default="")

    class Meta:
        """The arbiter; the second constraint is none, for it has a condition."""

        db_table = "receipt"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["parcel"], name="receipt_parcel"),
            models.UniqueConstraint(fields=["note"], condition=~models.Q(note=""), name="receipt_note"),
        ]

    def __str__(self) -> str:
        """Return its number."""
        return str(self.number)
