"""Add ``celery reliable`` to Celery's command line.

Celery imports this module in every ``celery`` process, workers included. So it imports click and our wiring, nothing
else; a sub-command's module comes when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

from celery_reliable.wiring import connect_signals

_COMMANDS: Final[Mapping[str, str]] = {
    "beat": "celery_reliable.cli.beat:beat",
    "breaker": "celery_reliable.cli.breaker:breaker",
    "check": "celery_reliable.cli.check:check",
    "compat": "celery_reliable.cli.compat:compat",
    "dlq": "celery_reliable.cli.dlq:dlq",
    "exporter": "celery_reliable.cli.exporter:exporter",
    "explain": "celery_reliable.cli.explain:explain",
    "kill-switch": "celery_reliable.cli.kill_switch:kill_switch",
    "purge": "celery_reliable.cli.purge:purge",
    "relay": "celery_reliable.cli.relay:relay",
    "schema": "celery_reliable.cli.schema:schema",
    "status": "celery_reliable.cli.status:status",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands without importing them."""
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=LazyGroup)
def reliable() -> None:
    """Look after reliable tasks: what happened to one, what the fleet does, dead letters, findings."""


connect_signals()  # the plug-in is one of the doors of `celery_reliable.wiring`: being imported is all it can do
