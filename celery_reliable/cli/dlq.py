"""Let an operator list, show, replay, discard and count dead letters.

Exit codes: 0 done, 1 something was refused, not found or failed, 2 wrong usage.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from celery_reliable.app_letters import letters_of, seen_by
from celery_reliable.cli import progress, screens
from celery_reliable.cli.dlq_groups import groups, silence, unsilence
from celery_reliable.cli.dlq_runs import cancel, pause, resume, runs, work
from celery_reliable.cli.letters import friendly_errors, only, who
from celery_reliable.cli.options import (
    STATUSES,
    filter_of,
    filter_options,
    is_narrowed,
    json_list,
    json_object,
    json_option,
    rate,
    share,
)
from celery_reliable.dead_letters import DeadLetters, Filter
from celery_reliable.dead_letters.outgoing import Change
from celery_reliable.dead_letters.runs import Plan
from celery_reliable.runtime import runtime_of


@click.group()
def dlq() -> None:
    """List, show, replay and discard dead letters."""


@dlq.command("list")
@filter_options(status="open")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most so many; 0 = all.")
@json_option
@click.pass_context
def list_letters(ctx: click.Context, /, *, limit: int, as_json: bool, **given: Any) -> None:
    """List dead letters, newest first."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = map(seen_by(ctx.obj.app), letters.search(filter_of(given, now=letters.now())))
        if as_json:
            for letter in itertools.islice(found, limit or None):
                screens.write_json(screens.as_record(letter))
            return
        page = list(itertools.islice(found, limit + 1 if limit else None))
        more = bool(limit) and len(page) > limit
        screens.show_list(screens.console_for(ctx), page[: limit or None], now=letters.now(), more=more)


@dlq.command()
@click.argument("letter_id", metavar="ID")
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, letter_id: str, as_json: bool) -> None:
    """Show one dead letter: ID is a letter or task id, or its beginning."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        letter = seen_by(ctx.obj.app)(only(letters, letter_id))
        link = runtime_of(ctx.obj.app).settings.letter_link(letter.id)
        if as_json:
            screens.write_json({**screens.as_record(letter), "link": link})
            return
        screens.show_letter(screens.console_for(ctx), letter, now=letters.now(), link=link)


@dlq.command()
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Lines of each table.")
@json_option
@click.pass_context
def stats(ctx: click.Context, /, *, limit: int, as_json: bool) -> None:
    """Count dead letters by reason, task, queue and group."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = letters.stats()
        if as_json:
            screens.write_json(screens.stats_record(found))
            return
        screens.show_stats(screens.console_for(ctx), found, now=letters.now(), limit=limit)


@dlq.command()
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@filter_options(status="open")
@click.option("--all", "everything", is_flag=True, help="All open letters: needed when nothing else chooses.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, newest first.")
@click.option("--rate", "per_second", type=rate, metavar="RATE", help="At most 10/s, 100/m, 1000/h.")
@click.option(
    "--canary", type=click.IntRange(min=0), default=0, metavar="N", help="Send N first, the rest when they did well."
)
@click.option(
    "--max-failures", type=share, default="5%", show_default=True, metavar="SHARE", help="Stop when more die again: 5%."
)
@click.option("--to-queue", metavar="NAME", help="Send to another queue.")
@click.option("--to-task", metavar="NAME", help="Send as a call of another task: the old one was renamed.")
@click.option("--args", "new_args", type=json_list, metavar="JSON", help="Change ONE letter's arguments, '[1, 2]'.")
@click.option("--kwargs", "new_kwargs", type=json_object, metavar="JSON", help="Likewise, '{\"amount\": 1}'.")
@click.option("--force", is_flag=True, help="Also calls that this app's code could not run, or read, or that loop.")
@click.option(
    "--sign", is_flag=True, help="Also calls that nobody is known to have signed: you say where they come from."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    letter_ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    per_second: float | None,
    canary: int,
    max_failures: float,
    to_queue: str | None,
    to_task: str | None,
    new_args: list[Any] | None,
    new_kwargs: dict[str, Any] | None,
    force: bool,
    sign: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send dead letters back to their queues, each under a new task id.

    A replay is a run with a record of its own: see `dlq runs`, `pause`, `resume`, `cancel`. One that was cut off is finished
    by `resume`, or by running the command again. What is changed (--args, --kwargs, --to-queue, --to-task) keeps the
    original with the letter.
    """
    _refuse_unnarrowed(letter_ids, given, everything=everything)
    change = Change(args=new_args, kwargs=new_kwargs, task=to_task, queue=to_queue)
    if (new_args is not None or new_kwargs is not None) and len(letter_ids) != 1:
        raise click.UsageError("--args and --kwargs change one letter: name it by its ID.")
    outcome = progress.Outcome(ctx, as_json=as_json, dry_run=dry_run)
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        plan = Plan(
            wanted=_wanted(letters, letter_ids, given),
            change=change,
            rate=per_second,
            canary=canary,
            max_failures=max_failures,
            limit=limit,
            force=force,
            sign=sign,
        )
        work(ctx, plan, letters=letters, outcome=outcome, dry_run=dry_run)


@dlq.command()
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@filter_options(status="dead")
@click.option("--all", "everything", is_flag=True, help="All dead letters: needed when nothing else chooses.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, newest first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@click.pass_context
def discard(
    ctx: click.Context,
    /,
    *,
    letter_ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Drop dead letters for good; their keys may be submitted again."""
    _refuse_unnarrowed(letter_ids, given, everything=everything)
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = letters.search(_wanted(letters, letter_ids, given))
        chosen = [(letter.id, letter.task) for letter in itertools.islice(found, limit)]
        if chosen and not (yes or dry_run):
            _confirm_discard(len(chosen))
        dropped = 0
        for letter_id, task in chosen:
            gone = not dry_run and letters.discard(letter_id, who=who())
            dropped += gone
            if as_json:
                screens.write_json({"letter_id": letter_id, "task": task, "discarded": gone})
    if not as_json:
        word, number = ("Would discard", len(chosen)) if dry_run else ("Discarded", dropped)
        click.echo(f"{word} {screens.count_of(number)}.")


# --- steps


def _wanted(letters: DeadLetters, letter_ids: Sequence[str], given: Mapping[str, Any]) -> Filter:
    wanted = filter_of(given, now=letters.now())
    if not letter_ids:
        return wanted
    # Named letters are meant whatever their status: one replayed already must say so, not be passed over.
    return replace(wanted, ids=tuple(only(letters, start).id for start in letter_ids), statuses=STATUSES["all"])


def _refuse_unnarrowed(letter_ids: Sequence[str], given: Mapping[str, Any], *, everything: bool) -> None:
    if not letter_ids and not everything and not is_narrowed(given):
        raise click.UsageError("say which letters: IDs, a filter (--task, --reason, --error, --group ...), or --all.")


def _confirm_discard(number: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("discard asks first, and nobody is there to answer: add --yes.")
    letters = screens.count_of(number)
    click.confirm(f"Discard {letters} for good? The calls are gone then, and their keys free", abort=True, err=True)


for _command in (groups, silence, unsilence, runs, pause, resume, cancel):
    dlq.add_command(_command)
