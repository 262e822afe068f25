"""Measure what admission costs a producer, and how a fleet keeps one rate; write ``benchmarks/RESULTS-flow.md``."""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.cases import NO_OP, OWN, close_app, database, make_app
from benchmarks.fleet.crew import crew, until
from benchmarks.fleet.jobs import PACED, RATE, Entry
from benchmarks.report import Figure
from celery_reliable.testing.servers import RedisServer, start_redis

if TYPE_CHECKING:
    from celery import Celery

RESULTS = Path(__file__).parent / "RESULTS-flow.md"
_HEAD = """\
# Admission, and a rate in a fleet

Written by `python -m benchmarks.flow`, on a Redis of its own for broker and store. Admission: two applications submit the same task
in turns, call by call, one of them to a queue with a limit on depth and age that is far from full; each looks at its queue once a
second, and believes that for all calls between. The rate: real workers with one slot each, and a backlog that outlasts the
measurement; starts are counted by what the tasks write to a file, from two seconds after the first.
"""
_LIMIT = {"depth": 1_000_000, "age": 86_400, "mode": "raise"}
_TOLERANCE = 0.05
_STRETCH = 10.0  # seconds
_UNDER_WAY = 2.0


def main() -> int:
    """Measure both; the exit code is 1 when a figure misses its bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow", description=__doc__)
    parser.add_argument("--calls", type=int, default=6000, help="submissions to each queue (default 6000)")
    parser.add_argument("--workers", type=int, default=8, help="that share one rate (default 8)")
    parser.add_argument("--seconds", type=float, default=50.0, help="for which they are counted (default 50)")
    parser.add_argument("--no-write", dest="write", action="store_false", help="only print")
    wanted = parser.parse_args()
    with start_redis(config={"appendonly": "no"}) as redis:
        figures = list(_admission(redis, calls=wanted.calls))
    figures += _rate(workers=wanted.workers, seconds=wanted.seconds)
    page = report.as_markdown(figures, head=_HEAD)
    sys.stdout.write(page)
    if wanted.write:
        RESULTS.write_text(page, encoding="utf-8")
    return 0 if all(figure.keeps for figure in figures) else 1


# --- admission


def _admission(redis: RedisServer, *, calls: int) -> Iterator[Figure]:
    free, limited = (
        _application(redis, number, limits=limits) for number, limits in ((1, {}), (2, {"celery": _LIMIT}))
    )
    times: dict[str, list[float]] = {"free": [], "limited": []}
    gc.collect()
    for number in range(calls):
        pair = [("free", free), ("limited", limited)]
        for name, app in pair if number % 2 == 0 else reversed(pair):
            times[name].append(_call(app, number))
    for app in (free, limited):
        close_app(app)
    without, more = statistics.median(times["free"]), _p50_of_differences(times["limited"], times["free"])
    yield Figure("one `apply_async` without a limit, p50", without, "ms")
    yield Figure("admission, p50: more than without a limit", more, "ms a call", at_most=0.1)
    yield Figure("one `apply_async` without a limit, p99", _percentile(times["free"], 99), "ms")
    yield Figure("one `apply_async` with a limit, p99", _percentile(times["limited"], 99), "ms")


def _application(redis: RedisServer, number: int, *, limits: Mapping[str, Any]) -> Celery:
    url = database(redis.url, number)
    app = make_app(OWN, broker=url, store=url)
    app.conf.reliable_queue_limits = limits
    for warm_up in range(20):  # opens connections, loads scripts
        _call(app, -1 - warm_up)
    return app


def _call(app: Celery, number: int) -> float:
    """Return the milliseconds of one submission."""
    begin = time.perf_counter()
    app.tasks[NO_OP].apply_async((number,))
    return (time.perf_counter() - begin) * 1e3


def _p50_of_differences(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over pairs that were timed one after the other."""
    return statistics.median(one - other for one, other in zip(ours, others, strict=True))


def _percentile(times: Sequence[float], percent: int) -> float:
    return statistics.quantiles(times, n=100)[percent - 1]


# --- a rate


def _rate(*, workers: int, seconds: float) -> Iterator[Figure]:
    jobs = int(RATE * (seconds + _UNDER_WAY) * (1 + _TOLERANCE)) + RATE * 5
    with crew() as hands:
        for _ in range(workers):
            hands.start("threads")
        for number in range(jobs):
            hands.submit(PACED, number)
        begin = until(lambda: hands.entries()[:1], "first start")[0].at + _UNDER_WAY
        until(lambda: time.monotonic() > begin + seconds, "the time is over", patience=2 * seconds)
        starts = [entry for entry in hands.entries() if begin <= entry.at < begin + seconds]
    stretches = [_begun(starts, begin + first * _STRETCH) for first in range(int(seconds // _STRETCH))]
    least, most = 1 - _TOLERANCE, 1 + _TOLERANCE
    name = f"starts of {workers} workers at {RATE}/s in {seconds:g} s: to the rate"
    yield Figure(name, len(starts) / (RATE * seconds), at_least=least, at_most=most)
    yield Figure("the fewest in 10 s: to the rate", min(stretches) / (RATE * _STRETCH))
    yield Figure("the most in 10 s: to the rate", max(stretches) / (RATE * _STRETCH))
    yield Figure("workers that ran some", len({entry.pid for entry in starts}), at_least=workers)


def _begun(starts: Sequence[Entry], begin: float) -> int:
    return sum(begin <= entry.at < begin + _STRETCH for entry in starts)


if __name__ == "__main__":
    sys.exit(main())
