"""Write what was found as the table of the page that compares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.environments import ROOT
from benchmarks.peers.scenarios import SCENARIOS

if TYPE_CHECKING:
    from benchmarks.peers.contenders import Contender

DATA: Final = ROOT / "docs" / "explanation" / "peers.json"
PAGE: Final = ROOT / "docs" / "explanation" / "comparison.md"
BEGIN, END = "<!-- Written by benchmarks/peers from peers.json. -->", "<!-- The end of what is written. -->"
_MARKS: Final = {True: "✓ ", False: "✗ ", None: ""}
_SECONDS: Final = re.compile(r"(\d) s\b")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def packages(contender: Contender) -> list[str]:
    """Return the distributions whose versions matter, first the one that the contender is about."""
    names = ["celery-reliable" if one == "." else _NAME.findall(one)[0] for one in contender.requirements]
    found = [name for name in names if name not in ("packaging", "redis")]
    return sorted(found, key=lambda name: not name.startswith("celery-"))


def write(data: Path) -> None:
    """Put the table into the page, between its marks."""
    if data != DATA:
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(json.loads(data.read_text()))}\n{END}{after}")


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one row for each contender, one column for each scenario that was run."""
    names = [name for name in CONTENDERS if name in found]
    scenarios = [scenario for scenario in SCENARIOS if any(scenario in found[name] for name in names)]
    rows = [
        [_title(name, found[name]), *(_cell(found[name].get(scenario)) for scenario in scenarios)] for name in names
    ]
    lines = [["", *scenarios], ["---"] * (1 + len(scenarios)), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _title(name: str, facts: Mapping[str, Any]) -> str:
    version = facts.get("versions", {}).get(packages(CONTENDERS[name])[0])
    return f"**{CONTENDERS[name].title}** {version or ''}".strip()


def _cell(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "-"
    said = _SECONDS.sub("\\1\u00a0s", answer["said"])  # no line ends between a number and its unit
    return f"{_MARKS[answer['good']]}{said}"
