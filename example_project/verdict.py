"""Judge what happened, by the ledger and by the payment service's own record alone.

Everything here is a pure function of rows. A line that finds no evidence does not hold: an empty ledger proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from example_project.ledger import Row
from example_project.payments import Answer

ASKED_PER_DAY = 2
"""How often, at least, the schedule must have asked for a report before "it was rendered once" says something."""
SUBMITTED = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was promised, in seconds, and how long a report is."""

    stop: float
    handover: float
    recovery: float
    sections: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the verdict."""

    act: str
    claim: str
    expected: str
    found: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task. ``over`` is when it can have had no more effect, on the machine's clock."""

    key: str
    task: str
    fence: int
    attempt: int
    worker: str
    pid: int
    began: float
    over: float
    outcome: str = ""
    checkpoints: tuple[int, ...] = ()
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The ledger, sorted once for all judges."""

    rows: Sequence[Row]
    answers: Sequence[Answer]
    bounds: Bounds
    runs: Sequence[Run] = field(init=False)

    def __post_init__(self) -> None:
        """Find the runs."""
        object.__setattr__(self, "runs", runs(self.rows))

    def of(self, key: str) -> list[Run]:
        """Return the runs of one key, first began first."""
        return [run for run in self.runs if run.key == key]

    def effects(self, kind: str, *, key: str | None = None) -> list[Row]:
        """Return the effects of one kind, of one key or of all."""
        return [row for row in self.events("effect", key=key) if row.detail.get("kind") == kind]

    def events(self, event: str, *, key: str | None = None) -> list[Row]:
        """Return the rows of one kind, of one key or of all."""
        return [row for row in self.rows if row.event == event and key in {None, row.key}]

    def charges(self, order_id: str) -> list[Answer]:
        """Return the charges of one order as the payment service recorded them."""
        return [answer for answer in self.answers if answer.charged and answer.order_id == order_id]


def runs(rows: Iterable[Row]) -> list[Run]:
    """Return every execution, first began first.

    A run that was killed wrote no end. It was over when its worker was seen gone, or, as long as nobody has seen
    that, not before its last row.
    """
    found: dict[tuple[str, int, str, int], Run] = {}
    closed: list[Run] = []
    for row in rows:
        name = (row.key, row.fence, row.worker, row.pid)
        if row.event == "gone":
            found = {name: _gone(run, row) for name, run in found.items()}
        elif row.event == "start":
            closed += [found.pop(name)] if name in found else []
            found[name] = Run(
                row.key, row.task, row.fence, row.attempt, row.worker, row.pid, row.monotonic, row.monotonic
            )
        elif name in found:
            found[name] = _went_on(found[name], row)
    return sorted([*closed, *found.values()], key=lambda run: run.began)


def _went_on(run: Run, row: Row) -> Run:
    """Return the run with one more row of its own."""
    if row.event == "checkpoint":
        return replace(run, over=row.monotonic, checkpoints=(*run.checkpoints, row.detail["section"]))
    if row.event == "effect":
        return replace(run, over=row.monotonic, effects=(*run.effects, row.detail["kind"]))
    if row.event == "end":
        return replace(run, over=row.monotonic, outcome=row.detail["outcome"])
    return run


def _gone(run: Run, row: Row) -> Run:
    """Close a run without an end when its worker is gone."""
    if run.outcome or run.worker != row.worker:
        return run
    return replace(run, over=row.monotonic, outcome="killed")


def overlaps(found: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs of one key that were alive at the same time."""
    by_key: dict[str, list[Run]] = {}
    for run in found:
        by_key.setdefault(run.key, []).append(run)
    return [
        (first, second)
        for mates in by_key.values()
        for number, first in enumerate(mates)
        for second in mates[number + 1 :]
        if second.began < first.over
    ]


def judge(rows: Sequence[Row], answers: Sequence[Answer], *, bounds: Bounds) -> list[Line]:
    """Return the whole verdict, one line per promise."""
    evidence = Evidence(rows, answers, bounds)
    return [line for judge_act in _JUDGES for line in judge_act(evidence)]


# --- a: told to stop


