"""Show orders, invoices and reports."""

from __future__ import annotations

from django.contrib import admin

from example_project.webshop.models import Invoice, Order, Report


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders."""

    list_display = ("number", "amount", "placed_at")


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    """Invoices."""

    list_display = ("order", "card", "fence", "issued_at")
    list_select_related = ("order",)


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):
    """Reports."""

    list_display = ("slot", "invoices", "total")
