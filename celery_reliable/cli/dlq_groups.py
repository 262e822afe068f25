"""Turn thousands of letters into a few decisions: groups of one error in one place, and silence for those that are known."""

from __future__ import annotations

from typing import Any

import click

from celery_reliable.app_letters import letters_of
from celery_reliable.cli import dependencies, group_screens, screens
from celery_reliable.cli.letters import friendly_errors, who
from celery_reliable.cli.options import filter_of, filter_options, json_option
from celery_reliable.dead_letters.silences import Silence, Silences, is_silent
from celery_reliable.runtime import runtime_of


@click.command()
@filter_options(status="open")
@click.option("--silenced", is_flag=True, help="The silenced ones too.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def groups(ctx: click.Context, /, *, silenced: bool, limit: int, as_json: bool, **given: Any) -> None:
    """Group dead letters by fingerprint (types and stack of the error): how many, since when, of which releases."""
    with friendly_errors():
        letters, store = letters_of(ctx.obj.app), runtime_of(ctx.obj.app).store
        known = Silences(store.notes).all()
        shown = (lambda _: True) if silenced else (lambda letter: not is_silent(letter, known))
        found = letters.groups(filter_of(given, now=letters.now()), only=shown)
        now = letters.now()
    breakers = [dependencies.of_tasks(ctx.obj.app, group.tasks) for group in found[:limit]]
    if as_json:
        for group, names in zip(found, breakers, strict=False):
            screens.write_json(group_screens.record(group, silences=known, breakers=names))
        return
    hidden = (
        0
        if silenced
        else sum(silence.group not in {group.fingerprint for group in found} for silence in known.values())
    )
    console, more = screens.console_for(ctx), len(found) - limit
    group_screens.show(console, found[:limit], breakers=breakers, more=more, hidden=hidden, now=now)


@click.command()
@click.argument("group", metavar="GROUP")
@click.option(
    "--until", metavar="RELEASE", default="", help="Letters of this reliable_release or a later one speak again."
)
@click.pass_context
def silence(ctx: click.Context, /, *, group: str, until: str) -> None:
    """Leave a group out of groups and alerts: it is known, and somebody is at it. Its letters are kept."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        Silences(runtime_of(ctx.obj.app).store.notes).add(Silence(group, who(), letters.now(), until))
    click.echo(f"{group} is silent{f' until release {until}' if until else ''}.")


@click.command()
@click.argument("group", metavar="GROUP")
@click.pass_context
def unsilence(ctx: click.Context, /, *, group: str) -> None:
    """Let a silenced group speak again."""
    with friendly_errors():
        Silences(runtime_of(ctx.obj.app).store.notes).remove(group)
    click.echo(f"{group} speaks again.")
