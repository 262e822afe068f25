"""The claim: which answer the store gives to a worker that has got a message."""

from __future__ import annotations

from tests.model.case import Case
from tests.model.explorer import Move
from tests.model.state import (
    IN_BODY,
    Message,
    Record,
    State,
    Worker,
    change_worker,
    drop_entry,
    observe,
    publish,
    step_to,
    write,
)


def claim(state: State, case: Case, who: int) -> Move[State]:
    """Return what comes of the claim of a worker's message."""
    record, message = state.record, state.workers[who].message
    assert message is not None, "who claims has a message"
    name = f"W{who + 1} claim"
    if record is None:
        return _without_record(state, case, who, message)
    if case.rules.lives and record.dead_id == message.task_id:
        return Move(f"{name}: Over (an ended life)", step_to(state, who, "reporting"))
    if case.rules.generations and message.generation < record.claimed and record.task_id == message.task_id:
        return Move(f"{name}: Old", step_to(state, who, "acking"))
    return _by_status(state, case, who, record, message)


def _without_record(state: State, case: Case, who: int, message: Message) -> Move[State]:
    # "Older than the marker's life": only then can a marker be gone.
    if case.rules.late_is_not_run and state.commits:
        return Move(f"W{who + 1} claim: too old, outcome unknown: dead letter", step_to(state, who, "acking"))
    fresh = Record("waiting", state.top_fence, message.task_id, message.generation)
    return _run(state, case, who, fresh, "no record")


def _by_status(state: State, case: Case, who: int, record: Record, message: Message) -> Move[State]:
    match record.status:
        case "waiting":
            return _while_waiting(state, case, who, record, message)
        case "running":
            return _while_running(state, case, who, record, message)
        case "done":
            return Move(f"W{who + 1} claim: Done", step_to(state, who, "continuing"))
        case "dead":
            return _when_dead(state, case, who, record)
    if message.task_id == record.task_id:
        return Move(f"W{who + 1} claim: Revoked", step_to(state, who, "acking"))
    return _take_over(state, case, who, record, message)


def _while_waiting(state: State, case: Case, who: int, record: Record, message: Message) -> Move[State]:
    if case.rules.waits_for_due and not record.due:
        return Move(f"W{who + 1} claim: NotYet", _wait(state, case, who, message, until_due=True))
    return _run(state, case, who, record)


def _when_dead(state: State, case: Case, who: int, record: Record) -> Move[State]:
    if case.rules.dead_stays_dead:
        return Move(f"W{who + 1} claim: Dead", step_to(state, who, "reporting"))
    return _run(state, case, who, record._replace(attempts=0), "dead key, new life")


def _while_running(state: State, case: Case, who: int, record: Record, message: Message) -> Move[State]:
    name = f"W{who + 1} claim"
    if record.leased:
        return Move(f"{name}: Busy", _wait(state, case, who, message, until_due=False))
    if not record.revoked:
        return _run(state, case, who, record, "lease had ended")
    if message.task_id == record.task_id:
        ended = drop_entry(write(state, record._replace(status="revoked")), message.task_id)
        return Move(f"{name}: Revoked", step_to(ended, who, "acking"))
    return _take_over(state, case, who, record, message)


def _take_over(state: State, case: Case, who: int, record: Record, message: Message) -> Move[State]:
    base = record._replace(task_id=message.task_id, attempts=0, revoked=False)
    return _run(state, case, who, base, "another submission's message")


def _wait(state: State, case: Case, who: int, message: Message, *, until_due: bool) -> State:
    """Wait in the worker, or publish a copy with a countdown and ack: a crash in between doubles the message."""
    if case.rules.waits_in_worker:
        return step_to(state, who, "held until due" if until_due else "held")
    record, generation = state.record, message.generation
    if case.rules.generations and record:
        generation = record.issued + 1
        state = state._replace(record=record._replace(issued=generation))
    copied = publish(state, message.task_id, generation, "backoff" if until_due else "countdown")
    return step_to(copied, who, "acking")


def _run(state: State, case: Case, who: int, base: Record, why: str = "") -> Move[State]:
    """Give the right to run, under a new fence, and observe what should not have been."""
    message = state.workers[who].message
    assert message is not None, "who claims has a message"
    fence = _next_fence(state, case, base)
    record = base._replace(
        status="running", fence=fence, leased=True, holder=who, claimed=max(base.claimed, message.generation)
    )
    claimed = write(state, record)._replace(top_fence=max(state.top_fence, fence))
    claimed = change_worker(claimed, who, step="running", fence=fence)
    if case.rules.ledger == "to the claim":
        claimed = drop_entry(claimed, message.task_id)
    for wrong in (*_wrong_with_others(state, who, fence), *_wrong_with_record(state, base, message)):
        claimed = observe(claimed, wrong)
    return Move(f"W{who + 1} claim: Run" + (f" ({why})" if why else ""), claimed)


def _next_fence(state: State, case: Case, base: Record) -> int:
    forgets = case.faults.lost_writes and not case.rules.higher_fence_wins
    return (base.fence if forgets else max(base.fence, state.top_fence)) + 1


def _wrong_with_others(state: State, who: int, fence: int) -> list[str]:
    others = [worker for number, worker in enumerate(state.workers) if number != who and worker.step in IN_BODY]
    wrong = []
    if any(_runs_unfenced(worker) for worker in others):
        wrong.append("two executions at once")
    if any(worker.fence == fence for worker in others):
        wrong.append("two holders share one fence")
    return wrong


def _runs_unfenced(worker: Worker) -> bool:
    return not worker.frozen and not worker.was_frozen and worker.step != "store away"


def _wrong_with_record(state: State, base: Record, message: Message) -> list[str]:
    record, producers = state.record, state.producers
    refused = producers[message.task_id - 1] == "refused"
    checks = {
        "ran before its backoff": record is not None and record.status == "waiting" and not record.due,
        "ran although apply_async raised": refused and not {"published", "joined"} & set(producers),
        "a revoked job ran": message.task_id in state.revoked and message.task_id == base.task_id,
        "a message of an ended life ran": record is not None and record.dead_id == message.task_id != record.task_id,
        "a dead job ran without replay": record is not None and record.status == "dead",
        "ran again after done": record is None and bool(state.commits),
    }
    return [wrong for wrong, holds in checks.items() if holds]
