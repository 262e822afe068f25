"""Show dead letters to people on a terminal of any width, and to programs as JSON lines."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from celery_reliable.dead_letters import DeadLetter, Group, Replay, Report, Stats, Step

_SHORT_ID: Final = 8
_TASK_WIDTH: Final = 30
_NARROW_TASK_WIDTH: Final = 22
_LEAST_ERROR_WIDTH: Final = 12
_REASON_FROM: Final = 70  # columns of the terminal
_TRIES_FROM: Final = 90
_QUEUE_FROM: Final = 120
_PIPED_WIDTH: Final = 160
_GAP: Final = 2
_BYTES_SHOWN: Final = 200
_NUMBERS: Final = frozenset({"AGE", "TRIES", "COUNT", "FIRST", "LAST"})
_AGES: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_REASON_STYLES: Final[Mapping[str, str]] = {"poison": "red", "time_limit": "red", "lost": "red", "exhausted": "yellow"}


# --- writing


def console_for(ctx: click.Context, *, stderr: bool = False) -> Console:
    """Return a console that writes no colour when told so or when nobody looks, and never fails on a character."""
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    plain = not stream.isatty() or bool(getattr(ctx.obj, "no_color", False))
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    return Console(file=stream, color_system=None if plain else "auto", highlight=False, markup=False, width=width)


def write_json(record: Mapping[str, Any]) -> None:
    """Write one JSON line."""
    click.echo(json.dumps(record, default=str))


def show_records(
    ctx: click.Context,
    records: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    titles: Sequence[str],
    row: Callable[[Mapping[str, Any]], Sequence[str | Text]],
    nothing: str,
) -> None:
    """Show records as JSON lines, or as a table in which each is a ``row``, or say that there is ``nothing``."""
    if as_json:
        for record in records:
            write_json(record)
        return
    console = console_for(ctx)
    console.print(table(console, titles, [row(record) for record in records]) if records else nothing)


def printable(text: str) -> str:
    """Make control characters visible: an error's text must not drive the operator's terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


