"""Retry budgets: what is granted, what is postponed, and what an outage comes to with them."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from celery_reliable import ConfigurationError
from celery_reliable.flow.budgets import FLOOR, POSTPONED, Budgets
from tests.docs_scripts import load_script
from tests.unit.meeting import MeetingNotes
from tests.unit.test_task import job_task, make_app


@dataclass
class Fleet:
    """Processes that share budgets, on a clock moved by hand; the server's may be stepped back."""

    clock: float = 1_900_000_000.0
    back: float = 0.0

    def __post_init__(self) -> None:
        """Begin with nothing counted."""
        self.notes = MeetingNotes(clock=self.server)

    def server(self) -> float:
        """Return the server's time."""
        return self.clock - self.back

    def process(self, *, late: float = 0.0) -> Budgets:
        """Return the budgets as one process sees them, which takes the server's clock for ``late`` seconds late."""
        now = lambda: int((self.server() - late) * 1e6)  # noqa: E731  # beside the other clock
        return Budgets(self.notes, now=now, random=random.Random(3), clock=lambda: self.clock)

    def granted(self, times: int, *, share: float = 0.2) -> int:
        """Ask for so many retries, each in a process of its own; return how many were granted."""
        return sum(self.process().retry("bank", share=share) == 0 for _ in range(times))


@pytest.fixture
def fleet() -> Fleet:
    """Nothing counted."""
    return Fleet()


def test_without_first_attempts_ten_retries_a_minute_are_granted(fleet: Fleet) -> None:
    """Ten more when the minute is over; those between are postponed for some time, not all for the same."""
    assert fleet.granted(30) == FLOOR
    process = fleet.process()
    waits = [process.retry("bank", share=0.2) for _ in range(20)]
    assert all(POSTPONED[0] <= wait <= POSTPONED[1] for wait in waits)
    assert max(waits) - min(waits) > 10
    fleet.clock += 125
    assert fleet.granted(30) == FLOOR


def test_a_share_of_the_first_attempts_of_all_processes_is_granted_beside(fleet: Fleet) -> None:
    """Told once a second, and with what follows: two processes with fifty each."""
    for process in (fleet.process(), fleet.process()):
        for _ in range(50):
            process.first("bank")
        fleet.clock += 1
        process.first("bank")
    assert fleet.granted(100) == FLOOR + int(0.2 * 102)
    assert fleet.granted(10, share=1.0) == 10


def test_counts_slide_with_the_minute(fleet: Fleet) -> None:
    """Half a minute later half of what was counted counts."""
    process = fleet.process()
    for _ in range(1000):
        process.first("bank")
    fleet.clock += 1
    process.first("bank")
    fleet.clock += 59 + 30
    assert 90 <= fleet.granted(300, share=0.2) - FLOOR <= 110


def test_a_retry_that_went_well_is_given_back(fleet: Fleet) -> None:
    """So a thousand that were postponed run as soon as their dependency is well, though nothing new comes."""
    process = fleet.process()
    for _ in range(1000):
        assert process.retry("bank", share=0.2) == 0
        process.give_back("bank")
    assert fleet.granted(30) == FLOOR
    for _ in range(3 * FLOOR):
        process.give_back("bank")
    assert fleet.granted(30) == FLOOR


def test_processes_that_ask_at_once_spend_the_budget_once(fleet: Fleet) -> None:
    """Compare and set: all have read the same counts before one writes."""
    assert fleet.granted(8) == 8
    fleet.notes.meeting = threading.Barrier(6)
    processes = [fleet.process() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda process: process.retry("bank", share=0.0), processes))
    assert answers.count(0.0) == FLOOR - 8


@pytest.mark.parametrize("back", [2, 30, 3600])
def test_a_server_whose_clock_went_back_grants_one_minute_s_budget_more(fleet: Fleet, back: float) -> None:
    """What was counted is forgotten; the new minute is bounded, and ends, and first attempts count in it."""
    assert fleet.granted(30) == FLOOR
    fleet.back = back
    assert fleet.granted(30) == FLOOR
    process = fleet.process()
    for _ in range(100):
        process.first("bank")
    fleet.clock += 1
    process.first("bank")
    assert fleet.granted(60) == 20
    fleet.clock += 125
    assert fleet.granted(30) == FLOOR


def test_processes_that_read_the_clock_a_little_differently_share_one_budget(fleet: Fleet) -> None:
    """Nobody wipes out what another one has spent."""
    processes = [fleet.process(late=late) for late in (0.0, 0.3, 0.1, 0.2)]
    assert sum(process.retry("bank", share=0.0) == 0 for process in processes * 5) == FLOOR


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "20%"])
def test_a_share_is_between_nothing_and_all(share: Any) -> None:
    """With the option's name."""
    with pytest.raises(ConfigurationError, match="retry_budget: expected a number from 0 to 1, or None"):
        _ = job_task(make_app(), retry_budget=share).reliable_settings


# --- the outage


def test_an_outage_with_5000_waiting_jobs_bears_little_on_the_dependency() -> None:
    """Five minutes, seed 7. The picture in the documentation is this one."""
    simulation = load_script("simulate_outage")
    outcomes = simulation.play()
    alone, budget, both = outcomes.values()
    assert (alone.failed, alone.dead) == (6 * simulation.JOBS, simulation.JOBS)
    assert budget.failed <= simulation.JOBS * 1.2 + 10 * 5 + 10
    assert budget.per_second(15, simulation.OUTAGE) < 0.25
    assert both.failed < 100
    assert both.per_second(5, simulation.OUTAGE) < 0.25
    assert max(both.calls.values()) <= 200
    for one in (budget, both):
        assert (one.done, one.dead) == (simulation.JOBS, 0)
    assert budget.ended < simulation.OUTAGE + 240
    assert both.ended < simulation.OUTAGE + 60
    assert simulation.PICTURE.read_text("utf-8") == simulation.drawn(outcomes), "run python docs/simulate_outage.py"
