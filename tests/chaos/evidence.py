"""Put what was recorded in the order in which a judge asks for it: jobs, executions, faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.chaos.accounts import Write
from tests.chaos.ledger import Row, What

ENDLESS = float("inf")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was configured: lease, retries, deliveries; and whether the broker drops expired messages by itself."""

    lease: float = 3.0
    retries: int = 5
    deliveries: int = 8
    broker_expires: bool = False


@dataclass(frozen=True, slots=True)
class Fate:
    """What the store says of a job at the end. ``fence`` is in its kept outcome, ``reason`` in its letter."""

    state: str
    fence: int | None = None
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was broken. ``healed`` is when it was whole again: at once for a kill."""

    kind: str
    target: str
    link: str
    began: float
    healed: float
    victims: frozenset[int] = frozenset()

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it was broken at some time between two."""
        return self.began <= end and self.healed >= begin


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a body. ``how`` is "" and ``ended`` None when the body never left by itself.

    ``over`` is when it can have had no more effect: its end, the death of its process, or the next run in its thread.
    """

    label: str
    task_id: str
    fence: int
    attempt: int
    worker: str
    pid: int
    parent: int
    began: float
    ended: float | None = None
    how: str = ""
    over: float = ENDLESS

    @property
    def processes(self) -> frozenset[int]:
        """The process that ran it, and that one's parent."""
        return frozenset((self.pid, self.parent))

    def was_hit_by(self, fault: Fault) -> bool:
        """Whether a fault struck its process or its parent."""
        return bool(self.processes & fault.victims)


@dataclass(frozen=True)
class Evidence:
    """All that is known after a run."""

    rows: Sequence[Row]
    writes: Sequence[Write] = ()
    fates: Mapping[str, Fate] = field(default_factory=dict)
    residue: Mapping[str, int] = field(default_factory=dict)
    bounds: Bounds = Bounds()

    def of(self, what: What) -> Sequence[Row]:
        """Return the rows of a kind."""
        return self._by_kind[what]

    @cached_property
    def _by_kind(self) -> Mapping[What, Sequence[Row]]:
        found: dict[What, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.what].append(row)
        return found

    @cached_property
    def faults(self) -> Sequence[Fault]:
        """Every fault; one that was never healed lasts."""
        healed = {row.facts["name"]: row.at for row in self.of("healed")}
        return [_fault(row, healed) for row in self.of("fault")]

    @cached_property
    def executions(self) -> Mapping[str, Sequence[Execution]]:
        """The runs of each job, first began first."""
        found: dict[str, list[Execution]] = defaultdict(list)
        for one in _executions(self.rows):
            found[one.label].append(one)
        return {label: sorted(runs, key=lambda run: run.began) for label, runs in found.items()}

    @cached_property
    def members(self) -> Mapping[str, Mapping[str, Any]]:
        """Every job that was accepted, once, with the jobs that must be done before it runs."""
        return {member["label"]: member for row in self.of("accepted") for member in row.facts["members"]}

    @cached_property
    def accepted_writes(self) -> Mapping[str, Sequence[int]]:
        """The fences under which the accounts accepted a change of each job."""
        found: dict[str, list[int]] = defaultdict(list)
        for write in self.writes:
            if write.accepted:
                found[write.label].append(write.fence)
        return found


def _fault(row: Row, healed: Mapping[str, float]) -> Fault:
    facts = row.facts
    lasts = facts.get("seconds", 0) > 0
    end = healed.get(facts["name"], ENDLESS if lasts else row.at)
    victims = frozenset(facts.get("victims", ()))
    return Fault(facts["kind"], facts.get("target", ""), facts.get("link", ""), row.at, end, victims)


def _executions(rows: Sequence[Row]) -> Iterable[Execution]:
    """Pair each start with the end of the same run: same process, thread and fence."""
    open_: dict[tuple[int, int], Row] = {}
    for row in rows:
        if row.what not in ("start", "end"):
            continue
        place = (row.pid, row.thread)
        begun = open_.pop(place, None)
        if begun is not None:
            same = row.what == "end" and row.facts["fence"] == begun.facts["fence"]
            yield _execution(begun, row if same else None, over=row.at)
        if row.what == "start":
            open_[place] = row
    ends = [row for row in rows if row.what in ("fault", "gone")]
    for begun in open_.values():
        yield _execution(begun, None, over=_death(begun, ends))


def _death(begun: Row, rows: Iterable[Row]) -> float:
    """Return when a process died in which nothing more was heard."""
    return next((row.at for row in rows if row.at >= begun.at and _is_dead(begun, row)), ENDLESS)


def _is_dead(begun: Row, row: Row) -> bool:
    """Whether a row says that a process is dead: killed, or gone with its main process.

    A child whose main process was killed is not dead for that: it may go on, and has a row of its own in the end.
    """
    if row.what == "fault" and row.facts["kind"].startswith("kill"):
        return begun.pid in row.facts.get("victims", ())
    if row.what != "gone":
        return False
    main, left = row.facts["main"], row.facts.get("orphans", ())
    return begun.pid == main or (begun.parent == main and begun.pid not in left)


def _execution(begun: Row, end: Row | None, *, over: float) -> Execution:
    facts = begun.facts
    who = (facts["task_id"], facts["fence"], facts["attempt"], begun.worker, begun.pid, begun.parent, begun.at)
    if end is None:
        return Execution(begun.label, *who, over=over)
    return Execution(begun.label, *who, ended=end.at, how=end.facts["how"], over=end.at)
