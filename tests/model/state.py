"""Everything there is at one moment: the record, the messages, the workers, the producers, and what was observed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from tests.model.case import Case, Faults

Step = Literal[
    "idle",
    "popped",  # out of the queue, not yet among the unacked (Redis)
    "got",
    "held",  # waits for another's lease
    "held until due",
    "running",
    "returned",
    "raised transient",
    "raised permanent",
    "store away",
    "retrying",
    "reporting",
    "continuing",
    "stale",
    "acking",
    "body only",  # the message is given back or the parent dead, the body goes on
]
IN_BODY = ("running", "returned", "raised transient", "raised permanent", "store away", "body only")

Status = Literal["waiting", "running", "done", "dead", "revoked"]
Delay = Literal["", "backoff", "countdown"]


class Message(NamedTuple):
    """One message on its way; ``number`` stands for its delivery tag."""

    number: int
    task_id: int
    generation: int
    delay: Delay = ""


class Record(NamedTuple):
    """What the store knows of the key."""

    status: Status
    fence: int
    task_id: int
    issued: int
    """The newest generation given out."""
    claimed: int = 0
    """The newest generation that has claimed."""
    attempts: int = 0
    leased: bool = False
    due: bool = True
    revoked: bool = False
    """While it ran: no further run."""
    holder: int = -1
    dead_id: int = 0
    """The id of the life before this one, which died."""


class Worker(NamedTuple):
    """One worker with one slot."""

    step: Step = "idle"
    message: Message | None = None
    fence: int = 0
    frozen: bool = False
    was_frozen: bool = False
    """While it held this message."""
    channel_lost: bool = False
    revoked: tuple[int, ...] = ()
    """The revoked ids it knows."""


class Held(NamedTuple):
    """A message that was delivered and not acked."""

    message: Message
    owner: int


Producer = Literal["begins", "submitted", "published", "joined", "crashed", "refused"]


class State(NamedTuple):
    """One moment. Values only: two moments that are equal have the same future."""

    record: Record | None
    former: Record | None
    """The version of the record that a fail-over would bring back."""
    queue: tuple[Message, ...]
    unacked: tuple[Held, ...]
    workers: tuple[Worker, ...]
    producers: tuple[Producer, ...]
    top_fence: int
    """The largest fence ever given: it survives the record."""
    faults: Faults
    commits: int
    continued: tuple[int, ...]
    """The ids whose continuation was sent."""
    failed: tuple[int, ...]
    """The ids whose failure was reported."""
    letters: int
    ledger: tuple[int, ...]
    revoked: tuple[int, ...]
    wrong: tuple[str, ...]
    """What happened that must not."""


def start_of(case: Case) -> State:
    """Return the moment before the first submission."""
    workers = tuple(Worker() for _ in range(case.workers))
    producers: tuple[Producer, ...] = tuple("begins" for _ in range(case.submissions))
    return State(None, None, (), (), workers, producers, 0, case.faults, 0, (), (), 0, (), (), ())


# --- changed copies


def spend(state: State, fault: str) -> State:
    """Let one fault be over."""
    return state._replace(faults=state.faults.less(fault))


def change_worker(state: State, who: int, **fields: Any) -> State:  # Any: fields of a worker
    """Change one worker."""
    changed = state.workers[who]._replace(**fields)
    return state._replace(workers=(*state.workers[:who], changed, *state.workers[who + 1 :]))


def step_to(state: State, who: int, step: Step) -> State:
    """Let one worker go on with a step."""
    return change_worker(state, who, step=step)


def rest(state: State, who: int) -> State:
    """Let one worker have nothing."""
    return change_worker(state, who, step="idle", message=None, fence=0, was_frozen=False)


def change_producer(state: State, submission: int, step: Producer) -> State:
    """Let one producer go on."""
    return state._replace(producers=(*state.producers[:submission], step, *state.producers[submission + 1 :]))


def write(state: State, record: Record | None) -> State:
    """Write the record; a fail-over would bring the former one back."""
    return state._replace(former=state.record, record=record)


def observe(state: State, wrong: str) -> State:
    """Note what must not happen."""
    return state if wrong in state.wrong else state._replace(wrong=tuple(sorted((*state.wrong, wrong))))


def with_id(ids: tuple[int, ...], task_id: int) -> tuple[int, ...]:
    """Return a set of ids with one more."""
    return tuple(sorted({*ids, task_id}))


def without_id(ids: tuple[int, ...], task_id: int) -> tuple[int, ...]:
    """Return a set of ids without one."""
    return tuple(one for one in ids if one != task_id)


# --- messages


def publish(state: State, task_id: int, generation: int, delay: Delay = "") -> State:
    """Put a new message into the queue."""
    used = {message.number for message in state.queue} | {held.message.number for held in state.unacked}
    used |= {worker.message.number for worker in state.workers if worker.message}
    number = next(number for number in range(1, len(used) + 2) if number not in used)
    return enqueue(state, Message(number, task_id, generation, delay))


def enqueue(state: State, *messages: Message) -> State:
    """Put messages into the queue, whose order does not matter: any may be popped."""
    return state._replace(queue=tuple(sorted((*state.queue, *messages))))


def is_unacked(state: State, message: Message) -> bool:
    """Tell whether the broker has a message among those that were delivered."""
    return any(held.message.number == message.number for held in state.unacked)


def hold(state: State, message: Message, owner: int) -> State:
    """Put a message among those that were delivered."""
    others = [held for held in state.unacked if held.message.number != message.number]
    return state._replace(unacked=tuple(sorted([*others, Held(message, owner)])))


def drop(state: State, message: Message) -> State:
    """Take a message from those that were delivered, by its tag: whoever holds it now."""
    return state._replace(unacked=tuple(held for held in state.unacked if held.message.number != message.number))


def restore(state: State, held: Held) -> State:
    """Put a delivered message back into the queue."""
    left = state._replace(unacked=tuple(one for one in state.unacked if one != held))
    return enqueue(left, held.message._replace(delay=""))


def ack(state: State, case: Case, who: int) -> State:
    """Ack the message of a worker. On Redis its tag is also the tag of whoever has got it since."""
    worker = state.workers[who]
    if worker.message and (case.broker == "redis" or not worker.channel_lost):
        state = drop(state, worker.message)
    return rest(state, who)


def give_back(state: State, case: Case, who: int) -> State:
    """Give the message of a worker back, if it is still, or again, among the unacked."""
    worker = state.workers[who]
    lost = case.broker == "amqp" and worker.channel_lost
    if worker.message and not lost and is_unacked(state, worker.message):
        state = enqueue(drop(state, worker.message), worker.message._replace(delay=""))
    return rest(state, who)


def leave(state: State, case: Case, who: int) -> State:
    """Do not ack: the request ends, and unless the rules ask for a give-back nothing is said to the broker."""
    return give_back(state, case, who) if case.rules.gives_back_explicitly else rest(state, who)


# --- the ledger


def keep_entry(state: State, case: Case, task_id: int) -> State:
    """Keep the envelope of a submission, where there is a ledger."""
    return state if case.rules.ledger == "off" else state._replace(ledger=with_id(state.ledger, task_id))


def drop_entry(state: State, task_id: int) -> State:
    """Forget the envelope of a submission."""
    return state._replace(ledger=without_id(state.ledger, task_id))


def end_entry(state: State, case: Case, task_id: int) -> State:
    """The outcome is final: the entry goes, unless a continuation has to be sent first."""
    waits = case.rules.entry_lasts_to_report and case.continues(task_id)
    return state if waits else drop_entry(state, task_id)


# --- equal moments


def normal(state: State, case: Case) -> State:
    """Number generations and fences anew: only their order matters, so that loops of waiting close."""
    if not case.faults.lost_writes:
        state = state._replace(former=None)
    records = [record for record in (state.record, state.former) if record]
    generations = _ranks(
        [
            0,
            *(number for record in records for number in (record.claimed, record.issued)),
            *(message.generation for message in state.queue),
            *(held.message.generation for held in state.unacked),
            *(worker.message.generation for worker in state.workers if worker.message),
        ]
    )
    fences = _ranks([0, state.top_fence, *(one.fence for one in records), *(worker.fence for worker in state.workers)])
    if max(generations) == len(generations) - 1 and max(fences) == len(fences) - 1:
        return state
    return _renumbered(state, generations, fences)


def _ranks(numbers: list[int]) -> dict[int, int]:
    return {number: rank for rank, number in enumerate(sorted(set(numbers)))}


def _renumbered(state: State, generations: dict[int, int], fences: dict[int, int]) -> State:
    def record(one: Record | None) -> Record | None:
        return one and one._replace(
            claimed=generations[one.claimed], issued=generations[one.issued], fence=fences[one.fence]
        )

    def message(one: Message) -> Message:
        return one._replace(generation=generations[one.generation])

    def worker(one: Worker) -> Worker:
        return one._replace(message=message(one.message) if one.message else None, fence=fences[one.fence])

    return state._replace(
        record=record(state.record),
        former=record(state.former),
        queue=tuple(sorted(map(message, state.queue))),
        unacked=tuple(sorted(held._replace(message=message(held.message)) for held in state.unacked)),
        workers=tuple(map(worker, state.workers)),
        top_fence=fences[state.top_fence],
    )
