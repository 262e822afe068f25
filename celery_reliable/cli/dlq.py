"""Let an operator list, show, replay, discard and count dead letters.

Exit codes: 0 done, 1 something was refused, not found or failed, 2 wrong usage.
"""

from __future__ import annotations

import getpass
import itertools
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError, OperationalError

from celery_reliable import internals
from celery_reliable.cli import progress, screens
from celery_reliable.cli.options import STATUSES, filter_of, filter_options, is_narrowed, json_list, json_object, rate
from celery_reliable.dead_letters import DeadLetter, DeadLetters, Filter, Report, Step, arguments_of
from celery_reliable.errors import IncompatiblePayload, ReliableError, ReplayRefused
from celery_reliable.payloads import VERSION_HEADER, Envelope, RawMessage
from celery_reliable.runtime import runtime_of
from celery_reliable.task import ReliableTask, publish_envelope

if TYPE_CHECKING:
    from celery import Celery

_GO_ON: Final = "Nothing is lost: run the same command again to go on."
_IDS_SHOWN: Final = 5

json_option = click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output, nothing else.")


@click.group()
def dlq() -> None:
    """List, show, replay and discard dead letters."""


@dlq.command("list")
@filter_options(status="open")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most so many; 0 = all.")
@json_option
@click.pass_context
def list_letters(ctx: click.Context, /, *, limit: int, as_json: bool, **given: Any) -> None:
    """List dead letters, newest first."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = letters.search(filter_of(given, now=letters.now()))
        if as_json:
            for letter in itertools.islice(found, limit or None):
                screens.write_json(screens.as_record(letter))
            return
        page = list(itertools.islice(found, limit + 1 if limit else None))
        more = bool(limit) and len(page) > limit
        screens.show_list(screens.console_for(ctx), page[: limit or None], now=letters.now(), more=more)


@dlq.command()
@click.argument("letter_id", metavar="ID")
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, letter_id: str, as_json: bool) -> None:
    """Show one dead letter: ID is a letter or task id, or its beginning."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        letter = _only(letters, letter_id)
        if as_json:
            screens.write_json(screens.as_record(letter))
            return
        screens.show_letter(screens.console_for(ctx), letter, now=letters.now())


@dlq.command()
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Lines of each table.")
@json_option
@click.pass_context
def stats(ctx: click.Context, /, *, limit: int, as_json: bool) -> None:
    """Count dead letters by reason, task, queue and group."""
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = letters.stats()
        if as_json:
            screens.write_json(screens.stats_record(found))
            return
        screens.show_stats(screens.console_for(ctx), found, now=letters.now(), limit=limit)


