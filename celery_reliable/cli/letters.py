"""Find one dead letter for an operator, name who asks, and say in one line what goes wrong."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from kombu.exceptions import OperationalError

from celery_reliable.cli import screens
from celery_reliable.dead_letters import DeadLetter, DeadLetters
from celery_reliable.errors import ReliableError

_GO_ON: Final = "Nothing is lost: run the same command again to go on."
_IDS_SHOWN: Final = 5


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn what may go wrong for an operator into one line and exit code 1."""
    try:
        with screens.in_one_line(ReliableError):
            yield
    except OperationalError as exc:
        raise click.ClickException(f"the broker is away or refused: {screens.printable(str(exc))}. {_GO_ON}") from exc
    except KeyboardInterrupt:
        click.echo(f"\nStopped. {_GO_ON}", err=True)
        raise click.Abort from None


def only(letters: DeadLetters, start: str) -> DeadLetter:
    """Return the one letter whose id or task id begins so."""
    found = letters.find(start)
    if not found:
        raise click.ClickException(
            f"no dead letter with an id or task id that begins with {start!r}: it was discarded or dropped, or never was."
        )
    if len(found) > 1:
        some = ", ".join(letter.id for letter in found[:_IDS_SHOWN])
        raise click.ClickException(f"{start!r} fits {len(found)} dead letters ({some} ...): give more of the id.")
    return found[0]


def who() -> str:
    """Name the operator, for the record."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a passwd entry for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
