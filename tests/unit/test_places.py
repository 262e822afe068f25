"""Places and moments: who runs, who waits, nobody starves, and what becomes of a place whose holder died."""

from __future__ import annotations

import heapq
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_reliable import ConfigurationError
from celery_reliable.flow.places import Asker, Board, Full, Holder, Places, Waiter
from celery_reliable.flow.rates import LATE, SHELF, Later, Rates, Reserved, interval
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run
from tests.unit.meeting import MeetingNotes
from tests.unit.test_task import job_task, make_app

BEGIN = 1_900_000_000.0
TTL = 15.0


@dataclass
class Fleet:
    """Jobs that share places, on a clock moved by hand; ``claims`` is until when each is claimed."""

    clock: float = BEGIN
    claims: dict[bytes, float] = field(default_factory=dict)
    sure: bool = True

    def __post_init__(self) -> None:
        """Begin with free places."""
        self.notes = MeetingNotes(clock=lambda: self.clock)
        self.random = random.Random(11)
        self.looks = 0
        self.places = Places(
            self.notes, now=self.now, claim_ends=self._claim_ends, may_seize=lambda: self.sure, random=self.random
        )
        self.rates = Rates(self.notes, now=self.now, random=self.random)

    def now(self) -> int:
        """Return the server's clock."""
        return int(self.clock * 1e6)

    def _claim_ends(self, job: Job) -> int:
        self.looks += 1
        return int(self.claims.get(job.digest, 0) * 1e6)

    def asker(self, name: str, *, limit: int, stamp: float = BEGIN, token: str = "") -> Asker:
        """Return a run that asks."""
        return Asker("tenant:1", limit, Job(name), int(stamp * 1e6), token or name, TTL)

    def enter(self, name: str, *, limit: int = 2, stamp: float = BEGIN) -> bool:
        """Let a run ask, under a fresh claim; tell whether it has a place."""
        me = self.asker(name, limit=limit, stamp=stamp)
        self.claims[me.job.digest] = self.clock + TTL
        taken = self.places.enter(me) is None
        if not taken:
            del self.claims[me.job.digest]
        return taken

    def leave(self, name: str) -> None:
        """Let a run end."""
        me = self.asker(name, limit=2)
        self.claims.pop(me.job.digest, None)
        self.places.leave(me)


@pytest.fixture
def fleet() -> Fleet:
    """All places free."""
    return Fleet()


# --- places


def test_so_many_run_and_the_next_waits_until_one_leaves(fleet: Fleet) -> None:
    """A run that comes again, after its worker died, has its place already."""
    assert [fleet.enter(name) for name in "abca"] == [True, True, False, True]
    fleet.leave("b")
    assert fleet.enter("c")
    assert not fleet.enter("d")


def test_processes_that_ask_at_once_do_not_share_a_place(fleet: Fleet) -> None:
    """Compare and set: all have read the same board before one writes."""
    fleet.notes.meeting = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: fleet.enter(str(number), limit=3), range(8)))
    assert sum(taken) == 3


def test_a_dead_holder_frees_its_place_when_its_lease_is_over(fleet: Fleet) -> None:
    """And not before; a living one, renewed meanwhile, keeps it, and is looked at once a lease."""
    assert fleet.enter("dead")
    assert fleet.enter("alive")
    for second in range(1, 60):
        fleet.clock = BEGIN + second
        fleet.claims[Job("alive").digest] = fleet.clock + TTL
        assert fleet.enter("next") == (second >= TTL), second
        if second >= TTL:
            break
    for second in range(60):
        fleet.clock += 1
        fleet.claims[Job("alive").digest] = fleet.claims[Job("next").digest] = fleet.clock + TTL
        assert not fleet.enter("other"), second
    assert fleet.looks < 2 * 75 / TTL + 6


def test_a_stale_run_does_not_give_its_successor_s_place_away(fleet: Fleet) -> None:
    """It stood still; its job was taken over meanwhile, and has the place."""
    stale, successor = (fleet.asker("a", limit=1, token=token) for token in ("old", "new"))
    assert fleet.places.enter(stale) is fleet.places.enter(successor) is None
    fleet.places.leave(stale)
    assert not fleet.enter("b", limit=1)
    fleet.places.leave(successor)
    assert fleet.enter("b", limit=1)


