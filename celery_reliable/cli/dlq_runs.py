"""Let an operator begin a managed replay, follow it, and stop or go on with one that somebody else began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from celery_reliable.app_letters import letters_of
from celery_reliable.cli import dependencies, run_screens, screens
from celery_reliable.cli.letters import friendly_errors, who
from celery_reliable.cli.options import json_option
from celery_reliable.cli.progress import Outcome
from celery_reliable.dead_letters import Report, Step
from celery_reliable.dead_letters.runs import Replayed, Run, Runner, Runs
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery_reliable.dead_letters import DeadLetters
    from celery_reliable.dead_letters.runs import Plan

run_argument = click.argument("run_id", metavar="RUN")


def work(ctx: click.Context, plan: Plan, *, letters: DeadLetters, outcome: Outcome, dry_run: bool) -> None:
    """Replay by a plan, or say what it would do, and show how it went. Exit code 1 when a letter was refused or it stopped."""
    store = runtime_of(ctx.obj.app).store
    if dry_run:
        with outcome.shown():
            steps = list(_steps(outcome, Runner(store, letters, who=who()).plan(plan)))
            sent = [plan.change.task or step.task for step in steps if not step.refused]
            outcome.meets(dependencies.phases(ctx.obj.app, sent))
        _end(ctx, outcome, Report.of(steps), None)
        return
    with outcome.shown():
        total = Runner(store, letters, who=who()).count(plan)
        run = Runs(store).begin(plan, who=who(), total=total if plan.limit is None else min(total, plan.limit))
        _follow(ctx, run, letters=letters, outcome=outcome)


def _follow(ctx: click.Context, run: Run, *, letters: DeadLetters, outcome: Outcome) -> None:
    outcome.name(run)
    runner = Runner(runtime_of(ctx.obj.app).store, letters, who=who(), told=outcome.follow)
    ended = runner.work(run)
    _end(ctx, outcome, Report(ended.done, ended.replayed, dict(ended.refused)), ended)


def _end(ctx: click.Context, outcome: Outcome, report: Report, run: Run | None) -> None:
    outcome.report(report, run=run)
    if report.refused or (run is not None and run.state == "stopped"):
        ctx.exit(1)


def _steps(outcome: Outcome, found: Iterable[Replayed]) -> Iterator[Step]:
    for number, step in enumerate(found, start=1):
        made = step_of(step, done=number, total=number)
        outcome.note(made)
        yield made


def step_of(step: Replayed, *, done: int, total: int) -> Step:
    """Return a step of a run as it is shown."""
    return Step(step.letter.id, step.letter.task, done, total, new_id=step.new_id, refused=step.refused)


@click.command()
@json_option
@click.pass_context
def runs(ctx: click.Context, /, *, as_json: bool) -> None:
    """List managed replays, newest first: who began them, how far they are, how they ended."""
    with friendly_errors():
        found = Runs(runtime_of(ctx.obj.app).store)
        every, now = found.all(), found.now()
    if as_json:
        for run in every:
            screens.write_json(run_screens.record(run, now=now))
        return
    run_screens.show(screens.console_for(ctx), every, now=now)


@click.command()
@run_argument
@click.pass_context
def pause(ctx: click.Context, /, *, run_id: str) -> None:
    """Let a replay wait, within a second, wherever it is worked on."""
    with friendly_errors():
        run = _found(ctx, run_id)
        Runs(runtime_of(ctx.obj.app).store).wish(run.id, "pause")
    click.echo(f"{run.id} pauses. Go on with it: {screens.command_line('resume', run.id)}")


@click.command()
@run_argument
@click.pass_context
def cancel(ctx: click.Context, /, *, run_id: str) -> None:
    """End a replay; what was sent stays sent."""
    with friendly_errors():
        run, found = _found(ctx, run_id), Runs(runtime_of(ctx.obj.app).store)
        found.wish(run.id, "cancel")
        if run.is_left(now=found.now()) or run.state == "stopped":
            found.write(replace(run, state="cancelled"))
    click.echo(f"{run.id} is cancelled.")


@click.command()
@run_argument
@json_option
@click.pass_context
def resume(ctx: click.Context, /, *, run_id: str, as_json: bool) -> None:
    """Go on with a replay that was paused, stopped, or left by a machine that died; the last two are worked on here."""
    outcome = Outcome(ctx, as_json=as_json, dry_run=False)
    with friendly_errors():
        run, found = _found(ctx, run_id), Runs(runtime_of(ctx.obj.app).store)
        found.wish(run.id, "run")
        if run.state != "stopped" and not run.is_left(now=found.now()):
            click.echo(f"{run.id} goes on where {run.who} works on it.")
            return
        with outcome.shown():
            _follow(ctx, run, letters=letters_of(ctx.obj.app), outcome=outcome)


def _found(ctx: click.Context, run_id: str) -> Run:
    run = Runs(runtime_of(ctx.obj.app).store).find(run_id)
    if run is None:
        raise click.ClickException(f"no replay {run_id!r} is kept; `celery reliable dlq runs` lists them.")
    if run.is_over:
        raise click.ClickException(f"replay {run.id} has ended ({run.state}): begin a new one.")
    return run
