"""Let an operator see which queues are stopped in the fleet, and stop or start one by hand.

Exit codes: 0 done, 1 the store could not be asked, or the queue has no kill switch, 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from celery_reliable.cli import screens
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.cli.options import for_option, json_option
from celery_reliable.flow.switching import SECOND, Switch
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.flow.switches import Switches

_WORDS = {"running": "running", "stopped": "stopped", "tried": "tried", "held": "stopped by hand"}
_STYLES = {"running": "", "stopped": "red", "tried": "yellow", "held": "red"}
_TITLES = ["QUEUE", "STATE", "DETAIL"]
_NOTHING = "No kill switches: reliable_kill_switches names no queue."


@click.group("kill-switch")
def kill_switch() -> None:
    """See which queues the fleet has stopped consuming, and stop or start one by hand."""


@kill_switch.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, /, *, as_json: bool) -> None:
    """List the queues of reliable_kill_switches."""
    with friendly_errors():
        runtime = runtime_of(ctx.obj.app)
        found = runtime.switches.known() if runtime.switches is not None else {}
        now = runtime.store.now()
    records = [_record(name, found[name], now=now) for name in sorted(found)]
    screens.show_records(ctx, records, as_json=as_json, titles=_TITLES, row=_row, nothing=_NOTHING)


@kill_switch.command("stop")
@click.argument("queue", metavar="QUEUE")
@for_option("one worker tries it. Default: until it is started.")
@click.pass_context
def stop(ctx: click.Context, /, *, queue: str, seconds: float | None) -> None:
    """Let the fleet consume a queue no longer: its messages wait, what runs goes on."""
    with friendly_errors():
        _switches(ctx.obj.app, queue).stop(queue, seconds=seconds)
    until = "until it is started" if seconds is None else f"for {seconds:g} s"
    click.echo(f"{screens.printable(queue)} is stopped {until}: workers see it within a second.")


@kill_switch.command("start")
@click.argument("queue", metavar="QUEUE")
@click.pass_context
def start(ctx: click.Context, /, *, queue: str) -> None:
    """Let the fleet consume a queue again at once, and forget its failures."""
    with friendly_errors():
        _switches(ctx.obj.app, queue).start(queue)
    click.echo(f"{screens.printable(queue)} is started: workers see it within a second.")


def _switches(app: Celery, queue: str) -> Switches:
    """Return the switches, if the queue has one: of another one no worker looks whether it is stopped."""
    switches = runtime_of(app).switches
    if switches is None or queue not in switches.policies:
        known = ", ".join(sorted(switches.policies)) if switches is not None else "none"
        msg = (
            f"expected a queue of reliable_kill_switches ({known}), found {screens.printable(queue)}; correct the name, or "
            f'add it to the setting: {{"{screens.printable(queue)}": {{}}}}'
        )
        raise click.ClickException(msg)
    return switches


def _record(name: str, found: Switch, *, now: int) -> dict[str, Any]:
    phase = found.phase(now)
    return {
        "queue": name,
        "state": phase,
        "tried_in": (found.until - now) / SECOND if phase == "stopped" else None,
        "failed": found.judged[1],
        "runs": sum(found.judged),
    }


def _row(record: Mapping[str, Any]) -> list[str | Text]:
    state = record["state"]
    runs = f"{record['failed']} of {record['runs']} runs failed" if record["runs"] else ""
    told = {
        "running": "",
        "stopped": f"tried in {screens.age(record['tried_in'] or 0)}",
        "tried": "by one worker",
        "held": "until it is started",
    }[state]
    return [
        screens.printable(record["queue"]),
        Text(_WORDS[state], style=_STYLES[state]),
        ", ".join(filter(None, [told, runs])),
    ]
