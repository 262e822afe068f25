"""Producers: submit, publish, and what may go wrong between the two."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.case import Case
from tests.model.explorer import Move
from tests.model.state import (
    Record,
    State,
    change_producer,
    drop_entry,
    keep_entry,
    observe,
    publish,
    spend,
    write,
)

Moves = Iterator[Move[State]]


def produce(state: State, case: Case, submission: int) -> Moves:
    """Yield what the producer of one submission may do next."""
    match state.producers[submission]:
        case "begins" if submission == 0 or state.producers[submission - 1] not in ("begins", "submitted"):
            yield _submit(state, case, submission)
        case "submitted":
            yield from _publish(state, case, submission)


def _submit(state: State, case: Case, submission: int) -> Move[State]:
    record, task_id = state.record, case.task_id(submission)
    if record is None or _begins_a_life(record, case, task_id):
        return _begin(state, case, submission)
    return _meet(state, record, case, submission)


def _begins_a_life(record: Record, case: Case, task_id: int) -> bool:
    if record.status == "revoked":
        return case.rules.revoke_leaves_tombstone
    return record.status == "dead" and not (case.rules.existing_heals and task_id == record.task_id)


def _begin(state: State, case: Case, submission: int) -> Move[State]:
    before, task_id = state.record, case.task_id(submission)
    dead_id = before.task_id if before and before.status == "dead" else 0
    fence, issued = (before.fence, before.issued) if before else (state.top_fence, 0)
    record = Record("waiting", fence, task_id, issued + 1, dead_id=dead_id)
    state = change_producer(write(state, record), submission, "submitted")._replace(letters=0)
    state = keep_entry(state, case, task_id)
    if before and before.status == "dead" and before.task_id == task_id:
        state = observe(state, "a re-sent child gave a dead job a new life")
    return Move(f"submit id{task_id}: New", state)


def _meet(state: State, record: Record, case: Case, submission: int) -> Move[State]:
    task_id, rules = case.task_id(submission), case.rules
    carries = case.second_continues and task_id == 2 and rules.canvas_is_published
    if carries or (rules.revoked_is_not_joined and record.revoked):
        state = keep_entry(change_producer(state, submission, "submitted"), case, task_id)
        return Move(f"submit id{task_id}: Existing({record.status}), published all the same", state)
    state = change_producer(state, submission, "joined")
    if record.revoked:
        state = observe(state, "joined to a job that was revoked before")
    if rules.existing_heals and _may_be_the_only_copy(record):
        state = publish(state, record.task_id, record.issued)
    return Move(f"submit id{task_id}: Existing({record.status}), joins id{record.task_id}", state)


def _may_be_the_only_copy(record: Record) -> bool:
    never_claimed = record.status == "waiting" and record.claimed == 0
    return never_claimed or (record.status == "running" and not record.leased)


def _publish(state: State, case: Case, submission: int) -> Moves:
    task_id = case.task_id(submission)
    generation = state.record.issued if state.record else 1
    published = publish(change_producer(state, submission, "published"), task_id, generation)
    yield Move(f"publish id{task_id}; apply_async returns", published)
    if state.faults.producer_crashes:
        crashed = spend(change_producer(state, submission, "crashed"), "producer_crashes")
        yield Move(f"producer of id{task_id} dies before publish", crashed, fault=True)
    if state.faults.refused_publishes:
        refused = spend(change_producer(state, submission, "refused"), "refused_publishes")
        yield Move(f"broker refuses id{task_id}; apply_async raises", _withdraw(refused, case, task_id), fault=True)


def _withdraw(state: State, case: Case, task_id: int) -> State:
    if not case.rules.refused_publish_withdraws:
        return state
    record = state.record
    if record and record.status == "waiting" and record.task_id == task_id and record.claimed == 0:
        falls_back = case.rules.lives and record.dead_id
        state = write(state, record._replace(status="dead", task_id=record.dead_id, dead_id=0) if falls_back else None)
    return drop_entry(state, task_id)
