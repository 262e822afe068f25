"""Tell the story of the Django shop: ``python -m example_project.webshop.demo``.

It starts a private Redis as broker and store, worker, beat and site on one SQLite file, and ends with a verdict computed from
that file. The exit code is 0 only when every line holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType

from rich.console import Console

from celery_reliable.testing.servers import start_redis
from celery_reliable.testing.servers.ports import free_port
from example_project.demo.__main__ import INTERRUPTED, print_line
from example_project.demo.fleet import Fleet, StoryBroken
from example_project.demo.screen import show_verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell the story, print the verdict, leave nothing behind. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m example_project.webshop.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep logs and database")
    keep = parser.parse_args(arguments).keep
    console, directory = Console(), Path(tempfile.mkdtemp(prefix="webshop-"))
    signal.signal(signal.SIGTERM, _interrupt)
    holds = False
    try:
        holds = tell(directory, console=console)
    except KeyboardInterrupt:
        print_line(console, "interrupted: every process has been ended")
        return INTERRUPTED
    finally:
        if keep or not holds:
            print_line(console, f"logs and database are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if holds else 1


def tell(directory: Path, *, console: Console) -> bool:
    """Tell the story and print the verdict; return whether every line of it holds."""
    began = time.monotonic()
    with start_redis() as server:
        os.environ.update(environment(directory, url=server.url))
        _make_tables()
        from example_project.webshop.demo.story import Story  # noqa: PLC0415  # with the models, after the setup
        from example_project.webshop.demo.verdict import judge  # noqa: PLC0415

        with closing(Fleet(directory)) as fleet:
            story = Story(
                fleet,
                port=free_port(),
                say=lambda text: print_line(console, f"{time.monotonic() - began:5.1f}  {text}"),
            )
            whole = _play(story.play, console)
        lines = judge(story.evidence)
    show_verdict(console, lines)
    print_line(
        console, f"{sum(line.ok for line in lines)} of {len(lines)} lines hold, after {time.monotonic() - began:.0f} s"
    )
    return whole and all(line.ok for line in lines)


def environment(directory: Path, *, url: str) -> dict[str, str]:
    """Return what the shop's processes must know."""
    return {
        "DJANGO_SETTINGS_MODULE": "example_project.webshop.settings",
        "WEBSHOP_DIRECTORY": str(directory),
        "WEBSHOP_BROKER_URL": url,
        "WEBSHOP_STORE_URL": url,
        "WEBSHOP_LEASE_TTL": "3",
        "WEBSHOP_REPORT_EVERY": "2",
        "TMPDIR": str(directory),
    }


def _make_tables() -> None:
    import django  # noqa: PLC0415  # reads the environment
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)


def _play(play: Callable[[], None], console: Console) -> bool:
    try:
        play()
    except StoryBroken as exc:
        print_line(console, str(exc))
        return False
    return True


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