@contextmanager
def in_one_line(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors into one line for the operator, and exit code 1."""
    try:
        yield
    except errors as exc:
        raise click.ClickException(printable(str(exc))) from exc


# --- one letter in words


def as_record(letter: DeadLetter) -> dict[str, Any]:
    """Return everything about a letter, its arguments decoded (null when they are binary)."""
    args, kwargs = letter.arguments() or (None, None)
    return {**asdict(letter), "status": letter.status, "args": args, "kwargs": kwargs, "call": letter.call()}


def stats_record(stats: Stats) -> dict[str, Any]:
    """Return the counts and groups, without the sample letters."""
    groups = [
        {
            "fingerprint": group.fingerprint,
            "count": group.count,
            "tasks": group.tasks,
            "first": group.first,
            "last": group.last,
            "error_type": group.sample.error_type,
            "error_message": group.sample.error_message,
            "sample": group.sample.id,
        }
        for group in stats.groups
    ]
    counts = {"statuses": stats.statuses, "reasons": stats.reasons, "tasks": stats.tasks, "queues": stats.queues}
    return {**stats.store, **counts, "groups": groups}


def step_record(step: Step, *, dry_run: bool) -> dict[str, Any]:
    """Return what happened to one letter of a replay."""
    outcome = "refused" if step.refused else "ready" if dry_run else "replayed"
    record = {"letter_id": step.letter_id, "task": step.task, "outcome": outcome, "new_id": step.new_id or None}
    return {**record, "reason": step.refused.reason, "message": str(step.refused)} if step.refused else record


def age(seconds: float) -> str:
    """Return an age in its largest unit: ``3h``."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return "0s"


def moment(when: float, *, now: float) -> str:
    """Return a time in UTC with its age."""
    return f"{datetime.fromtimestamp(when, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC, {age(now - when)} ago"


def error_line(letter: DeadLetter) -> str:
    """Return type and first line of the message."""
    first = letter.error_message.strip().partition("\n")[0]
    kind = letter.error_type.rpartition(".")[2]
    return printable(f"{kind}: {first}" if kind and first else kind or first)


def tail(text: str, *, width: int) -> str:
    """Cut a dotted name at its front: its end tells more."""
    return text if len(text) <= width else f"…{text[-(width - 1) :]}"


def count_of(number: int, one: str = "dead letter", many: str = "") -> str:
    """Return ``1 dead letter``, ``1,204 dead letters``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def command_line(*words: str) -> str:
    """Return a command the operator can paste, with the ``-A`` and other options of this call."""
    context = click.get_current_context(silent=True)
    program = context.find_root().info_name if context else None
    if program and program.endswith(" reliable"):  # manage.py reliable
        return f"{program} {shlex.join(['dlq', *words])}"
    before = sys.argv[1 : sys.argv.index("reliable")] if "reliable" in sys.argv else []
    return shlex.join(["celery", *before, "reliable", "dlq", *words])


# --- screens


def show_list(console: Console, letters: Sequence[DeadLetter], *, now: float, more: bool) -> None:
    """Show letters, newest first, one a line."""
    if not letters:
        console.print("No dead letters match.")
        return
    titles = ["ID", "AGE", "TASK", *(["REASON"] if console.width >= _REASON_FROM else []), "ERROR"]
    titles += ["TRIES"] if console.width >= _TRIES_FROM else []
    titles += ["QUEUE"] if console.width >= _QUEUE_FROM else []
    task_width = _TASK_WIDTH if console.width >= _TRIES_FROM else _NARROW_TASK_WIDTH
    rows = [_row(letter, now=now, task_width=task_width) for letter in letters]
    console.print(table(console, titles, [[row[title] for title in titles] for row in rows]))
    console.print(f"\n{count_of(len(letters))}{' shown, more match: --limit 0 shows all' if more else ''}.")
    console.print(f"Look at one: {command_line('show', letters[0].id[:_SHORT_ID])}", soft_wrap=True)


def show_letter(console: Console, letter: DeadLetter, *, now: float, link: str = "") -> None:
    """Show everything an operator asks about one letter, and what can be done. ``link`` is the address of its page."""
    console.print(Text(f"Dead letter {letter.id}", style="bold"), Text(f"({letter.status})"), end="\n\n")
    facts = _facts_table()
    for name, value in _facts(letter, now=now):
        facts.add_row(name, Text(printable(value), overflow="fold"))
    if link:
        facts.add_row("page", Text(link, overflow="fold"))
    console.print(facts)
    if letter.traceback:
        console.print()
        console.print(Text(printable(letter.traceback.rstrip())), soft_wrap=True)
    console.print()
    for line in _next_steps(letter):
        console.print(Text(line), soft_wrap=True)


def show_stats(console: Console, stats: Stats, *, now: float, limit: int) -> None:
    """Show how many letters there are, of what kind, and the largest groups."""
    kept = stats.store.get("kept", 0)
    waiting = stats.statuses.get("dead", 0) + stats.statuses.get("replaying", 0)
    console.print(f"{count_of(kept)} kept, {waiting:,} open in {count_of(len(stats.groups), 'group')}.")
    since = ", ".join(f"{stats.store.get(name, 0):,} {name}" for name in ("buried", "replayed", "discarded", "trimmed"))
    console.print(f"Since ever: {since}.")
    if not waiting:
        return
    for title, counts in (("REASON", stats.reasons), ("TASK", stats.tasks), ("QUEUE", stats.queues)):
        console.print()
        console.print(_counts_table(console, title, counts, limit=limit))
    console.print()
    console.print(_groups_table(console, stats.groups[:limit], now=now))
    first = stats.groups[0].fingerprint
    console.print(f"\nA group's letters: {command_line('list', '--group', first)}", soft_wrap=True)


def show_report(console: Console, report: Report, *, refused: Mapping[str, Sequence[Step]], dry_run: bool) -> None:
    """Show how a replay ended; ``refused`` has, by reason, the first letters that were refused."""
    if not report.total:
        console.print("No dead letters match: nothing to replay.")
        return
    console.print(f"{'Would replay' if dry_run else 'Replayed'} {report.replayed:,} of {count_of(report.total)}.")
    for reason, steps in refused.items():
        count = report.refused[reason]
        console.print(f"\nRefused {count:,} as {reason}: {printable(str(steps[0].refused))}", soft_wrap=True)
        if count > 1:
            others = ", ".join(step.letter_id[:_SHORT_ID] for step in steps[1:])
            more = f" and {count - len(steps):,} more" if count > len(steps) else ""
            console.print(f"Likewise {others}{more}.", soft_wrap=True)


def breaker_line(name: str, state: str, *, letters: int) -> Text:
    """Say what a breaker is, and what that would mean for letters that are sent back."""
    waits = "" if state == "closed" else ": what is sent waits until it lets calls pass"
    return Text(
        f"Breaker {printable(name)} of {count_of(letters)} is {state}{waits}.", style="" if state == "closed" else "red"
    )


# --- parts of screens


def table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Lay rows out so that every column is whole, except ERROR, which gets the width that is left."""
    texts = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(row[column].cell_len for row in texts)) for column, title in enumerate(titles)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for title, width in zip(titles, widths, strict=True):
        if title == "ERROR":
            left = console.width - (sum(widths) - width) - _GAP * (len(titles) - 1)
            table.add_column(title, width=max(min(width, left), _LEAST_ERROR_WIDTH), no_wrap=True, overflow="ellipsis")
        else:
            justify: Literal["left", "right"] = "right" if title in _NUMBERS else "left"
            table.add_column(title, width=width, no_wrap=True, overflow="ellipsis", justify=justify)
    for row in texts:
        table.add_row(*row)
    return table


