"""Stop and kill real workers, print how soon others go on, and write it down in ``benchmarks/RESULTS-fleet.md``."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import probing
from benchmarks.fleet import backlog, etas, keeping, stops
from benchmarks.report import Figure
from celery_reliable.testing.servers import Server, start_rabbitmq, start_redis

RESULTS = Path(__file__).parents[1] / "RESULTS-fleet.md"
_HEAD = """\
# How soon a fleet goes on

Written by `python -m benchmarks.fleet`; a run of some parts replaces their rows. Real workers on a Redis or RabbitMQ of their own.
Times are medians over the rounds. "Stubborn" is a task that swallows every interruption, "seizing" one that keeps the interpreter
in C for ever. Of the ETA messages, one falls due every 6 ms, the first 17 s (the lease and two) after their holder is killed.
"""
_AFTER_LAST_TASK = {"threads": 1.0, "solo": 1.0, "prefork": 1.5, "gevent": 1.5, "eventlet": 1.5}
_ON_RABBITMQ = ("prefork", "threads")
_BEYOND = 2.0  # seconds beyond a timeout or a lease
_MANY = 10_000
_BACKLOG = 1_000_000
_TABLE = "| figure | measured | bar | |\n|---|---|---|---|"


def main() -> int:
    """Measure the parts asked for; the exit code is 1 when a figure misses its bar."""
    wanted = _arguments()
    print(_TABLE, flush=True)
    found = []
    for part in wanted.parts:
        for figure in _PARTS[part](wanted.rounds):
            print(figure.row(), flush=True)
            found.append(figure)
    if wanted.write:
        RESULTS.write_text(_page(found), encoding="utf-8")
    return 0 if all(figure.keeps for figure in found) else 1


def _page(found: Iterable[Figure]) -> str:
    """Return the whole page: these rows, and those that were there before of what was not measured now."""
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    rows = {row.split(" | ")[0]: row for row in before.partition(_TABLE)[2].split("\n\n")[0].splitlines() if row}
    rows |= {figure.row().split(" | ")[0]: figure.row() for figure in found}
    return "\n".join([_HEAD, _TABLE, *rows.values(), ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(_PARTS)}; by default all")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is printed (default 3)")
    parser.add_argument("--no-write", dest="write", action="store_false", help="only print")
    parsed = parser.parse_args()
    parsed.parts = parsed.parts or list(_PARTS)
    unknown = set(parsed.parts) - set(_PARTS)
    if unknown:
        parser.error(f"expected some of {', '.join(_PARTS)}, found {', '.join(sorted(unknown))}")
    return parsed


def _median(measure: Callable[[], float], rounds: int) -> float:
    return statistics.median(measure() for _ in range(rounds))


def _stop(rounds: int) -> Iterator[Figure]:
    for pool in stops.POOLS:
        yield from _hand_over(pool, "Redis", None, rounds)
    with start_rabbitmq() as broker:
        for pool in _ON_RABBITMQ:
            yield from _hand_over(pool, "RabbitMQ", broker, rounds)


def _hand_over(pool: str, name: str, broker: Server | None, rounds: int) -> Iterator[Figure]:
    found = [stops.hand_over(pool, broker=broker) for _ in range(rounds)]
    back = statistics.median(one.back for one in found)
    exit_ = statistics.median(one.after_last_task for one in found)
    yield Figure(f"messages back after SIGTERM, {pool}, {name}", back, "s", at_most=0.5)
    yield Figure(f"exit after the last task, {pool}, {name}", exit_, "s", at_most=_AFTER_LAST_TASK[pool])


def _timeout(rounds: int) -> Iterator[Figure]:
    for pool in stops.POOLS:
        for task in ("stubborn", "seizing"):
            seconds = _median(partial(stops.at_the_timeout, pool, task=task), rounds)
            yield Figure(f"exit after the drain timeout, {pool}, {task}", seconds - stops.TIMEOUT, "s", at_most=_BEYOND)


def _child(rounds: int) -> Iterator[Figure]:
    seconds = list(stops.child_recoveries(rounds=2 * rounds + 1))
    yield Figure("runs again after SIGKILL of a pool child", statistics.median(seconds), "s", at_most=1.0)
    yield Figure("the latest of them", max(seconds), "s")


def _worker(rounds: int) -> Iterator[Figure]:
    for lease in (15.0, 5.0):
        seconds = _median(partial(stops.worker_recovery, lease_ttl=lease), rounds)
        name = f"runs again after SIGKILL of a worker, lease {lease:g} s"
        yield Figure(name, seconds, "s", at_most=lease + _BEYOND)


def _long(rounds: int) -> Iterator[Figure]:
    del rounds  # it takes a minute, and is a count
    starts = stops.starts_of_a_long_job(seconds=60.0)
    yield Figure("starts of a 60 s job, visibility timeout 5 s, three workers", starts, at_least=1, at_most=1)


def _eta(rounds: int) -> Iterator[Figure]:
    del rounds  # it takes minutes
    found = etas.after_a_kill(count=_MANY)
    yield Figure("ETA messages of a killed worker", len(found.lateness), at_least=_MANY)
    yield Figure("runs of them", found.runs, at_most=_MANY)
    yield Figure("late, the median", found.at(0.5), "s")
    yield Figure("late, 99 of 100", found.at(0.99), "s")
    yield Figure("late, the worst", found.worst, "s", at_most=_BEYOND)


def _keeper(rounds: int) -> Iterator[Figure]:
    del rounds  # a count
    yield Figure("round trips of a beat with 1,000 held messages", keeping.round_trips(held=1000), at_most=1)


def _backlog(rounds: int) -> Iterator[Figure]:
    del rounds  # a count
    found = backlog.sweep(count=_BACKLOG)
    yield Figure("published again of 1,000,000 that wait and one that vanished", found.published, at_least=1, at_most=1)
    yield Figure("one look of the sweep at them, the longest", found.longest_look, "s")
    yield Figure("all looks of a pass over them", found.seconds, "s")
    yield Figure("memory of each, message and ledger entry", found.memory, "bytes")


def _probe(rounds: int) -> Iterator[Figure]:
    with start_redis(config={"appendonly": "no"}) as redis:
        ours, theirs = probing.measure(redis=redis, rounds=3 * rounds)
    yield Figure("one probe of a heartbeat file", ours.wall, "ms", at_most=100)
    yield Figure("one `celery inspect ping`", theirs.wall, "ms")


_PARTS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "stop": _stop,
    "timeout": _timeout,
    "child": _child,
    "worker": _worker,
    "long": _long,
    "eta": _eta,
    "keeper": _keeper,
    "backlog": _backlog,
    "probe": _probe,
}

if __name__ == "__main__":
    sys.exit(main())
