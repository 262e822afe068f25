"""Let an operator, or CI, ask what is wrong with a configuration.

Exit codes: 0 no error was found (warnings apart, unless --strict), 1 an error was found or a file could not be read, 2 wrong
usage.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.padding import Padding
from rich.text import Text

from celery_reliable.checks import (
    Budget,
    Finding,
    ManifestError,
    Supervised,
    budget_of,
    fit,
    read_manifest,
    row_findings,
    static_findings,
    worst_first,
)
from celery_reliable.checks.catalogue import link
from celery_reliable.cli.options import json_option
from celery_reliable.cli.screens import console_for, in_one_line, printable, write_json
from celery_reliable.errors import ConfigurationError, ReliableError
from celery_reliable.wiring import install_if_wanted

if TYPE_CHECKING:
    from celery import Celery

_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@click.command()
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="Time between SIGTERM and SIGKILL.")
@click.option(
    "--manifest",
    "manifests",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Read the grace period from a Kubernetes or Compose file, a .service, or a supervisord .conf; repeatable.",
)
@click.option(
    "--container",
    "containers",
    multiple=True,
    metavar="NAME",
    help="A container or service that is a worker although its command does not say so; repeatable.",
)
@click.option("--live", is_flag=True, help="Look at store, broker, workers and beats, too.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    *,
    grace: float | None,
    manifests: tuple[Path, ...],
    containers: tuple[str, ...],
    live: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Say what is dangerous about this app: its settings and tasks, its schedule, its supervisor's patience, its servers.

    Every finding has a code, which the documentation explains.
    """
    app = ctx.obj.app
    app.loader.import_default_modules()
    install_if_wanted(app)
    with in_one_line(ManifestError, ReliableError):
        static = static_findings(app, now=datetime.now().astimezone())
        budget = _budget(app)
        supervisors = (
            [] if budget is None else [*_of_grace(budget, grace), *_of_manifests(budget, manifests, containers)]
        )
        found = [*supervisors, *static, *(_of_servers(app) if live and budget is not None else [])]
    is_used = all(finding.code != "not_wired" for finding in static)
    if not as_json and budget is not None and is_used:
        click.echo(budget)
    for finding in worst_first(found):
        _show(ctx, finding, as_json=as_json)
    if any(finding.severity in ({"error", "warning"} if strict else {"error"}) for finding in found):
        ctx.exit(1)


def _budget(app: Celery) -> Budget | None:
    """Return the budget of a stop; None when the settings are wrong, which is a finding, or when they are not used."""
    try:
        return budget_of(app)
    except ConfigurationError:
        return None


def _of_servers(app: Celery) -> list[Finding]:
    from celery_reliable.checks.live import live_findings  # noqa: PLC0415  # only where servers are looked at

    return [*live_findings(app), *row_findings(app, now=datetime.now().astimezone())]


def _of_grace(budget: Budget, grace: float | None) -> list[Finding]:
    if grace is None:
        return []
    return fit(budget, Supervised(where="--grace", setting="the grace period", grace=grace, is_set=True, unit=" s"))


def _of_manifests(budget: Budget, manifests: tuple[Path, ...], containers: tuple[str, ...]) -> list[Finding]:
    found: list[Finding] = []
    for path in manifests:
        workers = read_manifest(path, named=containers)
        found += [finding for worker in workers for finding in fit(budget, worker)] if workers else [_nobody(path)]
    return found


def _nobody(path: Path) -> Finding:
    return Finding(
        code="no_worker_found",
        severity="error",
        message=(
            f"{path}: no command in it runs `celery worker`, so nothing was checked and a short grace period would pass "
            "unseen. Name the worker's container or service with --container, or leave the file out."
        ),
    )


def _show(ctx: click.Context, finding: Finding, *, as_json: bool) -> None:
    """Write a finding: for programs as JSON, for grep on one line, for people below its name."""
    if as_json:
        write_json({**asdict(finding), "docs": link(finding.code)})
        return
    console, page = console_for(ctx), link(finding.code)
    if not console.is_terminal:
        click.echo(f"{finding.severity} {finding.code}: {printable(finding.message)} ({page})")
        return
    console.print(Text.assemble((finding.severity, _STYLES[finding.severity]), "  ", (finding.code, "bold")))
    words = Text.assemble(printable(finding.message), "\n", (page, "dim"))
    console.print(Padding(words, (0, 0, 1, 2)))
