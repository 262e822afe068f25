"""Two beats, the slots of one entry, and a store: claim, publish, confirm.

Checked: a slot never takes effect twice and is never fired before its time by the store's clock; and when faults stop,
every due slot takes effect in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from tests.model.explorer import Finding, Model, Move, explore

SLOTS: Final = 2
MOST_EPOCHS: Final = 6
TWICE: Final = "slot took effect twice"
EARLY: Final = "slot fired before its time; the true leader will find it taken"
LOST: Final = "a due slot never takes effect"

Step = Literal["idle", "due", "claimed", "checked", "published", "down"]
SlotState = Literal["free", "claimed", "confirmed", "gone"]


class Faults(NamedTuple):
    """How often each thing may still go wrong."""

    crashes: int = 0
    freezes: int = 0
    refused_publishes: int = 0
    lost_writes: int = 0
    expired_markers: int = 0
    expired_slots: int = 0

    def less(self, name: str) -> Faults:
        """Return what may go wrong after one of these did."""
        return self._replace(**{name: getattr(self, name) - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The contract of the beat. By default the first draft."""

    any_leader_publishes_again: bool = False
    """B3: an unconfirmed claim is published again by whoever leads, the same leader included."""
    compares_last_slot: bool = False
    """B1: a claim compares and sets the entry's last fired slot."""
    checks_epoch: bool = False
    """B1: a claim is made under the leader's epoch."""
    server_clock: bool = False
    """B2: due-ness by the store's clock; a slot in the future cannot be claimed."""
    confirms_first: bool = False
    """B4: a plain task is confirmed before it is published."""
    refuses_old: bool = False
    """B5: a worker refuses a slot older than its marker's life."""


