"""Time, broker, sweeps, operators, and the store's own accidents."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.case import Case
from tests.model.explorer import Move
from tests.model.state import (
    IN_BODY,
    Held,
    Message,
    Record,
    State,
    change_worker,
    drop_entry,
    keep_entry,
    publish,
    restore,
    spend,
    with_id,
    without_id,
    write,
)

Moves = Iterator[Move[State]]
RENEWS = (*IN_BODY, "continuing", "acking", "retrying")


def happen(state: State, case: Case) -> Moves:
    """Yield what may happen next without a producer or a worker."""
    yield from _pass_time(state, case)
    for held in state.unacked:
        yield from _redeliver(state, case, held)
    for task_id in state.ledger:
        yield from _sweep(state, case, task_id)
    yield from _age(state, case)
    yield from _operate(state, case)


# --- time. It is abstract: a step is enabled when real time could allow it


def _pass_time(state: State, case: Case) -> Moves:
    record = state.record
    if record and record.status == "running" and record.leased and not _is_renewed(state, case, record):
        yield Move("lease ends", write(state, record._replace(leased=False)))
    if record and record.status == "waiting" and not record.due:
        yield Move("backoff elapsed", state._replace(record=record._replace(due=True)))
    for message in state.queue:
        gated = message.delay == "backoff" and record and record.status == "waiting" and not record.due
        if message.delay and not gated:
            arrived = (one._replace(delay="") if one == message else one for one in state.queue)
            yield Move(f"countdown of m{message.number} elapsed", state._replace(queue=tuple(sorted(arrived))))


def _is_renewed(state: State, case: Case, record: Record) -> bool:
    return any(
        worker.fence == record.fence
        and not worker.frozen
        and worker.step in RENEWS
        and (worker.step != "body only" or case.rules.drain_keeps_lease)
        for worker in state.workers
    )


# --- the broker


def _redeliver(state: State, case: Case, held: Held) -> Moves:
    number = held.message.number
    if case.broker == "amqp":
        owner = state.workers[held.owner]
        if owner.frozen and owner.message and owner.message.number == number:
            closed = restore(change_worker(state, held.owner, channel_lost=True), held)
            yield Move(f"broker closes W{held.owner + 1}'s channel, m{number} back", closed)
    elif not _is_in_hand(state, held.message):
        yield Move(f"sweep restores m{number}", restore(state, held))
    elif state.faults.steals:
        yield Move(f"skewed sweep steals m{number}", spend(restore(state, held), "steals"), fault=True)


def _is_in_hand(state: State, message: Message) -> bool:
    return any(
        worker.message and worker.message.number == message.number and not worker.frozen and worker.step != "popped"
        for worker in state.workers
    )


# --- the ledger


def _sweep(state: State, case: Case, task_id: int) -> Moves:
    record = state.record
    if _is_alive(state, task_id) or "submitted" in state.producers:
        return
    if record and record.task_id == task_id and _is_settled_by_sweep(record, case):
        settled = drop_entry(write(state, record._replace(status="revoked")), task_id)
        yield Move("ledger sweep settles the revoked job", settled)
    elif record is None or _is_due_for_sweep(record, case):
        generation = 1 if record is None else record.issued + case.rules.generations
        again = state if record is None else state._replace(record=record._replace(issued=generation))
        yield Move(f"ledger sweep publishes id{task_id} again", publish(again, task_id, generation))


def _is_alive(state: State, task_id: int) -> bool:
    messages = [*state.queue, *(held.message for held in state.unacked)]
    messages += [worker.message for worker in state.workers if worker.message]
    return any(message.task_id == task_id for message in messages)


def _is_settled_by_sweep(record: Record, case: Case) -> bool:
    holder_gone = record.status == "running" and record.revoked and not record.leased
    return record.status == "revoked" or (holder_gone and case.rules.sweep_settles_revoked)


def _is_due_for_sweep(record: Record, case: Case) -> bool:
    if record.status == "waiting":
        return record.due
    kept = case.rules.ledger == "to the end"
    return kept and (record.status != "running" or not record.leased)


# --- the store


def _age(state: State, case: Case) -> Moves:
    record = state.record
    may_expire = record is not None and record.status in ("done", "revoked")
    if state.faults.expired_markers and may_expire and not (case.rules.marker_outlives_copies and _has_copies(state)):
        expired = spend(state._replace(record=None, former=None), "expired_markers")
        yield Move("marker expires", expired, fault=True)
    if state.faults.lost_writes and state.former is not None and state.former != record:
        former = state.former
        lost = spend(state._replace(record=former, former=None), "lost_writes")
        alive = former.status in ("waiting", "running")
        lost = keep_entry(lost, case, former.task_id) if alive else lost
        yield Move("store fail-over loses the last write", lost, fault=True)


def _has_copies(state: State) -> bool:
    at_work = any(worker.step != "idle" and not worker.frozen for worker in state.workers)
    return bool(state.queue or state.unacked or at_work or {"begins", "submitted"} & set(state.producers))


# --- operators


def _operate(state: State, case: Case) -> Moves:
    record = state.record
    if state.faults.revokes and state.producers[0] == "published" and record:
        yield Move("revoke(id1)", _revoke(state, case, record), fault=True)
    if state.faults.outages and record and record.status == "running" and record.leased:
        yield _outage(state, case, record)
    if state.faults.replays and record and record.status == "dead":
        yield from _replay(state, case, record)


def _revoke(state: State, case: Case, record: Record) -> State:
    state = spend(state, "revokes")._replace(revoked=(1,))
    state = state._replace(workers=tuple(worker._replace(revoked=(1,)) for worker in state.workers))
    if record.task_id != 1:
        return state
    if not case.rules.revoke_leaves_tombstone:
        return drop_entry(write(state, None), 1)
    if record.status == "waiting":
        return drop_entry(write(state, record._replace(status="revoked")), 1)
    if record.status == "running":
        return write(state, record._replace(revoked=True))
    return state


def _outage(state: State, case: Case, record: Record) -> Move[State]:
    state = spend(state, "outages")
    if case.rules.grace:
        return Move("outage longer than the lease", state, fault=True)
    state = state._replace(record=record._replace(leased=False))
    for held in state.unacked:
        state = restore(state, held)
    return Move("outage longer than the lease: it is over, held messages restored", state, fault=True)


def _replay(state: State, case: Case, record: Record) -> Moves:
    waiting = record._replace(status="waiting", due=True, attempts=0, issued=record.issued + 1, revoked=False)
    entry = case.rules.ledger != "off" or case.rules.replay_writes_entry
    replayed = write(spend(state, "replays"), waiting)._replace(
        ledger=with_id(state.ledger, record.task_id) if entry else state.ledger,
        failed=without_id(state.failed, record.task_id),
        revoked=without_id(state.revoked, record.task_id),
        workers=tuple(worker._replace(revoked=()) for worker in state.workers),  # the message has a new id
    )
    published = publish(replayed, record.task_id, waiting.issued)
    yield Move("replay: letter to waiting, published", published, fault=True)
    if state.faults.producer_crashes:
        crashed = spend(replayed, "producer_crashes")
        yield Move("replay: letter to waiting, replayer dies before publish", crashed, fault=True)
