"""Run scenarios on contenders: ``python -m benchmarks.peers --peers celery rq --scenarios killed poison``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import report
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.environments import environment, interpreter, versions
from benchmarks.peers.scenarios import SCENARIOS
from benchmarks.peers.stage import on_stage


def main() -> int:
    """Run what was asked for, keep each answer as soon as it is there, and write the table."""
    wanted = _arguments()
    path = Path(wanted.data)
    for name in wanted.peers:
        contender = CONTENDERS[name]
        if not interpreter(contender):
            sys.stdout.write(
                f"{name:24} left out: it needs {contender.python}, which is neither on PATH nor in pyenv\n"
            )
            continue
        environment(contender)
        for scenario in wanted.scenarios:
            with on_stage(contender) as stage:
                found = SCENARIOS[scenario](stage)
            sys.stdout.write(f"{name:24} {scenario:18} {found.said}\n")
            sys.stdout.flush()
            _keep(path, name, scenario, {"said": found.said, "good": found.good})
        _keep(path, name, "versions", {one: versions(contender).get(one) for one in report.packages(contender)})
    report.write(path)
    return 0


def _keep(path: Path, name: str, what: str, facts: dict[str, Any]) -> None:
    data = json.loads(path.read_text()) if path.exists() else {}
    data.setdefault(name, {})[what] = facts
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--peers", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS], help="by default all")
    parser.add_argument("--scenarios", nargs="+", choices=[*SCENARIOS], default=[*SCENARIOS], help="by default all")
    parser.add_argument("--data", default=str(report.DATA), help="what was found, kept over several runs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
