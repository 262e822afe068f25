"""One key: its producers, its workers, its broker and its store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.model.case import Case
from tests.model.explorer import MOST_STATES, Finding, Model, Move, explore
from tests.model.producers import produce
from tests.model.state import State, normal, start_of
from tests.model.surroundings import happen
from tests.model.workers import work

LOST = "no fault-free way to a good end"


def check(case: Case, *, most: int = MOST_STATES) -> Finding:
    """Explore a scenario."""
    model = Model(
        start=start_of(case),
        moves=partial(moves, case=case),
        wrong=partial(_wrong, case=case),
        is_good_end=partial(is_good_end, case=case),
        lost=LOST,
    )
    return explore(model, most=most)


def moves(state: State, *, case: Case) -> Iterator[Move[State]]:
    """Yield every step that may come next."""
    for move in _all_moves(state, case):
        yield Move(move.label, normal(move.state, case), move.fault)


def _all_moves(state: State, case: Case) -> Iterator[Move[State]]:
    for submission in range(case.submissions):
        yield from produce(state, case, submission)
    for who in range(case.workers):
        yield from work(state, case, who)
    yield from happen(state, case)


def _wrong(state: State, *, case: Case) -> str:
    found = [wrong for wrong in state.wrong if wrong not in case.tolerated]
    if found:
        return found[-1]
    messages = len(state.queue) + len(state.unacked)
    return f"{messages} live messages" if case.most_messages and messages > case.most_messages else ""


def is_good_end(state: State, *, case: Case) -> bool:
    """Tell whether everything that was accepted has come to its end, and everybody was told."""
    if {"begins", "submitted"} & set(state.producers):
        return False
    steps = enumerate(state.producers)
    accepted = sorted({case.task_id(number) for number, step in steps if step in ("published", "joined")})
    if not accepted:
        return True
    if state.record is None:
        return _ended_without_record(state, accepted)
    if _belongs_to_nobody(state, case, accepted):
        return _all_told(state, accepted) and not state.queue and not state.unacked
    return _has_ended(state, case, accepted)


def _ended_without_record(state: State, accepted: list[int]) -> bool:
    if state.commits or (state.revoked and accepted == [1]):
        return True
    return all(task_id in state.failed + state.revoked for task_id in accepted)


def _belongs_to_nobody(state: State, case: Case, accepted: list[int]) -> bool:
    """The record waits for a submission whose producer died or was refused, and which the next one would heal."""
    record = state.record
    if record is None or record.status not in ("waiting", "running") or not case.rules.existing_heals:
        return False
    return state.producers[record.task_id - 1] in ("crashed", "refused") and record.task_id not in accepted


def _all_told(state: State, accepted: list[int]) -> bool:
    return all(task_id in state.continued + state.failed + state.revoked for task_id in accepted)


def _has_ended(state: State, case: Case, accepted: list[int]) -> bool:
    record = state.record
    if record is None or record.status not in ("done", "dead", "revoked"):
        return False
    if any(worker.step != "idle" for worker in state.workers) or state.queue or state.unacked:
        return False
    if record.status == "revoked":
        return all(one in state.revoked or state.producers[one - 1] == "joined" for one in accepted)
    return _all_told(state, [task_id for task_id in accepted if case.continues(task_id)])
