"""Show the whole fleet on one screen, once or again and again, without asking any worker.

Exit codes: 0 shown, 1 store or broker is away (not with --watch, which goes on), 2 wrong usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from rich.live import Live

from celery_reliable.cli import screens, status_screens
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.fleet import Fleet, Lookout, look, sight_of

if TYPE_CHECKING:
    from celery import Celery
    from rich.console import Console, RenderableType

_AWAY: Final = "Store or broker are away. Without --watch it is said which."


@click.command()
@click.option("--all", "everything", is_flag=True, help="Every worker and entry, not only what fits a screen.")
@click.option("--watch", is_flag=True, help="Show it again and again, until interrupted.")
@click.option(
    "--every", "pause", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output, one a look.")
@click.pass_context
def status(ctx: click.Context, /, *, everything: bool, watch: bool, pause: float, as_json: bool) -> None:
    """Show workers, queues, beat and dead letters. Nothing is broadcast; workers are seen by their signs of life."""
    app: Celery = ctx.obj.app
    with friendly_errors():
        if watch:
            _watch(ctx, _looks(app, pause=pause), everything=everything, as_json=as_json)
            return
        sight = sight_of(app)
        try:
            _write(ctx, look(app, sight=sight), everything=everything, as_json=as_json)
        finally:
            sight.close()


def _looks(app: Celery, *, pause: float) -> Iterator[Fleet | None]:
    """Look again and again; None while store or broker are away: who watches an outage wants to see its end."""
    lookout = Lookout(app)
    try:
        while True:
            yield lookout.look()
            time.sleep(pause)
    finally:
        lookout.close()


def _watch(ctx: click.Context, looks: Iterator[Fleet | None], *, everything: bool, as_json: bool) -> None:
    """Show every look until Ctrl-C, on a terminal in one place."""
    console = screens.console_for(ctx)
    with suppress(KeyboardInterrupt):
        if as_json or not console.is_terminal:
            for fleet in looks:
                _write(ctx, fleet, everything=everything, as_json=as_json)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for fleet in looks:
                live.update(_screen(console, fleet, everything=everything), refresh=True)


def _write(ctx: click.Context, fleet: Fleet | None, *, everything: bool, as_json: bool) -> None:
    if as_json:
        screens.write_json({"error": _AWAY} if fleet is None else fleet.as_record())
    else:
        console = screens.console_for(ctx)
        console.print(_screen(console, fleet, everything=everything))
    sys.stdout.flush()


def _screen(console: Console, fleet: Fleet | None, *, everything: bool) -> RenderableType:
    return _AWAY if fleet is None else status_screens.screen(console, fleet, everything=everything)
