"""Run the chaos suite: ``python -m tests.chaos --cell redis-prefork-sql --tasks 5000 --faults 30 --seed 1``.

Without ``--cell`` it runs the whole matrix, one cell after the other. ``--long`` is a million tasks and 300 faults.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from tests.chaos import report
from tests.chaos.judge import judge
from tests.chaos.run import CELLS, MATRIX, Run, perform

_TASKS, _FAULTS, _EVERY, _RATE = 5000, 30, 2.5, 25.0
_LONG_TASKS, _LONG_FAULTS, _LONG_EVERY, _LONG_DRAIN = 1_000_000, 300, 20.0, 1800.0


def main() -> int:
    """Run each cell; the exit code is 1 when a promise was broken."""
    wanted = _arguments()
    broken = [name for name in wanted.cell or [cell.name for cell in MATRIX] if not _is_kept(name, wanted)]
    if broken:
        sys.stderr.write(f"promises were broken in {', '.join(broken)}: see {wanted.out}\n")
    return 1 if broken else 0


def _is_kept(name: str, wanted: argparse.Namespace) -> bool:
    directory = Path(wanted.out).resolve() / f"{name}-{wanted.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    run = _run(name, wanted)
    evidence = perform(run, directory)
    violations = judge(evidence)
    sys.stdout.write(report.write(run, evidence, violations, directory=directory))
    if wanted.publish and not violations:
        report.publish(f"{name}-long" if wanted.long else name, directory, into=Path(wanted.publish))
    return not violations


def _run(name: str, wanted: argparse.Namespace) -> Run:
    tasks = wanted.tasks or (_LONG_TASKS if wanted.long else _TASKS)
    faults = wanted.faults or (_LONG_FAULTS if wanted.long else _FAULTS)
    every = wanted.every or (_LONG_EVERY if wanted.long else _EVERY)
    run = Run(cell=CELLS[name], seed=wanted.seed, jobs=tasks, faults=faults, every=every, rate=wanted.rate)
    drain = _LONG_DRAIN if wanted.long else run.drain
    return replace(run, seconds=wanted.seconds, drain=drain, concurrency=wanted.concurrency)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--cell", action="append", choices=[*CELLS], help="may be given several times; by default all of the matrix")
    add("--seed", type=int, default=1, help="the same seed draws the same work and the same faults")
    add("--tasks", type=int, help=f"jobs to be accepted, at least, in each cell (default {_TASKS})")
    add("--faults", type=int, help=f"things to be broken, at least, in each cell (default {_FAULTS})")
    add("--seconds", type=float, default=0.0, help="of faults, at least, in each cell (default 0)")
    add("--long", action="store_true", help=f"{_LONG_TASKS:,} tasks and {_LONG_FAULTS} faults: hours")
    add("--every", type=float, help=f"mean seconds between two faults (default {_EVERY:g}, long {_LONG_EVERY:g})")
    add("--rate", type=float, default=_RATE, help=f"calls a second of each producer (default {_RATE:g})")
    add("--concurrency", type=int, default=3, help="of each of the three workers (default 3)")
    add("--out", default="chaos-report", help="folder for ledgers, logs and reports")
    add("--publish", metavar="DIR", help="folder that also gets the reports of the cells that kept all promises")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