def _row(letter: DeadLetter, *, now: float, task_width: int) -> dict[str, str | Text]:
    status = "" if letter.status == "dead" else f" ({letter.status})"
    return {
        "ID": letter.id[:_SHORT_ID],
        "AGE": age(now - letter.last_failure),
        "TASK": tail(printable(letter.task), width=task_width) or "?",
        "REASON": Text(letter.reason + status, style=_REASON_STYLES.get(letter.reason, "")),
        "ERROR": error_line(letter),
        "TRIES": f"{letter.attempts}",
        "QUEUE": printable(letter.queue),
    }


def _facts_table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _facts(letter: DeadLetter, *, now: float) -> Iterable[tuple[str, str]]:
    yield "call", f"{letter.task or '?'}{letter.call()}"
    yield "reason", f"{letter.reason} after {count_of(letter.attempts, 'attempt')}{_deliveries(letter)}"
    yield "error", "\n".join(text for text in (letter.error_type, letter.error_message) if text)
    yield "failed", moment(letter.last_failure, now=now)
    if letter.first_failure < letter.last_failure:
        yield "first", moment(letter.first_failure, now=now)
    if letter.task_id:
        yield "task id", letter.task_id
    yield "queue", letter.queue
    if letter.key:
        yield "key", f"{letter.key} ({letter.kind}, life {letter.life})"
    if letter.tenant:
        yield "tenant", letter.tenant
    if letter.worker.host:
        worker = letter.worker
        yield "worker", f"{worker.host} pid {worker.pid}, celery {worker.celery}, celery_reliable {worker.version}"
    yield "group", letter.error_fingerprint
    if letter.raw is not None:
        yield "message", _beginning(letter.raw.content)
    yield from (("evidence", text) for text in letter.evidence)
    yield from (("kept apart", reference) for reference in letter.blobs)
    if letter.loops:
        yield "loops", f"died again after {count_of(letter.loops, 'replay')}"
    yield from (("replay", _replay_words(entry, now=now)) for entry in letter.replays)
    if letter.original is not None:
        yield "edited", "the call above was edited; --json shows the original"


def _beginning(content: bytes) -> str:
    """Show the first bytes of a message that could not be read; --json has all of them."""
    more = f" ... ({len(content) - _BYTES_SHOWN:,} more bytes, --json shows all)" if len(content) > _BYTES_SHOWN else ""
    return ascii(content[:_BYTES_SHOWN].decode("latin-1")) + more


def _deliveries(letter: DeadLetter) -> str:
    return f", {count_of(letter.deliveries, 'delivery', 'deliveries')}" if letter.deliveries > 1 else ""


def _replay_words(entry: Replay, *, now: float) -> str:
    state = "" if entry.published else ", begun and not known to be published"
    return f"as {entry.new_id} by {entry.who}, {moment(entry.when, now=now)}{', edited' if entry.edited else ''}{state}"


def _next_steps(letter: DeadLetter) -> Iterable[str]:
    short = letter.id[:_SHORT_ID]
    if letter.status == "replayed":
        return
    if letter.raw is None:
        yield f"Send it back:       {command_line('replay', short)}"
    elif not letter.raw.item:
        yield f"Back as it was:     {command_line('replay', short, '--force')}"
    yield f"Same error:         {command_line('list', '--group', letter.error_fingerprint)}"
    yield f"Drop it for good:   {command_line('discard', short)}"


def _counts_table(console: Console, title: str, counts: Mapping[str, int], *, limit: int) -> Table:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(f"{count:,}", printable(name) or "?") for name, count in ordered[:limit]]
    if len(ordered) > limit:
        rows.append((f"{sum(count for _, count in ordered[limit:]):,}", f"({count_of(len(ordered) - limit, 'other')})"))
    return table(console, ("COUNT", title), rows)


def _groups_table(console: Console, groups: Sequence[Group], *, now: float) -> Table:
    rows = [
        (
            f"{group.count:,}",
            group.fingerprint,
            age(now - group.first),
            age(now - group.last),
            tail(printable(group.tasks[0]), width=_NARROW_TASK_WIDTH)
            + (f" +{len(group.tasks) - 1}" if len(group.tasks) > 1 else ""),
            error_line(group.sample),
        )
        for group in groups
    ]
    return table(console, ("COUNT", "GROUP", "FIRST", "LAST", "TASK", "ERROR"), rows)
