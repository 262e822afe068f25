"""Publish what waits in the outbox, apart from the workers."""

from __future__ import annotations

import math
import signal
import threading
from time import monotonic

import click

from celery_reliable.cli import screens
from celery_reliable.cli.options import rate
from celery_reliable.errors import ReliableError, StoreUnavailable
from celery_reliable.relay import Relay
from celery_reliable.runtime import runtime_of

_EACH = 1.0  # seconds between two looks
_DEFAULT = 200.0


@click.command()
@click.option("--rate", type=rate, metavar="RATE", help="At most so many: 500/s, 1000/m. [default: as the workers]")
@click.option("--once", is_flag=True, help="Publish what waits now, and end.")
@click.pass_context
def relay(ctx: click.Context, /, *, rate: float | None, once: bool) -> None:
    """Publish the submissions that wait in the outbox, until SIGTERM or Ctrl-C.

    Workers do it too, unless reliable_relay_rate is 0. Any number of relays may run.
    """
    with screens.in_one_line(ReliableError):
        runtime = runtime_of(ctx.obj.app)
        if runtime.store.outbox is None:
            raise click.ClickException("This store (reliable_store_url) is no database: it has no outbox.")
        loop = _Loop(Relay(ctx.obj.app, runtime.store.outbox), rate or runtime.settings.relay_rate or _DEFAULT)
        count = loop.once() if once else loop.until_told()
    click.echo(f"Published {count}.")


class _Loop:
    """Look each second; at a rate below one a second, less often."""

    def __init__(self, relay: Relay, rate: float, *, ending: threading.Event | None = None) -> None:
        self._relay, self._limit = relay, math.ceil(rate * _EACH)
        self._pause = max(_EACH, 1 / rate)
        self._ending = ending or threading.Event()

    def once(self) -> int:
        """Publish until nothing waits, or the broker is away."""
        total, begun = 0, monotonic()
        while (count := self._relay.look(limit=self._limit)) == self._limit:
            total += count
            self._ending.wait(begun + self._pause - monotonic())
            begun = monotonic()
        return total + count

    def until_told(self) -> int:
        """Publish until a signal comes; what is being published then is published and noted."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ending.set())
        click.echo("Relaying; SIGTERM or Ctrl-C ends it.")
        total = 0
        while not self._ending.is_set():
            begun = monotonic()
            try:
                total += self._relay.look(limit=self._limit)
            except StoreUnavailable as exc:
                click.echo(f"The database is away, trying again: {exc}", err=True)
            self._ending.wait(max(0.0, begun + self._pause - monotonic()))
        return total
