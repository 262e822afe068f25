"""Take every step of the specification on a real store, and compare what it answers.

Time is moved by the walk: a lease ends as it does in a fleet that lives, the others' pulse going on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from celery_reliable.stores.base import Job, Store
from tests.model.specification import MAX_DELIVERIES, Step, World, steps

TTL: Final = 10.0
LONG: Final = 1e9
TASK_ID: Final = "T"

Path = tuple[Step, ...]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        """Begin somewhere."""
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.seconds


@dataclass(slots=True)
class Walk:
    """One walk from the start, under a key of its own."""

    store: Store
    clock: Clock
    job: Job
    world: World = field(default_factory=World)
    life: int = 0
    claims: dict[int, tuple[int, str]] = field(default_factory=dict)
    """What each worker holds, or believes to hold: fence and token."""
    given: int = 0
    taken: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Submit the job to a fleet that lives."""
        self.store.renew([], pulse_ttl=TTL)
        answer: Any = self.store.submit(self.job, task_id=TASK_ID, ttl=LONG)
        self.life = answer.life

    def take(self, step: Step) -> None:
        """Take a step. Raises AssertionError when the store answers otherwise than it is specified to."""
        ask: Callable[[Step], Any] | None = getattr(self, f"_{step.verb}", None)
        answer = ask(step) if ask is not None else None
        said = "" if answer is None else type(answer).__name__
        self.taken.append(f"W{step.who + 1} {step.verb}: {said}")
        assert said == step.answer, f"expected {step.answer or 'nothing'}; after {self.taken} the store said {answer}"
        self.world = step.after

    # --- what the store is asked

    def _claim(self, step: Step) -> Any:
        self.given += 1
        token = f"token {self.given}"
        answer: Any = self.store.claim(
            self.job,
            task_id=TASK_ID,
            life=self.life,
            token=token,
            ttl=TTL,
            max_deliveries=MAX_DELIVERIES,
            record_ttl=LONG,
        )
        if hasattr(answer, "fence"):
            assert answer.fence > max((fence for fence, _ in self.claims.values()), default=0), "a fence came again"
            self.claims[step.who] = answer.fence, token
        return answer

    def _save(self, step: Step) -> Any:
        return self.store.save(self.job, **self._right(step), name="step:one", body=b"1", ttl=LONG)

    def _complete(self, step: Step) -> Any:
        return self.store.complete(
            self.job, task_id=TASK_ID, **self._right(step), outcome=b"", marker_ttl=LONG, entry_ends=True
        )

    def _release(self, step: Step) -> Any:
        return self.store.release(self.job, **self._right(step), outcome="retry", delay=0.0, record_ttl=LONG)

    def _bury(self, step: Step) -> Any:
        return self.store.bury(
            self.job,
            task_id=TASK_ID,
            **self._right(step),
            letter_id=f"letter of {self.job.key} by {self.claims[step.who][1]}",
            letter=b"letter",
            letter_ttl=LONG,
            letter_max=1_000_000,
        )

    def _right(self, step: Step) -> dict[str, Any]:
        fence, token = self.claims[step.who]
        return {"fence": fence, "token": token}

    def _lapse(self, _: Step) -> None:
        """Let the lease end, while whoever lives renews: as no holder does, only the pulse goes on."""
        for _third in range(4):
            self.clock.seconds += TTL / 3
            self.store.renew([], pulse_ttl=TTL)


def walk_all(store: Store, clock: Clock, *, deepest: int = 99) -> int:
    """Take every step that is within reach at least once, each from the state that it belongs to; return how many there are."""
    ways, todo = _ways(deepest)
    number, taken = 0, 0
    for world, way in ways.items():
        while todo[world]:
            number += 1
            walk = Walk(store, clock, Job(f"walk:{number}", "declared", int(clock() * 1e6)))
            walk.begin()
            for step in way:
                walk.take(step)
            while ahead := todo.get(walk.world):
                walk.take(ahead.pop())
                taken += 1
    return taken


def _ways(deepest: int) -> tuple[dict[World, Path], dict[World, list[Step]]]:
    """Return the shortest way to each state, and what can happen there."""
    ways: dict[World, Path] = {World(): ()}
    todo: dict[World, list[Step]] = {}
    ahead = deque([World()])
    while ahead:
        world = ahead.popleft()
        todo[world] = list(steps(world)) if len(ways[world]) < deepest else []
        for step in todo[world]:
            if step.after not in ways:
                ways[step.after] = (*ways[world], step)
                ahead.append(step.after)
    return ways, todo