def test_nobody_loses_a_place_while_the_fleet_s_renewals_were_away(fleet: Fleet) -> None:
    """The store was away for all: leases are over that nobody could renew."""
    assert fleet.enter("a", limit=1)
    fleet.clock += 2 * TTL
    fleet.sure = False
    assert not fleet.enter("b", limit=1)
    fleet.sure = True
    assert fleet.enter("b", limit=1)


def test_an_older_one_on_the_list_is_served_before_one_that_comes_now(fleet: Fleet) -> None:
    """A free place is not for who happens to ask first."""
    fleet.enter("a", limit=1)
    assert not fleet.enter("old", limit=1, stamp=BEGIN - 60)
    fleet.leave("a")
    assert not fleet.enter("new", limit=1)
    assert fleet.enter("old", limit=1, stamp=BEGIN - 60)


def test_who_waits_and_dies_keeps_no_place_empty(fleet: Fleet) -> None:
    """One that has not asked for ten seconds is off the list."""
    fleet.enter("a", limit=1)
    fleet.enter("gone", limit=1, stamp=BEGIN - 60)
    fleet.leave("a")
    fleet.clock += 10
    assert fleet.enter("new", limit=1)


@pytest.mark.parametrize("back", [30, 3600])
def test_who_died_waiting_keeps_no_place_empty_though_the_clock_went_back(fleet: Fleet, back: float) -> None:
    """Nor keeps others off the list; who lives is on it again when he asks, and served in turn."""
    fleet.enter("a", limit=1)
    for number in range(20):
        fleet.enter(f"gone{number}", limit=1, stamp=BEGIN - 60 - number)
    fleet.clock -= back
    assert not fleet.enter("old", limit=1, stamp=BEGIN - 50)
    fleet.leave("a")
    assert not fleet.enter("new", limit=1)
    assert fleet.enter("old", limit=1, stamp=BEGIN - 50)


def test_a_board_survives_its_note() -> None:
    """Every field; and what nobody uses leaves nothing behind."""
    board = Board((Holder("ab", 5, "t", "declared", 7),), (Waiter("cd", 1, 2, 3),))
    assert Board.from_bytes(board.to_bytes()) == board


@pytest.mark.parametrize(("limit", "seconds", "most"), [(1, 1.0, 1.9), (5, 0.05, 10.0), (5, 5.0, 1.7)])
def test_simulated_fleet_serves_all_and_the_oldest_soon(limit: int, seconds: float, most: float) -> None:
    """30 jobs at once, then new ones without end, as many as can be served: none of the first starves, no place is shared.

    Seed 11. The last of them is done within ``most`` times the time that a perfect queue takes; that is much for runs of
    50 ms, since each asks about once a second.
    """
    fleet, jobs = Fleet(), 30
    perfect = jobs * seconds / limit
    stamps = {f"first{n}": BEGIN + n / 1000 for n in range(jobs)}
    stamps |= {f"later{n}": BEGIN + 1 + n * max(seconds / limit, 0.2) for n in range(jobs)}
    events = [(stamp, "ask", name) for name, stamp in stamps.items()]
    heapq.heapify(events)
    running: set[str] = set()
    done: dict[str, float] = {}
    while len(done) < 2 * jobs:
        fleet.clock, kind, name = heapq.heappop(events)
        if kind == "end":
            running.discard(name)
            fleet.leave(name)
            done[name] = fleet.clock
            continue
        me = fleet.asker(name, limit=limit, stamp=stamps[name])
        fleet.claims[me.job.digest] = fleet.clock + 3600
        answer = fleet.places.enter(me)
        if isinstance(answer, Full):
            heapq.heappush(events, (fleet.clock + answer.seconds, "ask", name))
            continue
        running.add(name)
        assert len(running) <= limit
        heapq.heappush(events, (fleet.clock + seconds, "end", name))
    last = max(at for name, at in done.items() if name.startswith("first")) - BEGIN
    assert last < most * perfect, last / perfect


# --- moments


@pytest.mark.parametrize(("rate", "microseconds"), [("10/s", 100_000), ("100/m", 600_000), ("3/h", 1_200_000_000)])
def test_a_rate_is_an_interval(rate: str, microseconds: int) -> None:
    """Seconds, minutes, hours."""
    assert interval(rate) == microseconds


