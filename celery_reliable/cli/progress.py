"""Follow a bulk replay: a bar for people who watch, JSON lines for programs, refusals kept for the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from celery_reliable.cli import dependencies, screens
from celery_reliable.dead_letters import Step

if TYPE_CHECKING:
    import click

    from celery_reliable.dead_letters import Report
    from celery_reliable.dead_letters.runs import Replayed, Run

_KEPT_PER_REASON = 6


class Outcome:
    """What was seen of one replay. The bar is on standard error and only there when that is a terminal."""

    def __init__(self, ctx: click.Context, *, as_json: bool, dry_run: bool) -> None:
        """Show nothing yet."""
        self._ctx = ctx
        self._as_json = as_json
        self._dry_run = dry_run
        self._refused: dict[str, list[Step]] = {}
        self._breakers: Mapping[str, tuple[str, int]] = {}
        self._bar: tuple[Progress, TaskID] | None = None

    @property
    def _verb(self) -> str:
        return "Checking" if self._dry_run else "Replaying"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs."""
        if self._as_json or not sys.stderr.isatty():
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = screens.console_for(self._ctx, stderr=True)
        with Progress(*columns, console=console, transient=True) as bar:
            self._bar = bar, bar.add_task(self._verb, total=None)
            yield
        self._bar = None

    def note(self, step: Step) -> None:
        """Take one step in."""
        if self._as_json:
            screens.write_json(screens.step_record(step, dry_run=self._dry_run))
        if step.refused:
            like_it = self._refused.setdefault(step.refused.reason, [])
            like_it += [step][: _KEPT_PER_REASON - len(like_it)]
        if self._bar:
            bar, line = self._bar
            bar.update(line, description=self._verb, completed=step.done, total=step.total)

    def meets(self, breakers: Mapping[str, tuple[str, int]]) -> None:
        """Take in which breakers the letters would meet: state, and how many letters."""
        self._breakers = breakers
        for name, (state, count) in breakers.items() if self._as_json else ():
            screens.write_json({"breaker": name, "state": state, "letters": count})

    def name(self, run: Run) -> None:
        """Say which run it is, so that it can be paused from elsewhere."""
        if not self._as_json and run.total > 1:
            screens.console_for(self._ctx, stderr=True).print(f"Replay {run.id} of {screens.count_of(run.total)}.")

    def follow(self, run: Run, step: Replayed | None) -> None:
        """Take one step of a run in, or a second of its waiting."""
        if step is not None:
            self.note(
                Step(step.letter.id, step.letter.task, run.done, run.total, new_id=step.new_id, refused=step.refused)
            )
        elif self._bar:
            bar, line = self._bar
            waits = "Paused" if run.state == "paused" else "Watching"
            bar.update(line, description=waits, completed=run.done, total=run.total)

    def report(self, report: Report, *, run: Run | None = None) -> None:
        """Say how it ended."""
        if self._as_json:
            return
        console = screens.console_for(self._ctx)
        screens.show_report(console, report, refused=self._refused, dry_run=self._dry_run)
        if self._breakers and report.refused:
            console.print()
        for name, (state, count) in self._breakers.items():
            console.print(screens.breaker_line(name, dependencies.WORDS[state], letters=count), soft_wrap=True)
        if run is not None and run.state == "stopped":
            console.print(f"Stopped: {screens.printable(run.why)}.")
            console.print(f"Go on all the same: {screens.command_line('resume', run.id)}", soft_wrap=True)
        if run is not None and run.state == "cancelled":
            console.print("Cancelled; the rest stays dead.")
