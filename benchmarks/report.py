"""Write what was measured as a table: ratios and counts, which hold elsewhere too."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"

_HEAD = """\
# What celery_reliable costs

Written by `make bench`. Plain Celery has the same crash-safe settings (late ack, reject on worker lost, prefetch 1) and
runs interleaved with ours on the same broker, hiredis on both sides, results ignored, prefork with two children.
Throughput is the median of the ratios of each round: all workers stay up and take turns, each with an equal number of
jobs that wait when it goes on, counted by appends to a file. Store calls and commands are counted on a Redis of the
store's own.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, and the bar it has to keep: at least, or at most. None: no bar."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def keeps(self) -> bool:
        """Whether it keeps its bar."""
        low, high = self.at_least, self.at_most
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    def row(self) -> str:
        """Return its row of the table."""
        bars = (("at least", self.at_least), ("at most", self.at_most))
        bar = ", ".join(f"{which} {bound:g}" for which, bound in bars if bound is not None)
        verdict = ("kept" if self.keeps else "**missed**") if bar else ""
        return f"| {self.name} | {self.value:.3g} {self.unit} | {bar} | {verdict} |".replace("  ", " ")


def as_markdown(figures: Iterable[Figure], *, notes: Iterable[str] = (), head: str = _HEAD) -> str:
    """Return the whole page."""
    rows = [figure.row() for figure in figures]
    lines = [head, "| figure | measured | bar | |", "|---|---|---|---|", *rows]
    return "\n".join([*lines, *(f"\n{note}" for note in notes), ""])


def spread(ratios: Mapping[str, list[float]], *, foreign: float) -> str:
    """Return how far the middle half of the rounds lay apart, and how much the machine did for others meanwhile."""
    quarters = {name: statistics.quantiles(found, n=4) for name, found in ratios.items()}
    wide = ", ".join(f"{name} {low:.2f} to {high:.2f}" for name, (low, _, high) in quarters.items())
    rounds = statistics.mode(len(found) for found in ratios.values())
    return (
        f"The middle half of {rounds} rounds: {wide}. Other programs used {foreign:.0%} of the machine; above a tenth or so the "
        "ratios say more about them than about us."
    )
