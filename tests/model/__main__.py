"""Explore the scenarios: ``python -m tests.model``, or those whose name has a word: ``python -m tests.model revoke``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tests.model import beat, protocol
from tests.model.explorer import MOST_STATES, Finding
from tests.model.scenarios import LARGE, SMALL


class Entry(NamedTuple):
    """A scenario, whether it has to hold, and how to find out."""

    name: str
    holds: bool
    check: Callable[[], Finding]


def main() -> int:
    """Print a line for each scenario, and the way to what is wrong; the exit code is 1 if one did not go as expected."""
    words, most, small = _arguments()
    surprises = 0
    for entry in _entries(most=most, small=small):
        if not words or any(word in entry.name for word in words):
            surprises += _show(entry).holds != entry.holds
    return 1 if surprises else 0


def _arguments() -> tuple[list[str], int, bool]:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("words", nargs="*", help="only scenarios whose name has one of these")
    parser.add_argument("--small", action="store_true", help="not the large ones, which take minutes")
    parser.add_argument("--most", type=int, default=MOST_STATES, help="states of one scenario (default %(default)s)")
    given = parser.parse_args()
    return given.words, given.most, given.small


def _entries(*, most: int, small: bool) -> Iterator[Entry]:
    check = partial(protocol.check, most=most)
    for one in SMALL:
        yield Entry(f"{one.name}: first draft", holds=False, check=partial(check, one.without))
        yield Entry(f"{one.name}: repaired", holds=True, check=partial(check, one.repaired))
    for name, scenario in beat.SMALL.items():
        holds = name not in beat.NEVER_HOLDS
        yield Entry(f"beat, {name}", holds=holds, check=partial(beat.check, beat.repaired(scenario)))
    if not small:
        for name, case in LARGE.items():
            yield Entry(f"every rule: {name}", holds=True, check=partial(check, case))
        yield Entry("beat, everything", holds=True, check=partial(beat.check, beat.LARGE))


def _show(entry: Entry) -> Finding:
    began = time.process_time()
    found = entry.check()
    seconds = time.process_time() - began
    sys.stdout.write(f"{entry.name:60s} {found.verdict:8s}{found.states:9d} states {seconds:7.1f} s  {found.what}\n")
    for number, step in enumerate(found.trace, 1):
        sys.stdout.write(f"      {number:2d}. {step}\n")
    sys.stdout.flush()
    return found


if __name__ == "__main__":
    sys.exit(main())