def _told_to_stop(evidence: Evidence) -> list[Line]:
    """Judge the SIGTERM in the middle of a report."""
    act, signal = "a", _signal(evidence, "SIGTERM")
    if not signal:
        return [Line(act, "a worker was told to stop in the middle of a report", "yes", "no", ok=False)]
    gone = next((row for row in evidence.events("gone") if row.worker == signal.worker and _after(row, signal)), None)
    later = [key for key in _days(evidence) if key != signal.key and _starts_after(evidence, key, signal)]
    asked = len(evidence.events("submit", key=signal.key))
    return [
        _within(act, "worker gone after SIGTERM", _seconds(signal, gone), evidence.bounds.stop),
        _is(act, "its exit code, processes left behind", "0, 0", _leaving(gone)),
        *_went_on_elsewhere(act, "hand-over: report goes on elsewhere", evidence, signal, evidence.bounds.handover),
        Line(act, "times the schedule asked for it", f"{ASKED_PER_DAY} or more", str(asked), ok=asked >= ASKED_PER_DAY),
        *_one_report(act, evidence, signal.key),
        Line(act, "next scheduled report starts", "yes", "yes" if later else "no", ok=bool(later)),
    ]


# --- b: killed


def _killed(evidence: Evidence) -> list[Line]:
    """Judge the SIGKILL in the middle of a report."""
    act, signal = "b", _signal(evidence, "SIGKILL")
    if not signal:
        return [Line(act, "a worker was killed in the middle of a report", "yes", "no", ok=False)]
    return [
        *_went_on_elsewhere(act, "recovery: report goes on elsewhere", evidence, signal, evidence.bounds.recovery),
        *_one_report(act, evidence, signal.key),
    ]


# --- c: submitted often, charged once


def _charged_once(evidence: Evidence) -> list[Line]:
    """Judge the orders: one charge each, by the ledger and by the payment service."""
    act, orders = "c", evidence.events("submit")
    often = Counter(row.key for row in orders if row.key.startswith("charge:"))
    if not often or max(often.values()) < SUBMITTED:
        return [Line(act, f"an order was submitted {SUBMITTED} times", "yes", "no", ok=False)]
    key, times = often.most_common(1)[0]
    ids = {row.detail.get("task_id") for row in orders if row.key == key}
    refused = [other for other in often if {429, 503} & set(_statuses(evidence, other))]
    return [
        _is(act, f"task ids for {times} submissions of one order", 1, len(ids)),
        _is(act, "its charges, by the ledger", 1, len(evidence.effects("charge", key=key))),
        _is(act, "its charges, by the payment service", 1, len(evidence.charges(_order(key)))),
        _each_is_one(act, "charges per order met by 429 or 503", [len(evidence.charges(_order(k))) for k in refused]),
    ]


# --- d: the poison order


def _poison(evidence: Evidence) -> list[Line]:
    """Judge the order that failed for good: kept, repaired, replayed, charged once."""
    act, letters = "d", evidence.events("letter")
    if not letters:
        return [Line(act, "a poison order became a dead letter", "yes", "no", ok=False)]
    key = letters[0].key
    replayed = evidence.events("replay", key=key)
    charges = evidence.charges(_order(key))
    early = [charge for charge in charges if not replayed or charge.monotonic < replayed[0].monotonic]
    return [
        _is(act, "dead letters of the poison order", 1, len({row.detail.get("letter_id") for row in letters})),
        _is(act, "its charges before the replay", 0, len(early)),
        _is(act, "its charges after the replay", 1, len(charges) - len(early)),
        _is(act, "its end", "done", _last_outcome(evidence, key)),
    ]


# --- all of it


def _everything(evidence: Evidence) -> list[Line]:
    """Judge what must hold for every job of the story."""
    act, keys = "all", {row.key for row in evidence.events("submit")} | {run.key for run in evidence.runs}
    charged = {row.detail["order_id"] for row in evidence.effects("charge")}
    invoices = Counter(row.detail["order_id"] for row in evidence.effects("invoice"))
    done = [key for key in keys if _last_outcome(evidence, key) == "done"]
    return [
        _is(act, "runs of one key at the same time", 0, len(overlaps(evidence.runs)), among=len(evidence.runs)),
        _is(act, "fences that did not grow", 0, _stale_fences(evidence), among=len(evidence.runs)),
        _each_is_one(act, "invoices per charged order", [invoices[order_id] for order_id in sorted(charged)]),
        _is(act, "jobs that came to a good end", len(keys), len(done), among=len(keys)),
    ]


