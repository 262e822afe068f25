"""Run the benchmarks and write ``benchmarks/RESULTS.md``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from benchmarks import costs, memory, operating, probing, producer, report, throughput
from benchmarks.cases import DECLARED, MILLISECOND, NO_OP, OWN, OWN_WITHOUT_LEDGER, RELIABLE
from benchmarks.report import Figure
from celery_reliable.testing.servers import RedisServer, start_redis

_LEAST = {NO_OP: 0.95, MILLISECOND: 0.92}
_PARTS = ("costs", "memory", "producer", "probe", "operate", "letters", NO_OP, MILLISECOND)


def main() -> int:
    """Measure the parts asked for; the exit code is 1 when a figure misses its bar."""
    wanted = _arguments()
    notes: list[str] = []
    with start_redis(config={"appendonly": "no"}) as broker, start_redis(config={"appendonly": "no"}) as store:
        figures = [figure for part in wanted.parts for figure in _measure(part, wanted, broker, store, notes)]
    page = report.as_markdown(figures, notes=notes)
    sys.stdout.write(page)
    if set(wanted.parts) == set(_PARTS):
        report.RESULTS.write_text(page, encoding="utf-8")
    return 0 if all(figure.keeps for figure in figures) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(_PARTS)}; by default all, written"
    )
    parser.add_argument("--rounds", type=int, default=30, help="of throughput (default 30)")
    parser.add_argument("--jobs", type=int, default=400, help="in each round (default 400)")
    parser.add_argument("--letters", type=int, default=100_000, help="dead letters in the store (default 100000)")
    parsed = parser.parse_args()
    parsed.parts = parsed.parts or list(_PARTS)
    unknown = set(parsed.parts) - set(_PARTS)
    if unknown:
        parser.error(f"expected some of {', '.join(_PARTS)}, found {', '.join(sorted(unknown))}")
    return parsed


def _measure(
    part: str, wanted: argparse.Namespace, broker: RedisServer, store: RedisServer, notes: list[str]
) -> Iterator[Figure]:
    sys.stderr.write(f"{part}\n")
    match part:
        case "costs":
            yield from _costs(broker, store)
        case "memory":
            yield from _memory(broker, store)
        case "producer":
            found = producer.measure(cases=RELIABLE, redis=broker, batches=120)
            for case in RELIABLE:
                yield Figure(f"producer, {case.name}: more than plain", found.overhead(case), "ms a call", at_most=0.3)
        case "operate":
            yield from operating.events(broker)
            yield from operating.trail()
            yield from operating.status(broker)
        case "letters":
            yield from operating.letters(broker, kept=wanted.letters, replayed=2000)
        case "probe":
            yield from _probe(broker, rounds=20)
        case _:
            yield from _throughput(part, wanted, broker, notes)


def _costs(broker: RedisServer, store: RedisServer) -> Iterator[Figure]:
    for case in RELIABLE:
        most = 3 if case.ledger else 2
        found = costs.per_task(case, broker=broker, store=store)
        yield Figure(f"store calls, {case.name}", round(found.calls, 1), "a task", at_most=most)
        yield Figure(f"commands inside, {case.name}", found.commands, "a task")
        yield Figure(f"bytes to the store, {case.name}", found.bytes_in, "a task")
        yield Figure(f"bytes from the store, {case.name}", found.bytes_out, "a task")
    calls = costs.calls_to_submit(OWN_WITHOUT_LEDGER, broker=broker, store=store)
    yield Figure("store calls to submit, no ledger, own key", calls, "a call", at_most=0)


def _memory(broker: RedisServer, store: RedisServer) -> Iterator[Figure]:
    yield Figure("finished own key, 400,000 an hour", memory.own_key(store), "bytes", at_most=45)
    declared = memory.declared_key(store)
    yield Figure(
        "finished declared key, with the allocator of Redis", declared - memory.rounding(store), "bytes", at_most=170
    )
    yield Figure("finished declared key, on this server", declared, "bytes")
    for case in (OWN, DECLARED):
        more = memory.per_process(case, server=broker)
        yield Figure(f"memory of a process, {case.name}: more than plain", more, "MB", at_most=3)


def _probe(broker: RedisServer, *, rounds: int) -> Iterator[Figure]:
    ours, theirs = probing.measure(redis=broker, rounds=rounds)
    yield Figure("one probe of a heartbeat file", ours.wall, "ms", at_most=100)
    yield Figure("CPU of one probe of a heartbeat file", ours.cpu, "ms")
    yield Figure("one `celery inspect ping`", theirs.wall, "ms")
    yield Figure("CPU of one `celery inspect ping`", theirs.cpu, "ms")


def _throughput(task: str, wanted: argparse.Namespace, broker: RedisServer, notes: list[str]) -> Iterator[Figure]:
    found = throughput.measure(task, cases=RELIABLE, redis=broker, jobs=wanted.jobs, rounds=wanted.rounds)
    for case in RELIABLE:
        yield Figure(f"throughput, {task}, {case.name}: to plain", found.ratio(case), at_least=_LEAST[task])
        yield Figure(f"CPU of the worker, {task}, {case.name}: to plain", found.cpu_ratio(case))
    ratios = {case.name: found.ratios(case) for case in RELIABLE}
    notes.append(f"{task}: {report.spread(ratios, foreign=found.foreign)}")


if __name__ == "__main__":
    sys.exit(main())
