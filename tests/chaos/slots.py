"""Judge, from the ledger alone, whether each slot of each entry ran once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.chaos.ledger import Row

_BEFORE = 1.0  # seconds: what was due then may not be published yet
_SLACK = 5.0  # seconds after a take-over in which what came due meanwhile is still being worked off


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the schedule: due every so many seconds, with a policy for missed slots."""

    seconds: int
    policy: str
    task: str = "reliable"


ENTRIES: Mapping[str, Entry] = {
    "each-second": Entry(1, "all"),
    "latest": Entry(2, "latest"),
    "skip": Entry(5, "skip"),
    "minute": Entry(60, "all"),
    "plain": Entry(3, "all", task="plain"),
    **{f"one-of-many-{number}": Entry(10, "all") for number in range(20)},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What was broken, when, and when a beat led again; in seconds since the epoch."""

    kind: str
    began: float
    led_again: float

    def explains(self, slot: float) -> bool:
        """Tell whether a slot came due while nobody could lead."""
        return self.began - _BEFORE <= slot <= self.led_again + _SLACK


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found: every broken promise in words, and figures."""

    violations: Sequence[str]
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_markdown(self, *, title: str) -> str:
        """Return it as a page."""
        said = "Every slot once." if not self.violations else f"**{len(self.violations)} violations.**"
        rows = [f"| {name} | {value} |" for name, value in self.figures.items()]
        shown = [f"- {one}" for one in self.violations[:40]]
        return "\n".join([f"# {title}", "", said, "", "| figure | found |", "|---|---|", *rows, "", *shown, ""])


def judge(rows: Sequence[Row], faults: Sequence[Fault], *, ttl: float) -> Verdict:
    """Look for slots that ran twice or not at all, and for beats that ended; ``ttl`` bounds a take-over."""
    runs = [row for row in rows if row.what == "start"]
    kills = sum(fault.kind == "kill" for fault in faults)
    gone = [row for row in rows if row.what == "gone" and row.facts["target"] != "w1"]
    violations = [*_doubled(runs), *_lost(runs, faults), *_late_takeovers(faults, ttl=ttl)]
    if len(gone) != kills:
        violations.append(f"{len(gone)} beats ended, {kills} were killed")
    return Verdict(violations, _figures(runs, rows, faults))


def _doubled(runs: Sequence[Row]) -> Iterator[str]:
    counts = Counter((row.label, row.facts["slot"]) for row in runs)
    yield from (f"{entry}: slot {slot} ran {count} times" for (entry, slot), count in counts.items() if count > 1)


def _lost(runs: Sequence[Row], faults: Sequence[Fault]) -> Iterator[str]:
    for name, entry in ENTRIES.items():
        for slot in _missing(runs, name, entry):
            excused = entry.policy != "all" and any(fault.explains(slot) for fault in faults)
            if not excused:
                yield f"{name} ({entry.policy}): slot {slot:.0f} did not run"


def _missing(runs: Sequence[Row], name: str, entry: Entry) -> list[int]:
    """Return the slots of an entry that did not run, from its first one to the end of all runs."""
    moments = [int(_moment(row)) for row in runs]
    ran = {moment for moment, row in zip(moments, runs, strict=True) if row.label == name}
    begin, end = min(moments, default=0) + 2 * entry.seconds, max(moments, default=1)
    expected = range(min(ran, default=begin), end - entry.seconds + 1, entry.seconds)
    return [slot for slot in expected if slot not in ran]


def _late_takeovers(faults: Sequence[Fault], *, ttl: float) -> Iterator[str]:
    for fault in faults:
        seconds = fault.led_again - fault.began
        if fault.kind in ("kill", "freeze") and seconds > ttl:
            yield f"taken over {seconds:.1f} s after the {fault.kind}, the ttl is {ttl:g} s"


def _moment(row: Row) -> float:
    return datetime.fromisoformat(row.facts["slot"]).timestamp()


def _figures(runs: Sequence[Row], rows: Sequence[Row], faults: Sequence[Fault]) -> dict[str, Any]:
    calm = [row for row in runs if not any(fault.explains(_moment(row)) for fault in faults)]
    passed = {name: len(_missing(runs, name, entry)) for name, entry in ENTRIES.items() if entry.policy != "all"}
    return {
        "slots that ran": len({(row.label, row.facts["slot"]) for row in runs}),
        "runs": len(runs),
        **{f"led again after the {fault.kind}, s": round(fault.led_again - fault.began, 2) for fault in faults},
        "slots caught up": len([row for row in runs if row.wall - _moment(row) > _SLACK]),
        "slots passed over by policy": passed,
        "latest start of a slot with nothing broken, s": round(max(row.wall - _moment(row) for row in calm), 2),
        "elections": len([row for row in rows if row.what == "elected"]),
    }
