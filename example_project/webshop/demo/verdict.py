"""Judge what happened, by the shop's own tables and Django's log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from django.contrib.admin.models import LogEntry
from django.db.models import Count

from example_project.verdict import Line
from example_project.webshop.models import Invoice, Report

RECOVERED: Final = 45.0
"""Seconds in which the order of a killed worker is charged, with the start of another worker among them."""


@dataclass(slots=True)
class Evidence:
    """What was seen from outside; the rest stands in the database."""

    ids: set[str] = field(default_factory=set)
    letters: list[str] = field(default_factory=list)
    recovered: float | None = None
    early: int | None = None
    denied: int = 0
    replayed: bool = False
    beat_page: bool = False

    @staticmethod
    def invoices(number: str) -> int:
        """Count an order's invoices."""
        return int(Invoice.objects.filter(order__number=number).count())


def judge(seen: Evidence) -> list[Line]:
    """Return the verdict, one line per promise."""
    log = LogEntry.objects.filter(change_message__startswith="Replayed with other arguments as task").values_list(
        "user__username", flat=True
    )
    cards = list(Invoice.objects.filter(order__number="A-3").values_list("card", flat=True))
    twice = Report.objects.values("slot").annotate(times=Count("pk")).filter(times__gt=1).count()
    late = seen.recovered is None or seen.recovered > RECOVERED
    found = "never" if seen.recovered is None else f"{seen.recovered:.1f} s"
    return [
        _is("a", "task ids for five submissions of one order", 1, len(seen.ids)),
        _is("a", "its invoices", 1, seen.invoices("A-1")),
        Line("b", "order of the killed worker charged", f"within {RECOVERED:.0f} s", found, ok=not late),
        _is("b", "its invoices", 1, seen.invoices("A-2")),
        _is("c", "dead letters of the order with a bad card", 1, len(seen.letters)),
        _is("c", "its invoices before the edit", 0, seen.early),
        _is("c", "who may only look, tries to replay it: status", 403, seen.denied),
        _is(
            "c",
            "replayed in the admin, and by whom, in Django's log",
            "True, ann",
            f"{seen.replayed}, {', '.join(log)}",
        ),
        _is("c", "cards of its invoices", "4242", ", ".join(cards) or "none"),
        Line("d", "reports of the schedule", "2 or more", str(Report.objects.count()), ok=Report.objects.count() > 1),
        _is("d", "slots that were reported twice", 0, twice),
        _is("d", "the admin shows entry and leader", "yes", "yes" if seen.beat_page else "no"),
    ]


def _is(act: str, claim: str, expected: object, found: object) -> Line:
    return Line(act, claim, str(expected), str(found), ok=expected == found)
