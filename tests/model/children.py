"""Derived ids: which children exist in the end, wherever their parent was killed.

A body is a list of operations. It runs from its last checkpoint, is killed before one of them, runs to the end, and must
have submitted what one uninterrupted run submits (P14). A submission under an id that was seen is no new child.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Child = tuple[str, str]  # name and arguments
Operation = Child | Literal["checkpoint"]
Body = Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Call:
    """A submission made in a body, as the scheme of ids sees it."""

    child: Child
    checkpoints: int
    """Saved so far."""
    nth_since_checkpoint: int
    nth_of_run: int


Scheme = Callable[[Call], Hashable]


def draft(call: Call) -> Hashable:
    """Return the id of the first draft: name, arguments and the n-th such call of this run."""
    return call.child, call.nth_of_run


def contract(call: Call) -> Hashable:
    """Return the id of the contract: the number of checkpoints, too, and the n-th such call since the last one."""
    return call.checkpoints, call.child, call.nth_since_checkpoint


@dataclass(slots=True)
class Store:
    """What outlives a parent."""

    children: dict[Hashable, Child] = field(default_factory=dict)
    checkpoints: int = 0
    position: int = 0


def run(body: Body, store: Store, *, scheme: Scheme, killed_before: int | None = None) -> None:
    """Run a body from its last checkpoint, to its end or until it is killed."""
    of_run: Counter[Child] = Counter()
    since_checkpoint: Counter[Child] = Counter()
    for index in range(store.position, len(body)):
        if index == killed_before:
            return
        operation = body[index]
        if operation == "checkpoint":
            store.checkpoints, store.position = store.checkpoints + 1, index + 1
            since_checkpoint.clear()
        else:
            call = Call(operation, store.checkpoints, since_checkpoint[operation], of_run[operation])
            since_checkpoint[operation] += 1
            of_run[operation] += 1
            store.children.setdefault(scheme(call), operation)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a kill changes."""

    killed_before: int
    lost: int
    doubled: int


def differences(body: Body, *, scheme: Scheme) -> Iterator[Difference]:
    """Yield every place at which a kill loses or doubles a child."""
    wanted = Counter(operation for operation in body if operation != "checkpoint")
    for index in range(len(body) + 1):
        store = Store()
        run(body, store, scheme=scheme, killed_before=index)
        run(body, store, scheme=scheme)
        found = Counter(store.children.values())
        lost, doubled = (wanted - found).total(), (found - wanted).total()
        if lost or doubled:
            yield Difference(index, lost, doubled)


# --- canvases: whose members, and links, have ids of their own


def chords_completed(*, members: int, sent_before_kill: int, keeps_ids: bool) -> int:
    """Return how many bodies of a chord run whose parent was killed while it sent the members, and sent it again.

    ``keeps_ids``: a signature that has a task id already keeps it, as the contract has it. Else the members of the second
    chord meet those of the first, and report to its body, which was never complete.
    """
    owners: dict[Hashable, int] = {}
    for chord in range(2):
        for member in range(sent_before_kill if chord == 0 else members):
            owners.setdefault((chord, member) if keeps_ids else member, chord)
    return sum(1 for chord in range(2) if list(owners.values()).count(chord) == members)


def link_is_its_own(*, own_name_space: bool) -> bool:
    """Tell whether a link equal to a child is sent, when the outcome is replayed after a kill.

    The body submitted ``notify("x")``; then the parent was killed before it sent its link, ``notify("x")`` as well.
    """
    ids = {(space if own_name_space else "", "notify", "x", 0) for space in ("child", "link")}
    return len(ids) == 2


SUBMIT: Final[Child] = ("child", "0")
BODIES: Final[dict[str, Body]] = {
    "fan-out, distinct arguments, no checkpoint": [("child", str(number)) for number in range(6)],
    "fan-out, same arguments, no checkpoint": [SUBMIT] * 6,
    "fan-out, same arguments, checkpoint each": [SUBMIT, "checkpoint"] * 6,
    "fan-out, same arguments, checkpoint every 3": [*[SUBMIT] * 3, "checkpoint", *[SUBMIT] * 3],
    "child before and after the checkpoint": [("notify", "x"), "checkpoint", ("notify", "x")],
}
BROKEN_BY_DRAFT: Final = frozenset(list(BODIES)[2:])
