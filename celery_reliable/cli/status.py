"""Show the whole fleet on one screen, once or again and again, without asking any worker.

Exit codes: 0 shown, 1 store or broker is away, 2 wrong usage.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click
from rich.live import Live

from celery_reliable.cli import screens, status_screens
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.fleet import Fleet, QueueSight, look, sight_of

if TYPE_CHECKING:
    from celery import Celery


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
        sight = sight_of(app)
        try:
            if watch and not as_json:
                _watch(ctx, sight, everything=everything, pause=pause)
                return
            _write(ctx, look(app, sight=sight), everything=everything, as_json=as_json)
            while watch:
                time.sleep(pause)
                _write(ctx, look(app, sight=sight), everything=everything, as_json=as_json)
        finally:
            sight.close()


def _write(ctx: click.Context, fleet: Fleet, *, everything: bool, as_json: bool) -> None:
    if as_json:
        screens.write_json(fleet.as_record())
        sys.stdout.flush()
        return
    console = screens.console_for(ctx)
    console.print(status_screens.screen(console, fleet, everything=everything))


def _watch(ctx: click.Context, sight: QueueSight, *, everything: bool, pause: float) -> None:
    console = screens.console_for(ctx)
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            fleet = look(ctx.obj.app, sight=sight)
            live.update(status_screens.screen(console, fleet, everything=everything), refresh=True)
            time.sleep(pause)
