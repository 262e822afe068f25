"""Tell the whole story: ``python -m example_project.demo``.

It starts a private Redis, a fake payment service, two workers and a beat, does to them what production does, and ends
with a verdict computed from the ledger. The exit code is 0 only when every line of the verdict holds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from celery_reliable.testing.servers import start_redis
from celery_reliable.testing.servers.ports import free_port
from example_project.demo.fleet import Fleet, StoryBroken
from example_project.demo.narrator import Narrator
from example_project.demo.picture import Process
from example_project.demo.screen import live, plain_sentence, sentence, show_verdict
from example_project.ledger import Ledger
from example_project.payments import read_record
from example_project.settings import Settings
from example_project.verdict import Bounds, Line, judge

if TYPE_CHECKING:
    from example_project.demo.story import Story

INTERRUPTED = 130
BOUNDS = Bounds(stop=8.0, handover=5.0, recovery=8.0, sections=60)


def main(arguments: Sequence[str] | None = None, *, story: Callable[..., bool] | None = None) -> int:
    """Tell the story, print the verdict, leave nothing behind. Returns the exit code. ``story`` stands in for `tell`."""
    options = _options(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)
    directory = Path(tempfile.mkdtemp(prefix="shop-"))
    print_line(console, f"seed {options.seed}, directory {directory}")
    keep = True
    try:
        holds = (story or tell)(
            directory, console=console, plain=options.plain or not console.is_terminal, seed=options.seed
        )
        keep = options.keep or not holds
    except KeyboardInterrupt:
        keep = options.keep
        print_line(console, "interrupted: every process has been ended")
        return INTERRUPTED
    finally:
        if keep:
            print_line(console, f"logs, ledger and reports are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if holds else 1


def tell(directory: Path, *, console: Console, plain: bool, seed: int) -> bool:
    """Tell the story and print the verdict; return whether every line of it holds.

    A story that breaks is judged all the same, and does not hold.
    """
    narrator = Narrator(lambda said: print_line(console, plain_sentence(said)) if plain else None)
    record = directory / "charges.jsonl"
    with start_redis() as server:
        settings = shop_settings(directory, broker_url=server.url)
        os.environ.update(settings.to_environment(), TMPDIR=str(directory))
        from example_project.demo.story import Story  # noqa: PLC0415  with the tasks, which read the environment

        ledger = Ledger(settings.ledger_url).create()
        with closing(Fleet(directory, guests=[Process("redis", server.pid, "working")])) as fleet:
            story = Story(fleet=fleet, narrator=narrator, settings=settings, record=record, seed=seed)
            with nullcontext() if plain else live(console, story.picture):
                whole = _play(story, narrator=narrator)
    if not plain:
        console.print(*map(sentence, narrator.said), sep="\n")
    lines = judge(ledger.rows(), read_record(record), bounds=BOUNDS)
    return whole and holds_good(lines, console=console, seconds=narrator.seconds)


def holds_good(lines: Sequence[Line], *, console: Console, seconds: float) -> bool:
    """Print the verdict; tell whether every line of it holds."""
    show_verdict(console, lines)
    print_line(console, f"{sum(line.ok for line in lines)} of {len(lines)} lines hold, after {seconds:.0f} s")
    return all(line.ok for line in lines)


def shop_settings(directory: Path, *, broker_url: str) -> Settings:
    """Return the settings of a shop in which a day takes twelve seconds."""
    return Settings(
        broker_url=broker_url,
        ledger_url=f"sqlite:///{directory / 'ledger.sqlite3'}",
        payment_url=f"http://127.0.0.1:{free_port()}",
        reports_directory=str(directory / "reports"),
        day_seconds=12.0,
        collect_every=2.0,
        sections=BOUNDS.sections,
        section_seconds=0.1,
        lease_ttl=4.0,
        drain_timeout=6.0,
        retry_backoff=0.5,
    )


def print_line(console: Console, text: str) -> None:
    """Print one line as it is: not wrapped, not coloured."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _play(story: Story, *, narrator: Narrator) -> bool:
    """Play the story; tell whether it came to its end."""
    try:
        story.play()
    except StoryBroken as exc:
        narrator.say(str(exc), mood="bad")
        return False
    return True


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="lines of text instead of the live screen")
    parser.add_argument("--keep", action="store_true", help="keep logs, ledger and reports")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="repeat the story of this seed")
    return parser.parse_args(arguments)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End on SIGTERM as on Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
