"""Make the report of a day."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

GOODS = ("tea", "bread", "lamps", "boots", "paper", "honey", "rope", "soap", "maps", "clocks")


def day_at(moment: float, *, opened_at: float, day_seconds: float) -> int:
    """Return the number of the day, the first is 1, to which a moment belongs."""
    return int((moment - opened_at) // day_seconds) + 1


def section(day: int, number: int) -> str:
    """Return one line of a report: the same day and number always give the same line."""
    sold = random.Random(f"{day}/{number}")
    return f"section {number:03d}  {sold.choice(GOODS):<7} {sold.randint(1, 900):>4} sold"


def numbers(lines: Sequence[str]) -> list[int]:
    """Return the numbers of these sections, in the order of the report."""
    return [int(line.split()[1]) for line in lines]


def publish(directory: str, *, day: int, lines: Sequence[str]) -> Path:
    """Put the finished report in its place in one step: readers see the whole report or none."""
    target = Path(directory) / f"report-day-{day}.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}.draft")
    draft.write_text("\n".join([f"Sales of day {day}", *lines, ""]), encoding="utf-8")
    draft.replace(target)
    return target
