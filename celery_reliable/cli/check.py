"""Let an operator, or CI, ask what is wrong with a configuration.

Exit codes: 0 no error was found (warnings apart), 1 an error was found or a file could not be read, 2 wrong usage.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from celery_reliable.checks import (
    Budget,
    Finding,
    ManifestError,
    Supervised,
    budget_of,
    clock_findings,
    fit,
    read_manifest,
    retention_findings,
    size_findings,
)
from celery_reliable.cli.screens import printable, write_json
from celery_reliable.errors import ReliableError


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
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output, nothing else.")
@click.pass_context
def check(
    ctx: click.Context,
    /,
    *,
    grace: float | None,
    manifests: tuple[Path, ...],
    containers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what is wrong with this app.

    What its schedule does at night, what it keeps for ever, what its broker refuses, and whether a stop fits into the
    supervisor's patience.
    """
    try:
        budget = budget_of(ctx.obj.app)
        clocks = clock_findings(ctx.obj.app, now=datetime.now().astimezone())
        kept = [*retention_findings(ctx.obj.app), *size_findings(ctx.obj.app)]
        found = [*_of_grace(budget, grace), *_of_manifests(budget, manifests, containers), *clocks, *kept]
    except (ManifestError, ReliableError) as exc:
        raise click.ClickException(printable(str(exc))) from exc
    if not as_json:
        click.echo(budget)
    for finding in found:
        _show(finding, as_json=as_json)
    if any(finding.severity == "error" for finding in found):
        ctx.exit(1)


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


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        write_json(asdict(finding))
        return
    click.echo(f"{finding.severity} {finding.code}: {printable(finding.message)}")
