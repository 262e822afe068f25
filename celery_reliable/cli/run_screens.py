"""Show managed replays to people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from celery_reliable.cli.screens import age, command_line, printable, table

if TYPE_CHECKING:
    from rich.console import Console

    from celery_reliable.dead_letters.runs import Run

_STYLES: Final = {"stopped": "red", "left": "red", "paused": "yellow", "running": "green"}


def state_of(run: Run, *, now: float) -> str:
    """Return a run's state; ``left`` when the machine that worked on it says nothing any more."""
    return "left" if run.is_left(now=now) else run.state


def record(run: Run, *, now: float) -> dict[str, Any]:
    """Return a run as plain data."""
    return {**asdict(run), "state": state_of(run, now=now)}


def show(console: Console, runs: Sequence[Run], *, now: float) -> None:
    """Show runs, one a line."""
    if not runs:
        console.print("No replay was begun in the last 30 days.")
        return
    rows = [_row(run, now=now) for run in runs]
    console.print(table(console, ("RUN", "STATE", "AGE", "SENT", "REFUSED", "DIED AGAIN", "BY", "ERROR"), rows))
    waiting = [run for run in runs if state_of(run, now=now) in {"left", "stopped", "paused"}]
    if waiting:
        console.print(f"\nGo on with one: {command_line('resume', waiting[0].id)}", soft_wrap=True)


def _row(run: Run, *, now: float) -> list[str | Text]:
    state = state_of(run, now=now)
    return [
        run.id,
        Text(state, style=_STYLES.get(state, "")),
        age(now - run.begun),
        f"{run.replayed:,} of {run.total:,}",
        f"{sum(run.refused.values()):,}",
        f"{run.failed:,} of {run.failed + run.succeeded:,}",
        printable(run.who),
        printable(run.why),
    ]