EVERY_RULE: Final = Rules(
    any_leader_publishes_again=True, compares_last_slot=True, checks_epoch=True, server_clock=True, refuses_old=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario."""

    faults: Faults
    rules: Rules = Rules()
    ahead: int = 0
    """By so many slots is the clock of the first beat ahead."""
    plain: bool = False
    """The entry's task is no `ReliableTask`: every message is a run."""


class Beat(NamedTuple):
    """One beat."""

    step: Step = "idle"
    slot: int = 0
    epoch: int = 0
    """In which it believes to lead; 0: in none."""
    frozen: bool = False
    inherits: bool = False
    """It still has to publish what it found unconfirmed."""


class State(NamedTuple):
    """One moment."""

    now: int
    """The last due slot by the store's clock."""
    leader: int
    epoch: int
    slots: tuple[SlotState, ...]
    last: int
    beats: tuple[Beat, ...]
    runs: tuple[int, ...]
    markers: tuple[bool, ...]
    faults: Faults
    former: tuple[tuple[SlotState, ...], int] | None
    wrong: str


Moves = Iterator[Move[State]]
NOBODY: Final = -1


def check(case: Case) -> Finding:
    """Explore a scenario."""
    slots: tuple[SlotState, ...] = tuple("free" for _ in range(SLOTS))
    start = State(0, NOBODY, 0, slots, 0, (Beat(), Beat()), (0,) * SLOTS, (False,) * SLOTS, case.faults, None, "")
    model = Model(
        start=start,
        moves=partial(moves, case=case),
        wrong=lambda state: state.wrong,
        is_good_end=partial(_is_good_end, case=case),
        lost=LOST,
    )
    return explore(model)


def _is_good_end(state: State, *, case: Case) -> bool:
    at_most_once = case.plain and case.rules.confirms_first
    return at_most_once or (state.now == SLOTS and all(state.runs))


def moves(state: State, *, case: Case) -> Moves:
    """Yield every step that may come next."""
    for move in _all_moves(state, case):
        following = move.state
        if following.epoch <= MOST_EPOCHS:
            kept = following if case.faults.lost_writes else following._replace(former=None)
            yield Move(move.label, kept, move.fault)


def _all_moves(state: State, case: Case) -> Moves:
    if state.now < SLOTS:
        yield Move(f"slot {state.now + 1} is due", state._replace(now=state.now + 1))
    for who in range(len(state.beats)):
        yield from _beat(state, case, who)
    yield from _surroundings(state, case)


# --- changed copies


def _change(state: State, who: int, **fields: Any) -> State:  # Any: fields of a beat
    return state._replace(beats=_put(state.beats, who, state.beats[who]._replace(**fields)))


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:  # Any: of whatever
    return (*values[:index], value, *values[index + 1 :])


def _spend(state: State, fault: str) -> State:
    return state._replace(faults=state.faults.less(fault))


def _write(state: State, slot: int, slot_state: SlotState) -> State:
    """Write a slot; a fail-over would bring back what was before."""
    return state._replace(former=(state.slots, state.last), slots=_put(state.slots, slot - 1, slot_state))


# --- a beat


def _beat(state: State, case: Case, who: int) -> Moves:
    beat = state.beats[who]
    if beat.step == "down":
        yield Move(f"B{who + 1} restarts", _change(state, who, step="idle", epoch=0))
    elif beat.frozen:
        yield Move(f"B{who + 1} thaws", _change(state, who, frozen=False))
    else:
        yield from _suffer(state, who)
        yield from STEPS[beat.step](state, case, who)


def _suffer(state: State, who: int) -> Moves:
    step = state.beats[who].step
    if state.faults.crashes:
        down = _change(_spend(state, "crashes"), who, step="down", epoch=0, slot=0, inherits=False)
        yield Move(f"B{who + 1} SIGKILL while {step}", down, fault=True)
    if state.faults.freezes:
        yield Move(f"B{who + 1} frozen while {step}", _change(_spend(state, "freezes"), who, frozen=True), fault=True)


def _look(state: State, case: Case, who: int) -> Moves:
    beat = state.beats[who]
    if state.leader == NOBODY:
        elected = state._replace(leader=who, epoch=state.epoch + 1)
        yield Move(f"B{who + 1} leads", _change(elected, who, epoch=state.epoch + 1, inherits=True))
    elif beat.epoch and not _leads(state, who):
        yield Move(f"B{who + 1} sees it lost the lead", _change(state, who, epoch=0))
    elif beat.epoch:
        yield from _plan(state, case, who)


def _plan(state: State, case: Case, who: int) -> Moves:
    beat = state.beats[who]
    unconfirmed = [slot for slot in _numbers() if state.slots[slot - 1] == "claimed"]
    if unconfirmed and (beat.inherits or case.rules.any_leader_publishes_again):
        found = _change(state, who, step="claimed", slot=unconfirmed[0])
        yield Move(f"B{who + 1} finds slot {unconfirmed[0]} unconfirmed", found)
        return
    due = [slot for slot in _numbers() if slot <= _clock(state, case, who) and _looks_free(state, case, slot)]
    if due:
        fires = _change(state, who, step="due", slot=due[0], inherits=False)
        yield Move(f"B{who + 1} is due to fire slot {due[0]}", fires)
    elif beat.inherits:
        yield Move(f"B{who + 1} has nothing left over", _change(state, who, inherits=False))


def _clock(state: State, case: Case, who: int) -> int:
    return state.now + (case.ahead if who == 0 and not case.rules.server_clock else 0)


def _looks_free(state: State, case: Case, slot: int) -> bool:
    gone = state.slots[slot - 1] == "gone" and not case.rules.compares_last_slot
    return (state.slots[slot - 1] == "free" or gone) and slot > state.last


def _claim(state: State, case: Case, who: int) -> Moves:
    slot = state.beats[who].slot
    if not _may_claim(state, case, who):
        yield Move(f"B{who + 1} claim of slot {slot} refused", _change(state, who, step="idle", slot=0))
        return
    claimed = _write(state, slot, "claimed")._replace(last=max(state.last, slot))
    if slot > state.now:
        claimed = claimed._replace(wrong=EARLY)
    yield Move(f"B{who + 1} claims slot {slot}", _change(claimed, who, step="claimed"))


def _may_claim(state: State, case: Case, who: int) -> bool:
    beat = state.beats[who]
    if case.rules.compares_last_slot and beat.slot <= state.last:
        return False
    if case.rules.checks_epoch and state.epoch != beat.epoch:
        return False
    return state.slots[beat.slot - 1] in ("free", "gone")


def _check(state: State, case: Case, who: int) -> Moves:
    if _leads(state, who):
        yield Move(f"B{who + 1} checks: still leads", _change(state, who, step="checked"))
    else:
        yield Move(f"B{who + 1} checks: lost the lead", _change(state, who, step="idle", slot=0, epoch=0))


def _publish(state: State, case: Case, who: int) -> Moves:
    slot = state.beats[who].slot
    if case.rules.confirms_first and case.plain:
        yield _confirm_first(state, case, who)
        return
    yield Move(f"B{who + 1} publishes slot {slot}", _change(_take_effect(state, case, slot), who, step="published"))
    if state.faults.refused_publishes:
        refused = _change(_spend(state, "refused_publishes"), who, step="idle", slot=0)
        yield Move(f"B{who + 1} publish of slot {slot} refused", refused, fault=True)


def _confirm_first(state: State, case: Case, who: int) -> Move[State]:
    slot = state.beats[who].slot
    if state.slots[slot - 1] != "claimed":
        confirmed = _change(state, who, step="idle", slot=0)
        return Move(f"B{who + 1} slot {slot} was confirmed by another", confirmed)
    published = _take_effect(_write(state, slot, "confirmed"), case, slot)
    return Move(f"B{who + 1} confirms slot {slot}, then publishes", _change(published, who, step="idle", slot=0))


def _take_effect(state: State, case: Case, slot: int) -> State:
    """Let the message be run, unless a marker, or the worker, refuses it."""
    index = slot - 1
    if not case.plain and (state.markers[index] or (case.rules.refuses_old and state.runs[index])):
        return state
    runs = _put(state.runs, index, state.runs[index] + 1)
    state = state._replace(runs=runs, markers=_put(state.markers, index, True))  # noqa: FBT003  # a value
    return state._replace(wrong=TWICE) if runs[index] > 1 else state


def _confirm(state: State, case: Case, who: int) -> Moves:
    slot = state.beats[who].slot
    confirmed = _write(state, slot, "confirmed") if state.slots[slot - 1] == "claimed" else state
    yield Move(f"B{who + 1} confirms slot {slot}", _change(confirmed, who, step="idle", slot=0))


def _leads(state: State, who: int) -> bool:
    return state.leader == who and state.epoch == state.beats[who].epoch


def _numbers() -> range:
    return range(1, SLOTS + 1)


STEPS: Final[dict[Step, Callable[[State, Case, int], Moves]]] = {
    "idle": _look,
    "due": _claim,
    "claimed": _check,
    "checked": _publish,
    "published": _confirm,
}


# --- time and store


def _surroundings(state: State, case: Case) -> Moves:
    if state.leader != NOBODY:
        leader = state.beats[state.leader]
        if leader.frozen or leader.step == "down" or leader.epoch != state.epoch:
            yield Move("leader lease ends", state._replace(leader=NOBODY))
    if state.faults.lost_writes and state.former and state.former != (state.slots, state.last):
        slots, last = state.former
        lost = _spend(state, "lost_writes")._replace(slots=slots, last=last, former=None)
        yield Move("store loses the last write", lost, fault=True)
    for slot in _numbers():
        yield from _expire(state, case, slot)


def _expire(state: State, case: Case, slot: int) -> Moves:
    if state.faults.expired_markers and state.markers[slot - 1]:
        expired = _spend(state, "expired_markers")
        markers = _put(state.markers, slot - 1, False)  # noqa: FBT003  # a value
        yield Move(f"marker of slot {slot} expires", expired._replace(markers=markers), fault=True)
    if state.faults.expired_slots and state.slots[slot - 1] == "confirmed":
        yield Move(f"record of slot {slot} expires", _forget_slot(state, case, slot), fault=True)


def _forget_slot(state: State, case: Case, slot: int) -> State:
    """Let a slot's record expire; where slots are all that is kept, the last one is forgotten with it."""
    last = state.last if case.rules.compares_last_slot else 0
    return _spend(state, "expired_slots")._replace(slots=_put(state.slots, slot - 1, "gone"), last=last)


# --- scenarios


def repaired(case: Case) -> Case:
    """Return a scenario with every rule."""
    return replace(case, rules=replace(EVERY_RULE, confirms_first=case.plain))


SMALL: Final[dict[str, Case]] = {
    "refused publish, the leader lives on": Case(faults=Faults(refused_publishes=1)),
    "plain task, crash between publish and confirm": Case(faults=Faults(crashes=1), plain=True),
    "clock of one beat ahead": Case(faults=Faults(), ahead=1),
    "frozen past the check, marker gone": Case(faults=Faults(freezes=1, expired_markers=1)),
    "slot records expire": Case(faults=Faults(freezes=1, expired_slots=1), plain=True),
    "store loses the last write, plain task": Case(faults=Faults(lost_writes=1), plain=True),
    "store loses the last write": Case(faults=Faults(lost_writes=1)),
    "crash and freeze": Case(faults=Faults(crashes=1, freezes=1)),
}
# B4: a store that loses its last write can double the slot of a task that is not idempotent.
NEVER_HOLDS: Final = frozenset({"store loses the last write, plain task"})
HOLDS_BY_DRAFT: Final = frozenset({"store loses the last write"})

LARGE: Final = Case(
    faults=Faults(crashes=2, freezes=1, refused_publishes=1, lost_writes=1, expired_markers=1, expired_slots=1),
    ahead=1,
    rules=EVERY_RULE,
)
