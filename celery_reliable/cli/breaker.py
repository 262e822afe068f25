"""Let an operator see the breakers of the fleet, and open or close one by hand.

Exit codes: 0 done, 1 the store could not be asked, 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from celery_reliable.cli import dependencies, screens
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.cli.options import for_option, json_option
from celery_reliable.flow.breaking import CALM, SECOND, Breaker
from celery_reliable.runtime import runtime_of

_STYLES = {"closed": "", "open": "red", "half_open": "yellow", "held_open": "red"}
_TITLES = ["BREAKER", "STATE", "DETAIL", "TASKS"]
_NOTHING = "No breakers: no task has the option breaker, and none was told of a failure."


@click.group()
def breaker() -> None:
    """See which dependencies may be called, and open or close a breaker by hand."""


@breaker.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, /, *, as_json: bool) -> None:
    """List all breakers: those that tasks name, and those about which anything is known."""
    with friendly_errors():
        app = ctx.obj.app
        store = runtime_of(app).store
        tasks = dependencies.by_breaker(app)
        found = {**dict.fromkeys(tasks, CALM), **runtime_of(app).breakers.known()}
        now = store.now()
    records = [_record(name, found[name], tasks.get(name, ()), now=now) for name in sorted(found)]
    screens.show_records(ctx, records, as_json=as_json, titles=_TITLES, row=_row, nothing=_NOTHING)


@breaker.command("open")
@click.argument("name", metavar="NAME")
@for_option("it is probed. Default: until it is closed.")
@click.pass_context
def open_(ctx: click.Context, /, *, name: str, seconds: float | None) -> None:
    """Let nobody call a dependency: its tasks wait."""
    with friendly_errors():
        runtime_of(ctx.obj.app).breakers.open(name, seconds=seconds)
    until = "until it is closed" if seconds is None else f"for {seconds:g} s"
    click.echo(f"{screens.printable(name)} is open {until}: its tasks wait.")


@breaker.command("close")
@click.argument("name", metavar="NAME")
@click.pass_context
def close(ctx: click.Context, /, *, name: str) -> None:
    """Let everybody call a dependency again, and forget its failures."""
    with friendly_errors():
        breakers = runtime_of(ctx.obj.app).breakers
        breakers.close(name)
    within = 1.5 * breakers.policy(name).open_for
    click.echo(f"{screens.printable(name)} is closed: its tasks run, those that wait look again within {within:g} s.")


def _record(name: str, found: Breaker, tasks: list[str] | tuple[()], *, now: int) -> dict[str, Any]:
    return {
        "breaker": name,
        "state": found.phase(now),
        "failures": found.failures,
        "probed_in": max(found.until - now, 0) / SECOND if found.until else None,
        "probes_out": len(found.probes),
        "tasks": sorted(tasks),
    }


def _row(record: Mapping[str, Any]) -> list[str | Text]:
    state = record["state"]
    told = {
        "closed": f"{screens.count_of(record['failures'], 'failure')} in a row" if record["failures"] else "",
        "open": f"probed in {screens.age(record['probed_in'] or 0)}",
        "half_open": screens.count_of(record["probes_out"], "probe") + " out",
        "held_open": "opened by hand",
    }[state]
    tasks = ", ".join(map(screens.printable, record["tasks"]))
    return [screens.printable(record["breaker"]), Text(dependencies.WORDS[state], style=_STYLES[state]), told, tasks]
