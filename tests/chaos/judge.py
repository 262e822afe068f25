"""Say where a promise was broken. Every judge is a pure function of the evidence and yields what it finds.

A run that proves nothing is found guilty too: see `proves_nothing`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tests.chaos.app import ENTRIES
from tests.chaos.evidence import ENDLESS, Evidence, Execution, Fate, Fault

_NONE = Fate("none")
_ASKED_FOR = frozenset({"transient", "snooze", "permanent"})
_PEACE = 10  # leases
_THAW = 1.0  # seconds until what was frozen goes on
_GRACE = 12.0  # seconds; see `fleet`
_SERVER_FAULTS = frozenset({"kill server", "freeze server", "memory", "disk", "fail over", "move slots"})
_STOPS = frozenset({"restart", "roll"})
_LINK_FAULTS = frozenset({"latency", "blackhole", "reset", "down"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, and the job or process that shows it."""

    promise: str
    what: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Two executions of a job, the second not asked for, and the fault that explains it ("" for none)."""

    first: Execution
    second: Execution
    cause: str


def judge(evidence: Evidence) -> list[Violation]:
    """Return all violations."""
    return [violation for judge_one in JUDGES for violation in judge_one(evidence)]


def proves_nothing(evidence: Evidence) -> Iterator[Violation]:
    """A run without submissions, executions, finished jobs, effects or faults says nothing."""
    fates = [fate.state for fate in evidence.fates.values()]
    needed = {
        "accepted submissions": len(evidence.members),
        "executions": len(evidence.executions),
        "finished jobs": fates.count("done"),
        "effects": len(evidence.writes),
        "faults": len(evidence.faults),
    }
    for what, count in needed.items():
        if not count:
            yield Violation("evidence", f"no {what}: the run proves nothing")


# --- G1


def unaccounted(evidence: Evidence) -> Iterator[Violation]:
    """G1: each accepted job ends, unless a job before it in its canvas did not succeed.

    A revoke or an expiry is an end for those only who were asked to be revoked or to expire; one that expired after its holder
    had died ends as revoked. RabbitMQ drops an expired message by itself (Celery 5.7 gives it ``expires`` as the message's own):
    nothing tells the record, which stays as its last holder left it, and there no ledger asks for it.
    """
    revoked = {row.label for row in evidence.of("revoked")}
    expiring = {row.label for row in evidence.of("accepted") if row.facts["form"] == "expires"}
    ends = {"revoked": revoked | expiring, "expired": expiring}
    if evidence.bounds.broker_expires:
        ends["none"] = expiring - evidence.executions.keys()
        if not _is_held(evidence):  # for a retry, or a redelivery, whose message is gone, and no ledger has it
            ends |= {"waiting": expiring, "running": revoked | expiring}
    for label, member in evidence.members.items():
        state = _state(evidence, label)
        ended = state in ("done", "dead") or label in ends.get(state, ())
        if not ended and all(_state(evidence, before) == "done" for before in member.get("after", ())):
            yield Violation("G1 accounted", f"accepted as {member.get('id')}, found {state}", label)


def _is_held(evidence: Evidence) -> bool:
    return any(evidence.residue.values())


def told_nobody(evidence: Evidence) -> Iterator[Violation]:
    """G1: a job that was handed nothing of those before it does not count as their continuation."""
    told = {(row.label, row.facts["by"]) for row in evidence.of("told")}
    for label, member in evidence.members.items():
        for before in member.get("after", ()):
            if _state(evidence, label) == "done" and (before, label) not in told:
                yield Violation("G1 accounted", f"done without the outcome of {before}", label)


def refused_but_ran(evidence: Evidence) -> Iterator[Violation]:
    """G1: when apply_async raises, the job does not run, unless the error says that it may."""
    # A key may be submitted by several; a refusal counts only where nobody else asked for the job.
    asked = Counter(label for row in evidence.of("intent") for label in row.facts["labels"])
    for row in evidence.of("refused"):
        for label in row.facts["labels"]:
            if not row.facts["may_run"] and asked[label] == 1 and evidence.executions.get(label):
                yield Violation("G1 accounted", f"ran although apply_async raised {row.facts['error']}", label)


def died_unplanned(evidence: Evidence) -> Iterator[Violation]:
    """G1: a letter is for what failed for good; of the others only a run of killed processes makes one."""
    for label, fate in evidence.fates.items():
        runs = evidence.executions.get(label, ())
        if fate.state != "dead" or any(run.how in ("permanent", "raised") for run in runs):
            continue
        if fate.reason != "poison":
            yield Violation("G1 accounted", f"dead letter {fate.reason!r} without a failure: {fate.error}", label)


# --- G2


def outcomes(evidence: Evidence) -> Iterator[Violation]:
    """G2: one committed effect for each finished job, none after it, and all who were told heard of this one."""
    for label, fate in evidence.fates.items():
        if fate.state == "done":
            yield from _one_effect(evidence, label, fate.fence)
    for row in evidence.of("told"):
        fate = evidence.fates.get(row.label, _NONE)
        if row.label in evidence.fates and (fate.state, fate.fence) != ("done", row.facts["fence"]):
            found = f"{row.facts['by']} was told of fence {row.facts['fence']}, the store has {fate.state} {fate.fence}"
            yield Violation("G2 one outcome", found, row.label)


def _one_effect(evidence: Evidence, label: str, fence: int | None) -> Iterator[Violation]:
    accepted = evidence.accepted_writes.get(label, ())
    count = len([one for one in accepted if one == fence])
    later = [one for one in accepted if fence is not None and one > fence]
    if count != 1:
        yield Violation("G2 one outcome", f"{count} effects under the committed fence {fence}: {accepted}", label)
    if later:
        yield Violation("G2 one outcome", f"effects {later} after the committed fence {fence}", label)


def fences(evidence: Evidence) -> Iterator[Violation]:
    """G2: the fence of each run is larger than that of every run before it.

    A holder that was frozen before it could write that it had begun writes it when it thaws, after the run that took over.
    """
    for label, runs in evidence.executions.items():
        for first, second in pairwise(runs):
            if second.fence == first.fence or (second.fence < first.fence and not _has_just_thawed(second, evidence)):
                yield Violation("G2 one outcome", f"fence {second.fence} after {first.fence}", label)


def _has_just_thawed(run: Execution, evidence: Evidence) -> bool:
    return any(
        fault.kind == "freeze worker" and run.was_hit_by(fault) and fault.began < run.began < fault.healed + _THAW
        for fault in evidence.faults
    )


# --- G3


def overlaps(evidence: Evidence) -> Iterator[Violation]:
    """G3: two executions of a job run together only when the first was frozen, or cut off, beyond its lease."""
    for label, runs in evidence.executions.items():
        for place, first in enumerate(runs):
            for second in runs[place + 1 :]:
                if first.over > second.began and not _was_away(first, second, evidence):
                    seconds = first.over - second.began
                    found = f"{_who(first)} and {_who(second)} together for {seconds:.3f} s"
                    yield Violation("G3 one at a time", found, label)


def _was_away(first: Execution, second: Execution, evidence: Evidence) -> bool:
    """Whether a freeze, or a broken way to the store, kept the holder from renewing for as long as its lease."""
    for fault in evidence.faults:
        broken = min(fault.healed, second.began) - max(fault.began, first.began)
        if not fault.overlaps(first.began, second.began) or broken < evidence.bounds.lease / 2:
            continue
        if fault.kind == "freeze worker" and first.was_hit_by(fault):
            return True
        if fault.kind in ("blackhole", "down") and fault.link == "store" and fault.target == first.worker:
            return True
    return False


def duplicates(evidence: Evidence) -> list[Duplicate]:
    """Return every execution that nobody asked for, with the fault that explains it."""
    found = []
    for runs in evidence.executions.values():
        for first, second in pairwise(runs):
            if not _was_asked_for(first, second):
                found.append(Duplicate(first, second, _cause(first, second, evidence)))
    return found


def _was_asked_for(first: Execution, second: Execution) -> bool:
    """Whether the first body left with the wish to be run again, or with an error that was judged and counted."""
    return first.how in _ASKED_FOR or (first.how == "raised" and second.attempt > first.attempt)


def unattributed(evidence: Evidence) -> Iterator[Violation]:
    """Each execution that nobody asked for is explained by a fault that struck the one before it."""
    for duplicate in duplicates(evidence):
        if not duplicate.cause:
            found = f"{_who(duplicate.first)} ended {duplicate.first.how or 'never'}, then {_who(duplicate.second)}"
            yield Violation("duplicate without a fault", found, duplicate.first.label)


def _cause(first: Execution, second: Execution, evidence: Evidence) -> str:
    """Name the fault that struck the first execution, or its way to the servers, before the second began."""
    for fault in evidence.faults:
        # A stop is noted before it is sent, and the worker goes on until it has left: the run may begin in between.
        began = fault.began if fault.kind in _STOPS else first.began
        if fault.overlaps(began, second.began) and _explains(fault, first, lease=evidence.bounds.lease):
            return fault.kind
    died = [row for row in evidence.of("gone") if row.facts["main"] in first.processes]
    if any(first.began <= row.at <= second.began for row in died):
        return "worker ended"  # judged by `crashes`
    return ""


def _explains(fault: Fault, first: Execution, *, lease: float) -> bool:
    if fault.kind in _SERVER_FAULTS:
        return first.how == "done"  # its outcome could not be stored; a body that never left died of something else
    if fault.kind in _LINK_FAULTS:  # a body that asks the store for something raises
        hindered = first.how == "done" or (first.how == "raised" and fault.link == "store")
        return hindered and fault.target == first.worker
    if fault.kind == "freeze worker":
        return first.was_hit_by(fault) and fault.healed - fault.began >= lease / 2
    if fault.kind in _STOPS:
        return first.was_hit_by(fault) and first.how in ("interrupted", "raised", "")
    return first.was_hit_by(fault)


# --- G4, G6


def bounds(evidence: Evidence) -> Iterator[Violation]:
    """G4: no job is tried more often than its retries allow, or started more often than retries and deliveries do."""
    limits = evidence.bounds
    for label, runs in evidence.executions.items():
        attempts = max(run.attempt for run in runs)
        if attempts > limits.retries + 1:
            yield Violation("G4 bounded", f"attempt {attempts} with {limits.retries} retries", label)
        cut_off = [run for run in runs if run.ended is None]
        # A checkpoint that changed begins the count anew; a sleepy body saves two at most.
        if len(cut_off) > 3 * limits.deliveries:
            yield Violation("G4 bounded", f"cut off {len(cut_off)} times, {limits.deliveries} deliveries", label)


def drains(evidence: Evidence) -> Iterator[Violation]:
    """G4: a worker that is told to stop ends within the grace of its supervisor, unless it was frozen meanwhile."""
    for fault in evidence.faults:
        if fault.kind == "kill overdue":
            held = [
                one for one in evidence.faults if one.kind.startswith("freeze") and one.healed > fault.began - _GRACE
            ]
            if not any(one.began < fault.began for one in held):
                yield Violation("G4 bounded", f"{fault.target} was told to stop and did not end in {_GRACE:g} s")


# --- G5


def slots(evidence: Evidence) -> Iterator[Violation]:
    """G5: from the first slot of each entry to its last one each came, under one id; `outcomes` sees that it ran once."""
    ids: dict[str, set[str]] = defaultdict(set)
    for row in evidence.of("accepted"):
        if row.facts["form"] == "slot":
            ids[row.label].update(member["id"] for member in row.facts["members"])
    for label, found in ids.items():
        if len(found) > 1:
            yield Violation("G5 one fire per slot", f"fired as {sorted(found)}", label)
    for entry, seconds in ENTRIES.items():
        yield from _missed(entry, seconds, ids)


def _missed(entry: str, seconds: float, labels: Iterable[str]) -> Iterator[Violation]:
    begin = f"slot:{entry}:"
    due = sorted(datetime.fromisoformat(one[len(begin) :]).timestamp() for one in labels if one.startswith(begin))
    for first, second in pairwise(due):
        if second - first > 1.5 * seconds:
            found = f"nothing between {first:.0f} and {second:.0f}, due each {seconds:g} s"
            yield Violation("G5 one fire per slot", found, entry)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long after a kill an interrupted job ran again; ``ENDLESS`` for never.

    ``undisturbed``: from the kill until then nothing else was broken.
    """

    label: str
    kind: str
    killed: float
    seconds: float
    undisturbed: bool


def recoveries(evidence: Evidence) -> list[Recovery]:
    """G6: return how long each job that a kill cut off waited for its next run."""
    found = []
    for label, runs in evidence.executions.items():
        for first, second in pairwise([*runs, None]):
            if first is None or first.ended is not None:
                continue
            fault = next((one for one in evidence.faults if _killed(one, first)), None)
            if fault is not None:
                again = second.began if second is not None else ENDLESS
                alone = not any(one.overlaps(fault.began, again) for one in evidence.faults if one is not fault)
                found.append(Recovery(label, fault.kind, fault.began, again - fault.began, alone))
    return found


def _killed(fault: Fault, run: Execution) -> bool:
    return fault.kind.startswith("kill") and run.was_hit_by(fault) and run.began <= fault.began <= run.over + 0.5


def recovered(evidence: Evidence) -> Iterator[Violation]:
    """G6: what a kill cut off runs again in the first time of peace that is long enough.

    The promise is a lease and two seconds; a fleet whose workers have just died has to start first, on a machine that
    is busy. So peace is ten leases without a fault.
    """
    for one in recoveries(evidence):
        peace = _longest_peace(evidence, begin=one.killed, end=one.killed + one.seconds)
        if one.seconds != ENDLESS and peace > _PEACE * evidence.bounds.lease:
            found = f"after {one.kind} it waited {one.seconds:.1f} s, {peace:.1f} s of them without any fault"
            yield Violation("G6 recoverable", found, one.label)


def _longest_peace(evidence: Evidence, *, begin: float, end: float) -> float:
    """Return the longest time between two moments in which nothing was broken."""
    longest, since = 0.0, begin
    for fault in sorted(evidence.faults, key=lambda fault: fault.began):
        if fault.healed > begin and fault.began < end:
            longest, since = max(longest, fault.began - since), max(since, fault.healed)
    return max(longest, end - since)


# --- the workers themselves


def crashes(evidence: Evidence) -> Iterator[Violation]:
    """A worker ends only when it was killed or told to."""
    for row in evidence.of("gone"):
        if not row.facts.get("orphan") and not any(_ends(fault, row.facts, at=row.at) for fault in evidence.faults):
            yield Violation("worker ended", f"{row.facts['target']} with {row.facts['code']}, no fault struck it")


def _ends(fault: Fault, gone: Mapping[str, object], *, at: float) -> bool:
    if fault.began > at:
        return False
    if gone["main"] in fault.victims:
        return fault.kind.startswith("kill") or fault.kind in _STOPS
    return False


def left_over(evidence: Evidence) -> Iterator[Violation]:
    """Nothing stays behind: no message, no ledger entry, no record that is not ended."""
    for what, count in evidence.residue.items():
        if count:
            yield Violation("left over", f"{count} {what}")


def _state(evidence: Evidence, label: str) -> str:
    return evidence.fates.get(label, _NONE).state


def _who(run: Execution) -> str:
    return f"{run.worker}/{run.pid} at {run.began:.3f} (fence {run.fence}, attempt {run.attempt})"


JUDGES: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    proves_nothing,
    unaccounted,
    told_nobody,
    refused_but_ran,
    died_unplanned,
    outcomes,
    fences,
    overlaps,
    unattributed,
    bounds,
    drains,
    slots,
    recovered,
    crashes,
    left_over,
)
