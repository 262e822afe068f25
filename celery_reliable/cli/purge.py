"""Empty queues for good: the messages, and what stands behind them in the store.

``celery purge`` takes the messages alone; on Redis the ledger then publishes them again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from celery_reliable import keys
from celery_reliable.cli.letters import friendly_errors
from celery_reliable.keys import HEADER
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import Runtime, runtime_of

if TYPE_CHECKING:
    from celery import Celery

_UNREADABLE: Final = (ValueError, KeyError, TypeError)


@click.command()
@click.option("-Q", "--queues", "names", metavar="NAMES", help="Comma separated; default: all that this app consumes.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(ctx: click.Context, /, *, names: str | None, yes: bool) -> None:
    """Drop the messages that wait in queues, and end their submissions: none of them will run."""
    app = ctx.obj.app
    queues = (
        [name.strip() for name in names.split(",") if name.strip()] if names else list(app.amqp.queues.consume_from)
    )
    if not yes:
        _confirm(queues)
    with friendly_errors():
        for queue in queues:
            click.echo(f"{queue}: {purge_queue(app, queue)} dropped")


def purge_queue(app: Celery, queue: str) -> int:
    """Take every message out of a queue and its lanes, and end its submission as revoked; return how many there were.

    Message by message: one that is taken out and not yet ended when this is cut off is published again by the ledger,
    for the next purge. What workers hold already is not touched.
    """
    runtime, count = runtime_of(app), 0
    lanes = [] if runtime.lanes is None else runtime.lanes.of(queue)
    with app.connection_for_write() as connection:
        for message in chain.from_iterable(_messages(connection, name) for name in (queue, *lanes)):
            count += 1
            if message is not None and not _is_forged(runtime, message):
                _end(runtime, message.headers)
    runtime.events.emit("purged", queue=queue, count=count)
    return count


def _messages(connection: Any, queue: str) -> Iterator[Any]:
    """Take messages until there is none; None for one that is not a message of Celery."""
    channel = connection.default_channel
    while True:
        try:
            message = channel.basic_get(queue, no_ack=True)
        except connection.channel_errors:
            return  # there is no such queue
        except _UNREADABLE:
            yield None
            continue
        if message is None:
            return
        yield message


def _is_forged(runtime: Runtime, message: Any) -> bool:
    """Tell a message that would not have run, so that it ends no submission either."""
    signer = runtime.signer
    content = (message.content_type, message.content_encoding)
    return signer is not None and signer.enforces and bool(signer.fault(message.headers, message.body, content))


def _end(runtime: Runtime, headers: Any) -> None:
    headers = headers or {}
    task_id = str(headers.get("id"))
    nesting = int(headers.get("replaced_task_nesting") or 0)
    identity = keys.identity_of(headers.get(HEADER), task_id=task_id, nesting=nesting)
    if identity is not None:
        runtime.store.settle(identity.job, task_id=identity.task_id, state="revoked", ttl=LIVE_RECORD_TTL)


def _confirm(queues: list[str]) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("purge asks first, and nobody is there to answer: add --yes.")
    click.confirm(f"Drop all messages in {', '.join(queues)}? Their tasks will not run", abort=True, err=True)