@dlq.command()
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@filter_options(status="open")
@click.option("--all", "everything", is_flag=True, help="All open letters: needed when nothing else chooses.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, newest first.")
@click.option("--rate", "per_second", type=rate, metavar="RATE", help="At most 10/s, 100/m, 1000/h.")
@click.option("--args", "new_args", type=json_list, metavar="JSON", help="Change ONE letter's arguments, '[1, 2]'.")
@click.option("--kwargs", "new_kwargs", type=json_object, metavar="JSON", help="Likewise, '{\"amount\": 1}'.")
@click.option("--force", is_flag=True, help="Also calls that this app's code could not run, or read.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    letter_ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    per_second: float | None,
    new_args: list[Any] | None,
    new_kwargs: dict[str, Any] | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send dead letters back to their queues, each under a new task id.

    A replay that was cut off is finished by running it again. With --args or --kwargs one letter is changed first; the
    original is kept with it.
    """
    _refuse_unnarrowed(letter_ids, given, everything=everything)
    edit = {"args": new_args, "kwargs": new_kwargs} if new_args is not None or new_kwargs is not None else {}
    if edit and (len(letter_ids) != 1 or dry_run):
        raise click.UsageError("--args and --kwargs change one letter: name it by its ID, without --dry-run.")
    outcome = progress.Outcome(ctx, as_json=as_json, dry_run=dry_run)
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        wanted = _wanted(letters, letter_ids, given)
        if edit:
            step = _replay_edited(letters, wanted.ids[0], force=force, **edit)
            outcome.note(step)
            report = Report.of([step])
        else:
            with outcome.shown():
                report = letters.replay_many(
                    wanted,
                    who=_who(),
                    rate=per_second,
                    dry_run=dry_run,
                    limit=limit,
                    force=force,
                    on_progress=outcome.note,
                )
    outcome.report(report)
    if report.refused:
        ctx.exit(1)


@dlq.command()
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@filter_options(status="dead")
@click.option("--all", "everything", is_flag=True, help="All dead letters: needed when nothing else chooses.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, newest first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@click.pass_context
def discard(
    ctx: click.Context,
    /,
    *,
    letter_ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Drop dead letters for good; their keys may be submitted again."""
    _refuse_unnarrowed(letter_ids, given, everything=everything)
    with friendly_errors():
        letters = letters_of(ctx.obj.app)
        found = letters.search(_wanted(letters, letter_ids, given))
        chosen = [(letter.id, letter.task) for letter in itertools.islice(found, limit)]
        if chosen and not (yes or dry_run):
            _confirm_discard(len(chosen))
        dropped = 0
        for letter_id, task in chosen:
            gone = not dry_run and letters.discard(letter_id, who=_who())
            dropped += gone
            if as_json:
                screens.write_json({"letter_id": letter_id, "task": task, "discarded": gone})
    if not as_json:
        word, number = ("Would discard", len(chosen)) if dry_run else ("Discarded", dropped)
        click.echo(f"{word} {screens.count_of(number)}.")


# --- steps


def letters_of(app: Celery) -> DeadLetters:
    """Return the dead letters of an app, its task modules imported so that its tasks are known."""
    app.loader.import_default_modules()
    return known_letters_of(app)


def known_letters_of(app: Celery) -> DeadLetters:
    """Return the dead letters of an app whose task modules are imported already."""
    runtime = runtime_of(app)
    return DeadLetters(
        runtime.store,
        events=runtime.events,
        publish=partial(_publish, app),
        publish_raw=partial(_publish_raw, app),
        objection=partial(_objection, app),
        fingerprint=partial(_fingerprint, app),
    )


def _publish(app: Celery, envelope: Envelope) -> None:
    """Publish one call, saying of which letter it could not be done when the call itself is at fault."""
    try:
        publish_envelope(app, envelope)
    except (EncodeError, DecodeError, ContentDisallowed, TypeError, ValueError) as exc:
        raise ReliableError(
            f"task {envelope.task} as {envelope.task_id} cannot be published: {exc!r}. Its letter stays replaying: "
            "discard it, or leave it out with --status dead."
        ) from exc


def _publish_raw(app: Celery, raw: RawMessage) -> None:
    """Put a message back into its queue as it was."""
    with app.connection_for_write() as connection:
        try:
            connection.connect()
            internals.put_back(connection.default_channel, raw, headers=raw.headers)
        except internals.away() as exc:
            raise OperationalError(str(exc)) from exc


def _objection(app: Celery, envelope: Envelope) -> str:
    """Say why this app's code could not run a call; "" when it could."""
    task: Any = app.tasks.get(envelope.task)  # Any: celery-types does not know `__header__`
    if task is None:
        return "no such task is registered here (see `imports` and `include`)"
    found = arguments_of(envelope)
    if found is None:
        return ""
    try:
        if not isinstance(task, ReliableTask):
            task.typing and task.__header__(*found[0], **found[1])
        elif task.checks_arguments:
            task.check_arguments(*found, version=_version_of(envelope))
    except (TypeError, IncompatiblePayload) as exc:
        return f"the arguments do not fit it ({exc})"
    return ""


def _fingerprint(app: Celery, envelope: Envelope) -> str:
    """Return the fingerprint of an edited call, so that its key compares what will run."""
    task, found = app.tasks.get(envelope.task), arguments_of(envelope)
    if not isinstance(task, ReliableTask) or found is None:
        return ""
    try:
        return task.fingerprint_of(task.bound(*found, version=_version_of(envelope)))
    except (TypeError, ReliableError):  # a forced misfit: nothing to compare
        return ""


def _version_of(envelope: Envelope) -> int:
    return (envelope.options.get("headers") or {}).get(VERSION_HEADER) or 1


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn what may go wrong for an operator into one line and exit code 1."""
    try:
        yield
    except ReliableError as exc:
        raise click.ClickException(screens.printable(str(exc))) from exc
    except OperationalError as exc:
        raise click.ClickException(f"the broker is away or refused: {screens.printable(str(exc))}. {_GO_ON}") from exc
    except KeyboardInterrupt:
        click.echo(f"\nStopped. {_GO_ON}", err=True)
        raise click.Abort from None


def _only(letters: DeadLetters, start: str) -> DeadLetter:
    found = letters.find(start)
    if not found:
        raise click.ClickException(
            f"no dead letter with an id or task id that begins with {start!r}: it was discarded or dropped, or never was."
        )
    if len(found) > 1:
        some = ", ".join(letter.id for letter in found[:_IDS_SHOWN])
        raise click.ClickException(f"{start!r} fits {len(found)} dead letters ({some} ...): give more of the id.")
    return found[0]


def _wanted(letters: DeadLetters, letter_ids: Sequence[str], given: Mapping[str, Any]) -> Filter:
    wanted = filter_of(given, now=letters.now())
    if not letter_ids:
        return wanted
    # Named letters are meant whatever their status: one replayed already must say so, not be passed over.
    return replace(wanted, ids=tuple(_only(letters, start).id for start in letter_ids), statuses=STATUSES["all"])


def _refuse_unnarrowed(letter_ids: Sequence[str], given: Mapping[str, Any], *, everything: bool) -> None:
    if not letter_ids and not everything and not is_narrowed(given):
        raise click.UsageError("say which letters: IDs, a filter (--task, --reason, --error, --group ...), or --all.")


def _confirm_discard(number: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("discard asks first, and nobody is there to answer: add --yes.")
    letters = screens.count_of(number)
    click.confirm(f"Discard {letters} for good? The calls are gone then, and their keys free", abort=True, err=True)


def _replay_edited(letters: DeadLetters, letter_id: str, **options: Any) -> Step:
    letter = letters.show(letter_id)
    task = letter.task if letter else ""
    try:
        return Step(letter_id, task, 1, 1, new_id=letters.replay(letter_id, who=_who(), **options))
    except ReplayRefused as exc:
        return Step(letter_id, task, 1, 1, refused=exc)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a passwd entry for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
