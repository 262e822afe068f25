"""What leadership and slots cost each scheduler: ``python -m benchmarks.beat``, which writes ``RESULTS-beat.md``."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.beat_case import SCHEDULERS, Case, Costs
from benchmarks.report import Figure
from celery_reliable.testing import servers

RESULTS = Path(__file__).parent / "RESULTS-beat.md"
_SIZES = (10_000, 100_000)
_MOST = 1.2  # times what the wrapped scheduler takes
_STARTS = ("first start", "start")
"""Of a schedule that the store does not know, and of one that it knows."""

_HEAD = """\
# What celery_reliable costs beat

Written by `python -m benchmarks.beat`. Each scheduler as it is and under leadership, interleaved, each start in a process of its
own, with the same entries: a hundred hourly, the rest once a day, none due. Start: made, elected, all entries read and ordered, and
known in the store. Tick: a round of the loop after a second of rest. Ratios are medians over the rounds of the CPU of the loop's
thread, which a busy machine changes little. The first start, of entries that the store does not know, writes all of them; it
happens once in the life of an entry.
"""


def main() -> int:
    """Measure; the exit code is 1 when a figure misses its bar."""
    wanted = _arguments()
    figures = list(_told(_all_figures(wanted)))
    page = report.as_markdown(figures, head=_HEAD)
    sys.stdout.write(page)
    if wanted.write:
        RESULTS.write_text(page, encoding="utf-8")
    return 0 if all(figure.keeps for figure in figures) else 1


def _all_figures(wanted: argparse.Namespace) -> Iterator[Figure]:
    for size in wanted.sizes:
        rounds = wanted.rounds if size < max(_SIZES) else max(wanted.rounds // 2, 1)
        for name in wanted.schedulers:
            yield from _figures(name, size, rounds=rounds)


def _told(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Show each figure as soon as it is there: all of them take long."""
    for figure in figures:
        sys.stderr.write(f"{figure.row()}\n")
        yield figure


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beat", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[*_SIZES], help="numbers of entries")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=[*SCHEDULERS])
    parser.add_argument("--rounds", type=int, default=3, help="half as many for the largest size (default 3)")
    parser.add_argument("--no-write", dest="write", action="store_false", help="only print")
    return parser.parse_args()


def _figures(scheduler: str, size: int, *, rounds: int) -> Iterator[Figure]:
    """Yield the figures of one scheduler and size."""
    found = [_round(scheduler, size) for _ in range(rounds)]
    of = f"{scheduler}, {size:,} entries"
    for at, start in enumerate(_STARTS):
        plain, ours = ([costs[reliable][at] for costs in found] for reliable in (False, True))
        ratio = _ratio([one.start for one in ours], [one.start for one in plain])
        yield Figure(f"{of}: {start}", ratio, "times", at_most=_MOST if start == "start" else None)
        yield Figure(f"{of}: {start}, plain", statistics.median(one.start_wall for one in plain), "s")
        yield Figure(f"{of}: {start}, reliable", statistics.median(one.start_wall for one in ours), "s")
        yield Figure(f"{of}: {start}, round trips to the store", ours[0].calls)
    ticks = [[costs[reliable][-1].tick for costs in found] for reliable in (True, False)]
    yield Figure(f"{of}: tick", _ratio(*ticks), "times", at_most=_MOST)
    yield Figure(f"{of}: tick, plain", 1000 * statistics.median(ticks[1]), "ms")
    yield Figure(f"{of}: tick, reliable", 1000 * statistics.median(ticks[0]), "ms")


def _ratio(ours: list[float], plain: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, plain, strict=True))


def _round(scheduler: str, size: int) -> dict[bool, list[Costs]]:
    """Start plain and reliable in turn, each twice, with a server and a directory of their own."""
    found: dict[bool, list[Costs]] = {}
    for reliable in (False, True):
        with servers.start_redis() as server, tempfile.TemporaryDirectory() as directory:
            url = server.url.removesuffix("/0")
            case = Case(scheduler=scheduler, reliable=reliable, entries=size, url=url, directory=directory)
            if scheduler == "DatabaseScheduler":
                _run(replace(case, prepare=True))
            found[reliable] = [Costs(**json.loads(_run(case))) for _ in _STARTS]
    return found


def _run(case: Case) -> str:
    command = [sys.executable, "-m", "benchmarks.beat_case", case.to_json()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
