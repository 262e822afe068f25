"""Write what a run showed: as Markdown, as JSON, and as a picture of faults, throughput and repeated work."""

from __future__ import annotations

import json
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


def write(run: Run, evidence: Evidence, violations: Sequence[Violation], *, directory: Path) -> str:
    """Write report.md, report.json and timeline.svg; return the Markdown."""
    facts = figures(evidence)
    text = as_markdown(run, facts, violations)
    (directory / "report.md").write_text(text)
    found = [[one.promise, one.label, one.what] for one in violations]
    said = {"cell": run.cell.name, "seed": run.seed, "seconds": run.seconds, "figures": facts, "violations": found}
    (directory / "report.json").write_text(json.dumps(said, indent=1))
    (directory / "timeline.svg").write_text(picture(evidence))
    return text


def figures(evidence: Evidence) -> dict[str, Any]:
    """Return the counts of a run."""
    runs = [run for runs in evidence.executions.values() for run in runs]
    causes = Counter(duplicate.cause or "nothing" for duplicate in duplicates(evidence))
    reasons = Counter(fate.reason for fate in evidence.fates.values() if fate.state == "dead")
    return {
        "jobs accepted": len(evidence.members),
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


def as_markdown(run: Run, facts: Mapping[str, Any], violations: Sequence[Violation]) -> str:
    """Return the page of one run."""
    title = f"# Chaos: {run.cell.name}, seed {run.seed}, {run.seconds:g} s of faults"
    verdict = "All promises kept." if not violations else f"**{len(violations)} violations.**"
    rows = [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    shown = [f"- **{one.promise}** `{one.label}` {one.what}" for one in violations[:_SHOWN]]
    hidden = [f"- and {len(violations) - _SHOWN} more"] if len(violations) > _SHOWN else []
    lines = [title, "", verdict, "", "| figure | found |", "|---|---|", *rows, "", *shown, *hidden]
    return "\n".join([*lines, "", "![timeline](timeline.svg)", ""])


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(
        f"{name} {_cell(one) if not isinstance(one, dict) else f'({_cell(one)})'}" for name, one in value.items()
    )
