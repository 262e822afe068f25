"""Let CI find the changes that break messages on their way.

Exit codes: 0 compatible (warnings apart), 1 something would break, 2 wrong usage.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from celery_reliable import compat as rules
from celery_reliable.cli.options import json_option
from celery_reliable.cli.screens import console_for, in_one_line, write_json
from celery_reliable.errors import ConfigurationError
from celery_reliable.task import ReliableTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery
    from rich.console import Console


@click.group()
def compat() -> None:
    """Keep task signatures compatible with messages on their way."""


@compat.command()
@click.pass_context
def snapshot(ctx: click.Context, /) -> None:
    """Write the signatures of all tasks to standard output, for a file kept beside the code."""
    with in_one_line(ConfigurationError, OSError):
        click.echo(rules.snapshot(signatures_of(ctx.obj.app)), nl=False)


@compat.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def check(ctx: click.Context, /, *, file: Path, as_json: bool) -> None:
    """Compare the code with a snapshot; exit code 1 when messages on their way would break."""
    with in_one_line(ConfigurationError, OSError):
        before = rules.read_snapshot(file.read_text(), name=str(file))
        changes = rules.compare(before, signatures_of(ctx.obj.app))
    if as_json:
        for change in changes:
            write_json(asdict(change))
    else:
        _show(console_for(ctx), changes, tasks=len(before))
    sys.exit(any(change.severity == "error" for change in changes))


def signatures_of(app: Celery) -> dict[str, rules.TaskSignature]:
    """Return the signatures of the project's own tasks, plain ones too."""
    app.loader.import_default_modules()
    app.finalize()
    own = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    return {name: _signature_of(task) for name, task in own.items()}


def _signature_of(task: Any) -> rules.TaskSignature:  # Any: plain tasks have no signature of their own
    if not isinstance(task, ReliableTask):
        return rules.TaskSignature.of(inspect.signature(task.run))
    task.shape.check(task.payload_version)
    return rules.TaskSignature.of(task.signature_of_run, version=task.payload_version, upgrades=task.shape.steps)


def _show(console: Console, changes: Sequence[rules.Change], *, tasks: int) -> None:
    errors = sum(change.severity == "error" for change in changes)
    if changes:
        console.print(_table(changes))
    verdict = f"{errors} would break messages on their way" if errors else "compatible"
    console.print(
        f"{tasks:,} tasks compared, {len(changes)} {'change' if len(changes) == 1 else 'changes'}: {verdict}."
    )


def _table(changes: Sequence[rules.Change]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("CODE", no_wrap=True)
    for heading in ("TASK", "CHANGE", "REMEDY"):
        table.add_column(heading, overflow="fold")
    for change in changes:
        code = Text(change.code, style="red" if change.severity == "error" else "yellow")
        table.add_row(code, change.task, change.message, change.remedy)
    return table
