"""Tell the life of one job: on a terminal, as JSON, or as a page for somebody who has no terminal.

Exit codes: 0 told, 1 nothing is known of it, 2 wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_reliable.cli import explain_screens, screens
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.explaining import Explaining, Outcome
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery


@click.command()
@click.argument("asked", metavar="TASK_ID|KEY")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page instead."
)
@click.pass_context
def explain(ctx: click.Context, /, *, asked: str, as_json: bool, page: Path | None) -> None:
    """Tell what happened to one job: submissions, runs, waits, failures, dead letters, replays, in order."""
    app = ctx.obj.app
    with friendly_errors():
        runtime = runtime_of(app)
        life = Explaining(runtime.store, outcome=lambda task_id: _outcome(app, task_id)).life(asked)
        now = runtime.store.now() / 1e6
    if life is None:
        share = runtime.settings.explain_share
        raise click.ClickException(explain_screens.unknown(asked, share=share))
    link = runtime.settings.letter_link
    links = {letter_id: address for letter_id in life.letters if (address := link(letter_id))}
    if as_json:
        screens.write_json(life.as_record())
    elif page is not None:
        _write(page, explain_screens.page(life, now=now, links=links))
    else:
        explain_screens.show(screens.console_for(ctx), life, now=now, links=links)


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, "utf-8")
    except OSError as exc:
        raise click.ClickException(f"{page}: cannot be written: {exc}; name another file") from exc
    click.echo(f"Written: {page}")


def _outcome(app: Celery, task_id: str) -> Outcome | None:
    """Ask the result backend, if there is one and it answers."""
    try:
        result: Any = app.AsyncResult(task_id)
        state, at = result.state, result.date_done
    except Exception:  # noqa: BLE001  # no backend, or one that is away: the rest is told all the same
        return None
    return None if state == "PENDING" else Outcome(state, at.timestamp() if hasattr(at, "timestamp") else None)
