"""Workers: receive, claim, run, settle, send what follows, ack; and being killed, frozen, drained on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.case import Case
from tests.model.claims import claim
from tests.model.explorer import Move
from tests.model.state import (
    Message,
    Record,
    State,
    Step,
    Worker,
    ack,
    change_worker,
    drop_entry,
    end_entry,
    enqueue,
    give_back,
    hold,
    leave,
    observe,
    publish,
    rest,
    spend,
    step_to,
    with_id,
    write,
)

Moves = Iterator[Move[State]]
MAY_FREEZE: Final = ("got", "held", "held until due", "running", "returned", "raised transient", "continuing")


def work(state: State, case: Case, who: int) -> Moves:
    """Yield what one worker may do next, and what may happen to it."""
    worker = state.workers[who]
    if worker.frozen:
        yield Move(f"W{who + 1} thaws", change_worker(state, who, frozen=False))
        if state.faults.crashes:
            yield Move(f"W{who + 1} killed while frozen", _crash(state, case, who), fault=True)
    elif worker.step == "idle":
        yield from _pop(state, case, who)
    elif worker.step == "body only":
        yield Move(f"W{who + 1}'s body is gone at last", rest(state, who))
    else:
        yield from STEPS[worker.step](state, case, who)
        yield from _suffer(state, case, who)


# --- what happens to it


def _suffer(state: State, case: Case, who: int) -> Moves:
    worker = state.workers[who]
    if worker.step == "running" and state.faults.orphans:
        yield _orphan(state, case, who)
    if worker.step == "running" and state.faults.drains and _is_holder(state.record, worker):
        yield _drain(state, case, who)
    if state.faults.crashes:
        yield Move(f"W{who + 1} SIGKILL while {worker.step}", _crash(state, case, who), fault=True)
    if state.faults.freezes and worker.step in MAY_FREEZE:
        frozen = spend(change_worker(state, who, frozen=True, was_frozen=True), "freezes")
        yield Move(f"W{who + 1} frozen while {worker.step}", frozen, fault=True)


def _crash(state: State, case: Case, who: int) -> State:
    state = spend(state, "crashes")
    if case.broker == "amqp":
        back = [held.message._replace(delay="") for held in state.unacked if held.owner == who]
        state = state._replace(unacked=tuple(held for held in state.unacked if held.owner != who))
        state = enqueue(state, *back)
    knows = () if case.revokes_are_forgotten else state.workers[who].revoked
    return state._replace(workers=(*state.workers[:who], Worker(revoked=knows), *state.workers[who + 1 :]))


def _orphan(state: State, case: Case, who: int) -> Move[State]:
    state = spend(state, "orphans")
    if case.rules.children_die_with_parent:
        return Move(f"W{who + 1} parent SIGKILL, child dies too", rest(state, who), fault=True)
    alone = change_worker(state, who, step="body only", message=None)
    return Move(f"W{who + 1} parent SIGKILL, child goes on", alone, fault=True)


def _drain(state: State, case: Case, who: int) -> Move[State]:
    worker, record = state.workers[who], state.record
    state = give_back(spend(state, "drains"), case, who)
    if record and not case.rules.drain_keeps_lease:
        state = write(state, record._replace(status="waiting", leased=False))
    state = change_worker(state, who, step="body only", fence=worker.fence, was_frozen=worker.was_frozen)
    return Move(f"W{who + 1} drain timeout: message back, body still on", state, fault=True)


# --- what it does


def _pop(state: State, case: Case, who: int) -> Moves:
    worker, first = state.workers[who], state.workers[0]
    if who and first.step == "idle" and not first.frozen and first.revoked == worker.revoked:
        return  # the first may as well
    for message in state.queue:
        if not message.delay:
            got = state._replace(queue=tuple(one for one in state.queue if one != message))
            got = got if case.broker == "redis" else hold(got, message, who)
            step: Step = "popped" if case.broker == "redis" else "got"
            taken = change_worker(got, who, step=step, message=message, was_frozen=False, channel_lost=False)
            yield Move(f"W{who + 1} pops m{message.number}(id{message.task_id})", taken)


def _record_unacked(state: State, case: Case, who: int) -> Moves:
    yield Move(
        f"W{who + 1} records its message as unacked", step_to(hold(state, _message(state, who), who), who, "got")
    )


def _wait_for_lease(state: State, case: Case, who: int) -> Moves:
    record = state.record
    if not (record and record.status == "running" and record.leased):
        yield Move(f"W{who + 1} wakes", step_to(state, who, "got"))


def _wait_until_due(state: State, case: Case, who: int) -> Moves:
    record = state.record
    if not (record and record.status == "waiting" and not record.due):
        yield Move(f"W{who + 1} wakes", step_to(state, who, "got"))


def _begin(state: State, case: Case, who: int) -> Moves:
    task_id = _message(state, who).task_id
    if task_id in state.workers[who].revoked:
        discarded = step_to(_discard(state, case, task_id), who, "acking")
        yield Move(f"W{who + 1} discards revoked id{task_id}", discarded)
    else:
        yield claim(state, case, who)


def _discard(state: State, case: Case, task_id: int) -> State:
    record = state.record
    if record is None or record.task_id != task_id:
        return state
    if record.status == "waiting":
        kept = record._replace(status="revoked") if case.rules.revoke_leaves_tombstone else None
        return drop_entry(write(state, kept), task_id)
    if record.status == "running" and case.rules.sweep_settles_revoked:
        return write(state, record._replace(revoked=True))
    return state


def _run(state: State, case: Case, who: int) -> Moves:
    yield Move(f"W{who + 1} body ends well (effect)", step_to(state, who, "returned"))
    if state.faults.transients and state.record:
        yield Move(f"W{who + 1} body raises Transient", spend(step_to(state, who, "raised transient"), "transients"))
    if state.faults.permanents:
        yield Move(f"W{who + 1} body raises Permanent", spend(step_to(state, who, "raised permanent"), "permanents"))


def _complete(state: State, case: Case, who: int) -> Moves:
    if _may_complete(state, case, who):
        yield Move(f"W{who + 1} complete: ok", _completed(state, case, who))
    else:
        yield Move(f"W{who + 1} complete: Stale", step_to(state, who, "stale"))
    if state.faults.store_outages:
        away = spend(step_to(state, who, "store away"), "store_outages")
        yield Move(f"W{who + 1} complete: store away", away, fault=True)


def _may_complete(state: State, case: Case, who: int) -> bool:
    record, worker = state.record, state.workers[who]
    if record is None:
        return not case.rules.missing_is_stale
    if case.rules.higher_fence_wins:
        if worker.fence > record.fence and record.status in ("waiting", "running"):
            return True
        if worker.fence == record.fence and record.status == "waiting":
            return True
    return _is_holder(record, worker) and (not case.rules.tokens or record.holder == who)


def _completed(state: State, case: Case, who: int) -> State:
    worker, message = state.workers[who], _message(state, who)
    record = state.record or Record(
        "done", worker.fence, message.task_id, message.generation, claimed=message.generation
    )
    state = write(state, record._replace(status="done", fence=worker.fence, leased=False))
    state = end_entry(state, case, message.task_id)._replace(commits=min(state.commits + 1, 3))
    if state.commits > 1:
        state = observe(state, "two outcomes committed")
    return step_to(state, who, "continuing")


def _wait_for_store(state: State, case: Case, who: int) -> Moves:
    if case.rules.complete_keeps_trying:
        yield Move(f"W{who + 1} store back, complete tried again", step_to(state, who, "returned"))
        return
    record = state.record
    if record and _is_holder(record, state.workers[who]):
        state = state._replace(record=record._replace(leased=False))
    yield Move(f"W{who + 1} lease over: gives up, message left unacked", leave(state, case, who))


def _judge_transient(state: State, case: Case, who: int) -> Moves:
    record, task_id = state.record, _message(state, who).task_id
    if record is None or not _is_holder(record, state.workers[who]):
        yield Move(f"W{who + 1} release: Stale", step_to(state, who, "stale"))
    elif record.revoked:
        ended = drop_entry(write(state, record._replace(status="revoked", leased=False)), task_id)
        yield Move(f"W{who + 1} release: revoked", step_to(ended, who, "acking"))
    elif record.attempts >= case.most_retries:
        yield _bury(state, case, who)
    else:
        again = record._replace(
            status="waiting",
            leased=False,
            due=False,
            attempts=record.attempts + 1,
            issued=record.issued + case.rules.generations,
        )
        yield Move(f"W{who + 1} release(retry, due later)", step_to(write(state, again), who, "retrying"))


def _retry(state: State, case: Case, who: int) -> Moves:
    message, record = _message(state, who), state.record
    generation = record.issued if case.rules.generations and record else message.generation
    again = step_to(publish(state, message.task_id, generation, "backoff"), who, "acking")
    yield Move(f"W{who + 1} publishes the retry", again)
    if state.faults.refused_publishes:
        refused = leave(spend(state, "refused_publishes"), case, who)
        yield Move(f"W{who + 1} broker refuses the retry: not acked", refused, fault=True)


def _judge_permanent(state: State, case: Case, who: int) -> Moves:
    yield _bury(state, case, who)


def _bury(state: State, case: Case, who: int) -> Move[State]:
    record = state.record
    if record is None or not _is_holder(record, state.workers[who]):
        return Move(f"W{who + 1} bury: Stale", step_to(state, who, "stale"))
    state = write(state, record._replace(status="dead", leased=False))
    state = end_entry(state, case, _message(state, who).task_id)._replace(letters=min(state.letters + 1, 4))
    if state.letters > 1 + case.faults.replays:
        state = observe(state, "one job, several dead letters")
    return Move(f"W{who + 1} bury", step_to(state, who, "reporting"))


def _report(state: State, case: Case, who: int) -> Moves:
    task_id, record = _message(state, who).task_id, state.record
    told = state._replace(failed=with_id(state.failed, task_id))
    if case.rules.entry_lasts_to_report and record and record.status == "dead":
        told = drop_entry(told, task_id)
    yield Move(f"W{who + 1} reports failure of id{task_id}", step_to(told, who, "acking"))


def _continue(state: State, case: Case, who: int) -> Moves:
    task_id, record = _message(state, who).task_id, state.record
    sent = state._replace(continued=with_id(state.continued, task_id))
    if case.rules.entry_lasts_to_report and (record is None or record.status == "done"):
        sent = drop_entry(sent, task_id)
    yield Move(f"W{who + 1} sends continuation of id{task_id}", step_to(sent, who, "acking"))
    if state.faults.refused_publishes:
        refused = spend(state, "refused_publishes")
        gives_back = case.rules.refused_continuation_gives_back
        refused = give_back(refused, case, who) if gives_back else step_to(refused, who, "acking")
        yield Move(f"W{who + 1} broker refuses the continuation", refused, fault=True)


def _be_stale(state: State, case: Case, who: int) -> Moves:
    if case.rules.stale_gives_back:
        yield Move(f"W{who + 1} stale: gives its message back", give_back(state, case, who))
    else:
        yield Move(f"W{who + 1} stale: acks", ack(state, case, who))


def _ack(state: State, case: Case, who: int) -> Moves:
    yield Move(f"W{who + 1} acks", ack(state, case, who))


def _message(state: State, who: int) -> Message:
    message = state.workers[who].message
    assert message is not None, "a worker in this step has a message"
    return message


def _is_holder(record: Record | None, worker: Worker) -> bool:
    return record is not None and record.status == "running" and record.fence == worker.fence


STEPS: Final[dict[Step, Callable[[State, Case, int], Moves]]] = {
    "popped": _record_unacked,
    "got": _begin,
    "held": _wait_for_lease,
    "held until due": _wait_until_due,
    "running": _run,
    "returned": _complete,
    "raised transient": _judge_transient,
    "raised permanent": _judge_permanent,
    "store away": _wait_for_store,
    "retrying": _retry,
    "reporting": _report,
    "continuing": _continue,
    "stale": _be_stale,
    "acking": _ack,
}