_JUDGES: tuple[Callable[[Evidence], list[Line]], ...] = (_told_to_stop, _killed, _charged_once, _poison, _everything)


# --- what the judges share


def _went_on_elsewhere(act: str, claim: str, evidence: Evidence, signal: Row, bound: float) -> list[Line]:
    """Judge where and when the interrupted report went on, and that what was saved was not lost."""
    before = [run for run in evidence.of(signal.key) if run.began <= signal.monotonic]
    after = [run for run in evidence.of(signal.key) if run.began > signal.monotonic]
    elsewhere = bool(after) and after[0].worker != signal.worker
    saved = max((section for run in before for section in run.checkpoints), default=0)
    resumed = min(after[0].checkpoints, default=0) if after else 0
    return [
        _within(act, claim, after[0].began - signal.monotonic if elsewhere else None, bound),
        Line(act, "section at which it goes on", f"after {saved}", str(resumed), ok=0 < saved < resumed),
    ]


def _one_report(act: str, evidence: Evidence, key: str) -> list[Line]:
    """Judge the artifact: one, whole, no section rendered twice."""
    artifacts = evidence.effects("report", key=key)
    expected = list(range(1, evidence.bounds.sections + 1))
    whole = [row for row in artifacts if list(row.detail["sections"]) == expected]
    rendered = Counter(section for run in evidence.of(key) for section in run.checkpoints)
    twice = sum(count - 1 for count in rendered.values())
    return [
        _is(act, "final artifacts, and whole ones", "1, 1", f"{len(artifacts)}, {len(whole)}"),
        _is(act, "sections rendered twice", 0, twice, among=len(rendered)),
    ]


def _within(act: str, claim: str, found: float | None, bound: float) -> Line:
    if found is None:
        return Line(act, claim, f"within {bound:.1f} s", "never", ok=False)
    return Line(act, claim, f"within {bound:.1f} s", f"{found:.2f} s", ok=0 <= found <= bound)


def _is(act: str, claim: str, expected: object, found: object, *, among: int = 1) -> Line:
    """Compare; ``among`` is how many were looked at: nothing found among nothing is no proof."""
    return Line(
        act, claim, str(expected), str(found) if among else "nothing to look at", ok=bool(among) and expected == found
    )


def _each_is_one(act: str, claim: str, counts: Sequence[int]) -> Line:
    return Line(
        act, claim, "1 each", ", ".join(map(str, counts)) or "none seen", ok=bool(counts) and set(counts) == {1}
    )


def _signal(evidence: Evidence, name: str) -> Row | None:
    """Return the signal that was sent while a job ran: the row names both."""
    return next((row for row in evidence.events("signal") if row.detail.get("signal") == name and row.key), None)


def _after(row: Row, other: Row) -> bool:
    return row.monotonic >= other.monotonic


def _seconds(first: Row, second: Row | None) -> float | None:
    return second.monotonic - first.monotonic if second else None


def _leaving(gone: Row | None) -> str:
    return f"{gone.detail.get('exit')}, {gone.detail.get('left_behind')}" if gone else "none"


def _days(evidence: Evidence) -> set[str]:
    return {run.key for run in evidence.runs if run.key.startswith("report:")}


def _starts_after(evidence: Evidence, key: str, row: Row) -> bool:
    return evidence.of(key)[0].began > row.monotonic


def _order(key: str) -> str:
    return key.partition(":")[2]


def _statuses(evidence: Evidence, key: str) -> list[int]:
    return [answer.status for answer in evidence.answers if answer.order_id == _order(key)]


def _last_outcome(evidence: Evidence, key: str) -> str:
    mates = evidence.of(key)
    return mates[-1].outcome if mates else ""


def _stale_fences(evidence: Evidence) -> int:
    keys = {run.key for run in evidence.runs}
    pairs = [pair for key in keys for pair in pairwise(evidence.of(key))]
    return sum(second.fence <= first.fence for first, second in pairs)
