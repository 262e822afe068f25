"""Visit every state that a model can reach, the nearest first.

Safety is asked of every state. Liveness is "from every reachable state a good end can be reached without any further
fault", which finds lost jobs and livelocks alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

State = TypeVar("State", bound=Hashable)
MOST_STATES = 2_500_000


@dataclass(slots=True)
class Move(Generic[State]):
    """One step: what happens, where it leads, and whether it is a fault, on which no good end may depend."""

    label: str
    state: State
    fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Generic[State]):
    """What can be explored. ``wrong`` names what must not be, or says ""; ``lost`` what it means to get nowhere."""

    start: State
    moves: Callable[[State], Iterable[Move[State]]]
    wrong: Callable[[State], str]
    is_good_end: Callable[[State], bool]
    lost: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on a model, the number of states seen, and the shortest way to what is wrong."""

    verdict: Literal["ok", "unsafe", "lost", "too many states"]
    states: int
    what: str = ""
    trace: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Tell whether every state is safe and none is stuck."""
        return self.verdict == "ok"


Origins = dict[State, tuple[State, str] | None]


def explore(model: Model[State], *, most: int = MOST_STATES) -> Finding:
    """Return what is wrong in the first state, by distance, in which something is."""
    origins: Origins[State] = {model.start: None}
    before: dict[State, list[State]] = {}  # by steps that are no faults
    ahead = deque([model.start])
    while ahead:
        state = ahead.popleft()
        for move in model.moves(state):
            following = move.state
            if following not in origins:
                origins[following] = (state, move.label)
                if len(origins) > most:
                    return Finding("too many states", len(origins))
                if what := model.wrong(following):
                    return Finding("unsafe", len(origins), what, _trace(origins, following))
                ahead.append(following)
            if not move.fault:
                before.setdefault(following, []).append(state)
    return _stuck(model, origins, before)


def _stuck(model: Model[State], origins: Origins[State], before: dict[State, list[State]]) -> Finding:
    """Look for a state from which no good end can be reached."""
    hopeful = {state for state in origins if model.is_good_end(state)}
    unfollowed = list(hopeful)
    while unfollowed:
        for state in before.get(unfollowed.pop(), ()):
            if state not in hopeful:
                hopeful.add(state)
                unfollowed.append(state)
    for state in origins:
        if state not in hopeful:
            return Finding("lost", len(origins), model.lost, _trace(origins, state))
    return Finding("ok", len(origins))


def _trace(origins: Origins[State], state: State) -> tuple[str, ...]:
    labels = []
    while (origin := origins[state]) is not None:
        state, label = origin
        labels.append(label)
    return tuple(reversed(labels))
