"""Write what a run showed: as Markdown, as JSON, and as a picture of faults, throughput and repeated work."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.evidence import ENDLESS, Evidence
from tests.chaos.judge import Recovery, Violation, duplicates, recoveries
from tests.chaos.picture import picture
from tests.chaos.run import Run

_SHOWN = 40
_INDEX = """# Runs of the chaos suite

Producers, three workers, two beats and private servers; processes, servers, disks and the network between them are broken
at random from a seed, two versions of the code are deployed in turn, and at the end an independent ledger, the accounts
that the tasks changed, and the store are judged: [](../explanation/promises.md). A cell is broker, pool and store.

| cell | jobs accepted | executions | faults | violations | executions nobody asked for (of them without a fault that explains them) | longest that a job which a kill had cut off waited for its next run, other faults meanwhile, s |
|---|---|---|---|---|---|---|
{rows}

One cell by name: `python -m tests.chaos --cell redis-prefork-sql --tasks 5000 --faults 30 --seed 1`; all cells: `make chaos`; a
million jobs: `python -m tests.chaos --cell redis-prefork-redis --long --every 9.5 --rate 115 --concurrency 8`.
What each kind of fault does, and how each promise is judged: `tests/chaos/faults.py` and `tests/chaos/judge.py`.

Every slot of a schedule, looked at through a kill, a freeze and a restart of the store: [](beats.md).

```{{toctree}}
:hidden:

{pages}
```
"""


def write(run: Run, evidence: Evidence, violations: Sequence[Violation], *, directory: Path) -> str:
    """Write report.md, report.json and timeline.svg; return the Markdown."""
    facts = figures(evidence)
    text = as_markdown(run, facts, violations, picture="timeline.svg")
    (directory / "report.md").write_text(text)
    found = [[one.promise, one.label, one.what] for one in violations]
    said = {"cell": run.cell.name, "seed": run.seed, "figures": facts, "violations": found}
    (directory / "report.json").write_text(json.dumps(said, indent=1) + "\n")
    (directory / "timeline.svg").write_text(picture(evidence))
    return text


def publish(name: str, directory: Path, *, into: Path) -> None:
    """Copy a report to where the documentation shows it, and write the index anew."""
    into.mkdir(parents=True, exist_ok=True)
    text = (directory / "report.md").read_text().replace("timeline.svg", f"{name}.svg")
    (into / f"{name}.md").write_text(text)
    shutil.copy(directory / "report.json", into / f"{name}.json")
    shutil.copy(directory / "timeline.svg", into / f"{name}.svg")
    (into / "index.md").write_text(index(into))


def index(folder: Path) -> str:
    """Return the page that lists all published runs, with a row for each cell, from its JSON."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    rows = [_index_row(name, said) for name, said in found.items() if "cell" in said]
    pages = sorted(path.stem for path in folder.glob("*.md") if path.stem != "index")
    return _INDEX.format(rows="\n".join(rows), pages="\n".join(pages))


def _index_row(name: str, said: Mapping[str, Any]) -> str:
    facts = said["figures"]
    worst = max((one["worst"] for one in facts["recovery"].values()), default="")
    duplicates_of = sum(facts["duplicate executions by cause"].values())
    unexplained = facts["duplicate executions by cause"].get("nothing", 0)
    cells = (
        f"[{name}]({name}.md)",
        facts["jobs accepted"],
        facts["executions"],
        sum(facts["faults"].values()),
        len(said["violations"]),
        f"{duplicates_of} ({unexplained})",
        worst,
    )
    return f"| {' | '.join(map(str, cells))} |"


def figures(evidence: Evidence) -> dict[str, Any]:
    """Return the counts of a run."""
    runs = [run for runs in evidence.executions.values() for run in runs]
    causes = Counter(duplicate.cause or "nothing" for duplicate in duplicates(evidence))
    reasons = Counter(fate.reason for fate in evidence.fates.values() if fate.state == "dead")
    return {
        "seconds": round(max((row.at for row in evidence.rows), default=0.0) - _begin(evidence), 1),
        "jobs accepted": len(evidence.members),
        "slots of the schedule": sum(1 for label in evidence.members if label.startswith("slot:")),
        "submissions refused": len(evidence.of("refused")),
        "executions": len(runs),
        "fates": dict(Counter(fate.state for fate in evidence.fates.values())),
        "dead letters": dict(reasons),
        "changes accepted and refused": dict(Counter(write.accepted for write in evidence.writes)),
        "faults": dict(Counter(fault.kind for fault in evidence.faults)),
        "duplicate executions by cause": dict(causes),
        "recovery": _recovery(recoveries(evidence)),
        "workers ended": len(evidence.of("gone")),
        "left over": dict(evidence.residue),
    }


def _begin(evidence: Evidence) -> float:
    return min((row.at for row in evidence.rows), default=0.0)


def _recovery(found: Sequence[Recovery]) -> dict[str, Any]:
    kinds = {one.kind for one in found}
    return {kind: _spread([one for one in found if one.kind == kind]) for kind in sorted(kinds)}


def _spread(found: Sequence[Recovery]) -> dict[str, Any]:
    again = [one for one in found if one.seconds != ENDLESS]
    alone = [one.seconds for one in again if one.undisturbed]
    spread = {
        "count": len(found),
        "again": len(again),
        "worst": round(max((one.seconds for one in again), default=0), 2),
    }
    if alone:
        spread |= {"undisturbed": len(alone), "their median": round(statistics.median(alone), 2)}
        spread["their worst"] = round(max(alone), 2)
    return spread


def as_markdown(run: Run, facts: Mapping[str, Any], violations: Sequence[Violation], *, picture: str) -> str:
    """Return the page of one run; ``picture`` is the file of its timeline."""
    title = f"# {run.cell.name}, seed {run.seed}"
    verdict = "All promises kept." if not violations else f"**{len(violations)} violations.**"
    rows = [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    shown = [f"- **{one.promise}** `{one.label}` {one.what}" for one in violations[:_SHOWN]]
    hidden = [f"- and {len(violations) - _SHOWN} more"] if len(violations) > _SHOWN else []
    lines = [title, "", verdict, "", "| figure | found |", "|---|---|", *rows, "", *shown, *hidden]
    return "\n".join([*lines, "", f"![What was broken when, and how many bodies ended in each second]({picture})", ""])


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(
        f"{name} {_cell(one) if not isinstance(one, dict) else f'({_cell(one)})'}" for name, one in value.items()
    )
