"""Run the chaos suite: ``python -m tests.chaos --cells redis-prefork --seed 7 --seconds 600``."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tests.chaos import report
from tests.chaos.judge import judge
from tests.chaos.run import CELLS, Run, perform


def main() -> int:
    """Run each cell; the exit code is 1 when a promise was broken."""
    wanted = _arguments()
    broken = 0
    for name in wanted.cells:
        run = Run(cell=CELLS[name], seed=wanted.seed, seconds=wanted.seconds, every=wanted.every, rate=wanted.rate)
        directory = Path(wanted.out) / f"{name}-{wanted.seed}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        evidence = perform(run, directory)
        violations = judge(evidence)
        broken += len(violations)
        sys.stdout.write(report.write(run, evidence, violations, directory=directory))
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=[*CELLS], default=[*CELLS], help="by default all")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same work and the same faults")
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults in each cell (default 120)")
    parser.add_argument("--every", type=float, default=1.5, help="mean seconds between two faults (default 1.5)")
    parser.add_argument("--rate", type=float, default=25.0, help="calls a second of each of two producers (default 25)")
    parser.add_argument("--out", default="chaos-report", help="folder for ledgers, logs and reports")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
