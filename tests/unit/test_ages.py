"""What is known of the age of messages that the broker does not show: never too little, and too much by a little."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_reliable.errors import StoreUnavailable
from celery_reliable.flow.ages import SHELF, Ages, oldest, told
from celery_reliable.sight import Load
from celery_reliable.stores.notes import MemoryNotes

BEGIN = 1_900_000_000.0
LOOKS = 1.0  # seconds between two looks of a worker
SAME = 0.5


@dataclass
class Scene:
    """One queue, on a clock moved by hand, and the workers that watch it."""

    workers: int = 1
    clock: float = 0.0
    waiting: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Make the workers."""
        self.notes = MemoryNotes(clock=lambda: BEGIN + self.clock)
        self.ages = [Ages(self.notes, ["q"], now=self.now) for _ in range(self.workers)]

    def now(self) -> int:
        """Return the server's time."""
        return int((BEGIN + self.clock) * 1e6)

    def deliver(self, worker: int = 0) -> None:
        """Give the oldest message to a worker."""
        self.ages[worker].received("q", self.waiting.popleft())

    def look(self, worker: int = 0) -> None:
        """Let a worker look, and tell."""
        if not self.waiting:
            self.ages[worker].empty("q", at=self.now())
        self.ages[worker].tell()

    def believed(self) -> float | None:
        """Return the age that producers believe."""
        stamp = oldest(self.notes, {"q": Load(len(self.waiting))})
        return (self.now() - stamp) / 1e6 if stamp else None


def test_nothing_is_known_before_a_worker_has_told() -> None:
    """And of an empty queue there is nothing to know."""
    scene = Scene()
    scene.waiting.append(scene.now())
    assert scene.believed() is None
    scene.deliver()
    scene.look()
    assert scene.believed() is None


def test_age_goes_on_growing_while_all_workers_are_busy() -> None:
    """Nobody receives anything, so nothing is noted: what was told stays true."""
    scene = Scene()
    scene.look()
    scene.clock = 0.5
    scene.waiting.append(scene.now())
    for scene.clock in (10.0, 60.0):
        scene.look()
        assert scene.believed() == pytest.approx(scene.clock)


def test_a_job_after_a_long_idle_time_is_young() -> None:
    """The queue was seen empty a second ago, though the last message came an hour ago."""
    scene = Scene()
    scene.waiting.append(scene.now())
    scene.deliver()
    for scene.clock in (1.0, 3600.0):
        scene.look()
    scene.clock = 3600.9
    scene.waiting.append(scene.now())
    assert scene.believed() == pytest.approx(0.9)


def test_a_worker_that_knows_less_takes_nothing_back() -> None:
    """Messages come to all workers in turn; the latest counts, whoever tells last."""
    scene = Scene(workers=2)
    scene.waiting.extend([scene.now(), scene.now() + 5_000_000, scene.now() + 9_000_000])
    scene.clock = 20.0
    scene.deliver(worker=0)
    scene.deliver(worker=1)
    for worker in (1, 0, 1, 0):
        scene.look(worker)
    assert scene.believed() == pytest.approx(15.0)


def test_the_oldest_of_several_lanes_counts_and_empty_ones_do_not() -> None:
    """A lane in which nothing waits may have been silent for hours."""
    scene = Scene()
    for queue, seconds in (("silent", 1), ("old", 50), ("young", 90)):
        ages = Ages(scene.notes, [queue], now=scene.now)
        scene.clock = 100.0
        ages.received(queue, scene.now() - (100 - seconds) * 1_000_000)
        ages.tell()
    loads = {"silent": Load(0), "old": Load(2), "young": Load(7), "unknown": Load(1)}
    assert (scene.now() - oldest(scene.notes, loads)) / 1e6 == pytest.approx(50.0)


@pytest.mark.parametrize("stamp", [0, -1, int((BEGIN + 9999) * 1e6)])
def test_a_message_of_unknown_age_makes_nothing_old(stamp: int) -> None:
    """No stamp, or the stamp of a producer whose clock is ahead: nobody is refused for what is not known."""
    scene = Scene()
    scene.look()
    scene.clock = 100.0
    scene.waiting.extend([stamp, scene.now()])
    scene.deliver()
    scene.look()
    believed = scene.believed()
    assert believed is not None
    assert believed == (100.0 if stamp < 0 else 0.0)


def test_a_store_that_is_away_leaves_the_depth() -> None:
    """The age is then not known."""

    class Away(MemoryNotes):
        def read(self, shelf: str, names: Any) -> Any:
            raise StoreUnavailable(shelf)

    assert oldest(Away(clock=lambda: BEGIN), {"q": Load(5)}) == 0


@pytest.mark.parametrize("seed", range(10))
def test_age_is_never_too_small_and_too_large_by_one_gap(seed: int) -> None:
    """Bursts, pauses and busy workers: the truth is exceeded by the gap between two submissions, or two looks, at most."""
    chance = random.Random(seed)
    scene = Scene(workers=2)
    stamps, compared = [scene.now()], 0
    scene.look()
    busy_until = arrives = 0.0
    for tick in range(6000):
        scene.clock = tick / 10
        if scene.clock >= arrives:
            stamps.append(scene.now())
            scene.waiting.append(scene.now())
            arrives = scene.clock + chance.choice([0.1, 0.3, 2.0, 15.0])
        if scene.waiting and scene.clock >= busy_until:
            scene.deliver(chance.randrange(2))
            busy_until = scene.clock + chance.choice([0.0, 0.2, 1.0, 30.0])
        if tick % int(LOOKS * 10):
            continue
        scene.look(0)
        scene.look(1)
        if scene.waiting:
            compared += 1
            truth, believed = (scene.now() - scene.waiting[0]) / 1e6, scene.believed()
            place = stamps.index(scene.waiting[0])
            gap = (stamps[place] - stamps[place - 1]) / 1e6
            assert believed is not None
            assert truth - 1e-3 <= believed <= truth + max(gap, LOOKS) + 2 * SAME
    assert compared > 100
    assert set(scene.notes.read(SHELF, ["q"])) == {"q"}


def test_what_was_told_is_known_of_each_queue_by_itself() -> None:
    """For a screen that shows many; of those of which nobody told, nothing is."""
    scene = Scene()
    scene.look()
    assert told(scene.notes, ["q", "other"]) == {"q": scene.now()}
