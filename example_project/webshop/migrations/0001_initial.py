"""Make the shop's tables."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models.deletion import PROTECT

ID = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))


class Migration(migrations.Migration):
    """See above."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ID,
                ("number", models.CharField(max_length=40, unique=True)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=8)),
                ("placed_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                ID,
                ("slot", models.CharField(max_length=40)),
                ("invoices", models.IntegerField()),
                ("total", models.DecimalField(decimal_places=2, max_digits=10)),
            ],
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ID,
                ("card", models.CharField(max_length=20)),
                ("fence", models.BigIntegerField()),
                ("issued_at", models.DateTimeField(auto_now_add=True)),
                ("order", models.ForeignKey(on_delete=PROTECT, related_name="invoices", to="webshop.order")),
            ],
        ),
    )