def test_runs_reserve_moments_one_after_the_other(fleet: Fleet) -> None:
    """The first begins now; beyond twenty seconds nothing is given away to the young, more to who is older."""
    answers = [fleet.rates.enter("mail", rate="60/m", age=0) for _ in range(22)]
    assert [answer.seconds for answer in answers[:21]] == [float(n) for n in range(21)]
    assert isinstance(answers[21], Later)
    assert isinstance(fleet.rates.enter("mail", rate="60/m", age=30), Reserved)
    assert isinstance(fleet.rates.enter("other", rate="60/m", age=0), Reserved)


def test_a_reserved_moment_is_kept_and_ends(fleet: Fleet) -> None:
    """Who comes with it runs without a question to the store; who comes too late reserves anew."""
    fleet.rates.enter("mail", rate="60/m", age=0)
    mine = fleet.rates.enter("mail", rate="60/m", age=0)
    assert isinstance(mine, Reserved)
    fleet.clock += 0.5
    assert fleet.rates.enter("mail", rate="60/m", age=0, moment=mine.moment) == Reserved(mine.moment, 0.5)
    fleet.clock += 0.6
    assert fleet.rates.enter("mail", rate="60/m", age=0, moment=mine.moment) == Reserved(mine.moment, 0.0)
    fleet.clock += LATE
    anew = fleet.rates.enter("mail", rate="60/m", age=0, moment=mine.moment)
    assert isinstance(anew, Reserved)
    assert anew.moment == fleet.now()


def test_processes_that_reserve_at_once_get_different_moments(fleet: Fleet) -> None:
    """Compare and set."""
    fleet.notes.meeting = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: fleet.rates.enter("mail", rate="60/m", age=0), range(8)))
    assert sorted(answer.seconds for answer in answers) == [float(n) for n in range(8)]


def test_a_clock_that_went_back_delays_by_no_more_than_it_did(fleet: Fleet) -> None:
    """A fail-over to a slower clock."""
    for _ in range(5):
        fleet.rates.enter("mail", rate="60/m", age=0)
    fleet.clock -= 10
    assert fleet.rates.enter("mail", rate="60/m", age=0) == Reserved(int((BEGIN + 5) * 1e6), 15.0)
    assert fleet.notes.read(SHELF, ["mail"])


# --- the task


def test_a_key_is_a_template_over_arguments_by_default_the_task() -> None:
    """Checked when the task is registered."""
    app = make_app()
    assert job_task(app).concurrency_name((1,), {}, version=1) == "unit.job"
    assert job_task(make_app(), concurrency_key="tenant:{x}").concurrency_name((7,), {}, version=1) == "tenant:7"
    wrong = make_app()
    job_task(wrong, concurrency_key="tenant:{tenant}")
    with pytest.raises(ConfigurationError, match=r"concurrency_key='tenant:\{tenant\}'.*no argument named tenant"):
        wrong.finalize()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("concurrency_limit", 0, "a whole number, at least 1 and at most 1000, or None"),
        ("concurrency_limit", -5, "a whole number, at least 1 and at most 1000, or None"),
        ("concurrency_limit", 10_000_000, "a whole number, at least 1 and at most 1000, or None"),
        ("fleet_rate_limit", "0/m", "a rate such as 10/s, 100/m or 1000/h, or None"),
        ("fleet_rate_limit", "100", "a rate such as 10/s, 100/m or 1000/h, or None"),
        ("fleet_rate_limit", -1, "a rate such as 10/s, 100/m or 1000/h, or None"),
    ],
)
def test_absurd_limits_are_refused(option: str, value: Any, expected: str) -> None:
    """With the option's name."""
    with pytest.raises(ConfigurationError, match=f"{option}: expected {expected}"):
        _ = job_task(make_app(), **{option: value}).reliable_settings


def test_the_runtime_knows_until_when_a_job_is_claimed() -> None:
    """By the server's clock; 0 for one that is not."""
    runtime = runtime_of(make_app())
    job = Job("a", "declared")
    assert runtime._claim_ends(job) == 0
    run = runtime.store.claim(job, task_id="a", life=0, token="t", ttl=20.0, max_deliveries=5, record_ttl=100.0)
    assert isinstance(run, Run)
    assert 15e6 < runtime._claim_ends(job) - runtime.store.now() <= 20e6
