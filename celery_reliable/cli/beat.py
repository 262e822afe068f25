"""Let an operator see which beat leads and what each entry does, and run an entry now.

Exit codes: 0 done, 1 not found, refused or not answered, 2 wrong usage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_reliable.beat.leadership import leader_and_members
from celery_reliable.beat.requests import Request, Requests
from celery_reliable.cli import beat_screens, screens
from celery_reliable.cli.options import json_option
from celery_reliable.errors import ReliableError
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import SHELF
from celery_reliable.slots.reasons import reasons
from celery_reliable.slots.records import SlotRecord
from celery_reliable.slots.skips import SHELF as SKIPS
from celery_reliable.slots.skips import by_entry
from celery_reliable.stores.base import Store
from celery_reliable.stores.notes import Note, every

_POLL = 0.2  # seconds


@click.group(invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Entries too that are disabled or gone.")
@json_option
@click.pass_context
def beat(ctx: click.Context, /, *, everything: bool, as_json: bool) -> None:
    """Show which beat leads, and all entries with their slots. See also `why` and `run`."""
    if ctx.invoked_subcommand:
        return
    with screens.in_one_line(ReliableError):
        store = runtime_of(ctx.obj.app).store
        fleet = beat_screens.Fleet(*leader_and_members(store.notes))
        skips = by_entry(every(store.notes, SKIPS))
        known = ((name, one.with_skips(skips.get(name, ()))) for name, one in _records(every(store.notes, SHELF)))
        found = {name: one for name, one in known if everything or not one.absent}
        if as_json:
            screens.write_json({"kind": "fleet", **fleet.as_record()})
            for name, one in sorted(found.items()):
                screens.write_json({"kind": "entry", **_entry(name, one)})
            return
        beat_screens.show_entries(screens.console_for(ctx), fleet, found, now=store.now())


@beat.command()
@click.argument("entry", metavar="ENTRY")
@json_option
@click.pass_context
def why(ctx: click.Context, /, *, entry: str, as_json: bool) -> None:
    """Say why an entry did not run, and what became of its last slots."""
    with screens.in_one_line(ReliableError):
        store = runtime_of(ctx.obj.app).store
        record = _record(store, entry)
        led = leader_and_members(store.notes)[0] is not None
        found = list(reasons(record, led=led, now=store.now()))
        if as_json:
            screens.write_json({**_entry(entry, record), "reasons": found})
            return
        beat_screens.show_why(screens.console_for(ctx), entry, record, found, now=store.now())


@beat.command()
@click.argument("entry", metavar="ENTRY")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the beat that leads.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, *, entry: str, timeout: float, as_json: bool) -> None:
    """Run an entry now, as a job of its own: its slots go on."""
    with screens.in_one_line(ReliableError):
        answer = _answer(Requests(runtime_of(ctx.obj.app).store.notes), entry, timeout=timeout)
    if as_json:
        screens.write_json({"entry": entry, "task_id": answer.task_id, "sent": answer.sent, "error": answer.error})
    elif answer.sent:
        click.echo(f"Sent {entry} as task {answer.task_id}.")
    if not answer.sent:
        if not as_json:
            click.echo(f"Error: {screens.printable(answer.error)}", err=True)
        ctx.exit(1)


def _answer(requests: Requests, entry: str, *, timeout: float) -> Request:
    """Ask the beat that leads; without an answer the request is taken back."""
    request = requests.ask(entry)
    deadline = time.monotonic() + timeout
    while not (found := requests.read(request)).sent and not found.error:
        if time.monotonic() > deadline:
            requests.withdraw(request)
            msg = f"no beat answered within {timeout:g} s; is one running? The request was taken back"
            raise ReliableError(msg)
        time.sleep(_POLL)
    requests.withdraw(request)
    return found


def _record(store: Store, entry: str) -> SlotRecord:
    for _, record in _records(store.notes.read(SHELF, [entry])):
        return record.with_skips(by_entry(store.notes.read(SKIPS, [entry])).get(entry, ()))
    msg = f"no beat has seen an entry {entry!r}; `celery reliable beat --all` lists those that were seen"
    raise ReliableError(msg)


def _records(notes: Mapping[str, Note]) -> Iterator[tuple[str, SlotRecord]]:
    for name, note in notes.items():
        try:
            yield name, SlotRecord.from_bytes(note.value)
        except ValueError:
            continue


def _entry(name: str, record: SlotRecord) -> dict[str, Any]:
    return {"entry": name, **asdict(record), "history": [passed._asdict() for passed in record.history]}
