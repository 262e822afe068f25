"""Breakers: when one opens, who may probe, when it closes, and what a process writes."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable import Permanent, ReliableTask, Snooze, StoreUnavailable, Transient
from celery_reliable.errors import BreakerOpen, StoreError
from celery_reliable.flow import breaker as guarded
from celery_reliable.flow.breakers import CACHED, Breakers, Closed, Pass
from celery_reliable.flow.breaking import CALM, SECOND, Breaker, Told, probed, told
from celery_reliable.flow.window import Window
from celery_reliable.runtime import runtime_of
from celery_reliable.settings.policies import BreakerPolicy
from celery_reliable.stores.notes import Note, Write
from tests.unit.meeting import MeetingNotes
from tests.unit.test_task import job_task, make_app

BEGIN = 1_900_000_000 * SECOND
POLICY = BreakerPolicy(failures=3, window=60.0, open_for=30.0, probes=2)
MINUTE = 60 * SECOND


class CountedNotes(MeetingNotes):
    """Notes that count their calls, and may be away."""

    away = False
    reads = 0
    writes = 0

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Count."""
        self._answer()
        self.reads += 1
        return super().read(shelf, names)

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Count."""
        self._answer()
        self.writes += 1
        return super().write(shelf, writes)

    def _answer(self) -> None:
        if self.away:
            msg = "away"
            raise StoreUnavailable(msg)


@dataclass
class Fleet:
    """Processes that share breakers, on a server's clock moved by hand."""

    clock: float = BEGIN / SECOND
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.notes = CountedNotes(clock=lambda: self.clock)
        self._tokens = itertools.count()

    def process(self) -> Breakers:
        """Return the breakers as one process sees them."""
        return Breakers(
            self.notes,
            now=lambda: int(self.clock * SECOND),
            policies={"bank": POLICY},
            random=random.Random(7),
            token=lambda: f"token{next(self._tokens)}",
            emit=self._emit,
        )

    def _emit(self, name: str, **facts: Any) -> None:
        self.events.append((name, facts))

    def call(self, breakers: Breakers, *, well: bool | None) -> Pass | Closed:
        """Call the dependency if it may be called."""
        answer = breakers.enter("bank")
        if isinstance(answer, Pass):
            breakers.leave(answer, well=well)
        return answer

    def break_it(self) -> Breakers:
        """Open the breaker."""
        process = self.process()
        for _ in range(POLICY.failures):
            self.call(process, well=False)
        return process

    def names(self) -> list[str]:
        """Return which events were emitted."""
        return [name for name, _ in self.events]


@pytest.fixture
def fleet() -> Fleet:
    """Nothing known."""
    return Fleet()


def after(*reports: Told, policy: BreakerPolicy = POLICY, each: int = 0) -> Breaker:
    """Return a breaker after some reports, so many microseconds apart."""
    found = CALM
    for number, report in enumerate(reports):
        found = told(found, report, policy=policy, now=BEGIN + number * each)
    return found


# --- when it opens


def test_it_opens_after_failures_in_a_row() -> None:
    """One less is not enough, and a success in between begins the row anew."""
    bad, mended = Told(bad=1), Told(good=1, mended=True)
    assert after(bad, bad).phase(BEGIN) == "closed"
    assert after(bad, bad, bad).phase(BEGIN) == "open"
    assert after(bad, bad, mended, bad, bad).phase(BEGIN) == "closed"


def test_successes_counted_before_the_failures_do_not_mend() -> None:
    """A process that was well until a minute ago tells so with its own first failure."""
    assert after(Told(bad=1), Told(bad=1), Told(good=50, bad=1)).phase(BEGIN) == "open"


def test_it_opens_when_too_many_of_the_calls_fail() -> None:
    """Never three in a row, but half of them all; below six calls nothing can be told."""
    mixed = [Told(good=1, bad=1, mended=True)] * 2
    assert after(*mixed).phase(BEGIN) == "closed"
    assert after(*mixed, *mixed[:1]).phase(BEGIN) == "open"
    mostly_well = [Told(good=3, bad=1, mended=True)] * 20
    assert after(*mostly_well).phase(BEGIN) == "closed"


def test_failures_of_long_ago_do_not_count_in_the_ratio() -> None:
    """The window slides."""
    policy = BreakerPolicy(failures=3, window=60)
    pair = Told(good=1, bad=1, mended=True)
    assert after(*[pair] * 6, policy=policy, each=2 * MINUTE).phase(BEGIN) == "closed"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.floats(0.1, 1.0))
def test_a_closed_breaker_never_has_what_would_open_it(calls: list[tuple[int, int]], ratio: float) -> None:
    """Whatever is told, in one instant: it is open, or below both limits."""
    policy = BreakerPolicy(failures=3, ratio=ratio)
    found = after(*(Told(good, bad, mended=good > 0) for good, bad in calls), policy=policy)
    if found.phase(BEGIN) != "closed":
        return
    good, bad = found.calls.counts(BEGIN, length=MINUTE)
    assert found.failures < 3
    assert good + bad < 6 or bad < ratio * (good + bad) or calls[-1][1] == 0


@pytest.mark.parametrize("back", [2, 30, 3600])
def test_a_clock_that_went_back_ends_a_window(back: int) -> None:
    """A fail-over to a slower clock does not keep old counts for ever."""
    window = Window(BEGIN, (5, 5), (5, 5)).at(BEGIN - back * SECOND, length=MINUTE)
    assert window == Window(BEGIN - back * SECOND)


def test_what_processes_take_for_now_may_differ_a_little() -> None:
    """By what a round trip takes: it wipes out nothing that another one has counted, nor does it count for more."""
    window = Window(BEGIN, (5, 5), (4, 2))
    late = BEGIN - SECOND // 5
    assert window.at(late, length=MINUTE) == window
    assert window.counts(late, length=MINUTE) == (9, 7)


# --- half open


def test_only_so_many_probe_at_once_and_as_many_successes_close() -> None:
    """A third waits; the breaker closes with the second success."""
    now = BEGIN + 31 * SECOND
    found = after(*[Told(bad=1)] * 3)
    assert found.phase(now) == "half_open"
    first = probed(found, "a", policy=POLICY, now=now)
    assert first is not None
    second = probed(first, "b", policy=POLICY, now=now)
    assert second is not None
    assert probed(second, "c", policy=POLICY, now=now) is None
    half = told(second, Told(good=1, probe="a"), policy=POLICY, now=now)
    assert probed(half, "c", policy=POLICY, now=now) is None
    assert told(half, Told(good=1, probe="b"), policy=POLICY, now=now) == CALM


def test_one_failed_probe_opens_again_and_a_late_run_says_nothing() -> None:
    """What began before it opened is no probe."""
    now = BEGIN + 31 * SECOND
    found = after(*[Told(bad=1)] * 3)
    out = probed(found, "a", policy=POLICY, now=now)
    assert out is not None
    assert told(out, Told(good=9, bad=1), policy=POLICY, now=now) == out
    assert told(out, Told(bad=1, probe="a"), policy=POLICY, now=now).until == now + 30 * SECOND


def test_a_probe_whose_process_died_makes_room() -> None:
    """After as long as the breaker stays open."""
    now = BEGIN + 31 * SECOND
    out: Breaker | None = after(*[Told(bad=1)] * 3)
    for token in ("a", "b"):
        assert out is not None
        out = probed(out, token, policy=POLICY, now=now)
    assert out is not None
    assert probed(out, "c", policy=POLICY, now=now + 29 * SECOND) is None
    assert probed(out, "c", policy=POLICY, now=now + 31 * SECOND) is not None


def test_a_breaker_survives_its_note() -> None:
    """Every field."""
    found = Breaker(BEGIN, held=True, failures=2, calls=Window(BEGIN, (1, 2), (3, 4)), probes=(("a", 5),), passed=1)
    assert Breaker.from_bytes(found.to_bytes()) == found


# --- in a fleet


def test_a_dependency_that_is_well_costs_one_read_a_second_and_no_write(fleet: Fleet) -> None:
    """However many tasks call it."""
    process, began = fleet.process(), time.monotonic()
    for _ in range(500):
        fleet.call(process, well=True)
    assert fleet.notes.writes == 0
    assert fleet.notes.reads <= 1 + (time.monotonic() - began) / CACHED


def test_all_processes_wait_once_it_is_open_and_not_all_until_the_same_moment(fleet: Fleet) -> None:
    """It is said once, by the process that opened it."""
    fleet.break_it()
    answers = [fleet.process().enter("bank") for _ in range(3)]
    more = fleet.process()
    answers += [more.enter("bank") for _ in range(20)]
    waits = [answer.seconds for answer in answers if isinstance(answer, Closed)]
    assert len(waits) == 23
    assert all(30 < wait <= 46 for wait in waits)
    assert max(waits) - min(waits) > 5
    assert fleet.names() == ["breaker_opened"]
    assert fleet.process().enter("shop") == Pass("shop")


@pytest.mark.parametrize("well", [True, False, None])
def test_probes_decide(fleet: Fleet, *, well: bool | None) -> None:
    """Closed, open again, or still half open when they said nothing; each is said once."""
    fleet.break_it()
    fleet.clock += 31
    for _ in range(POLICY.probes):
        assert isinstance(fleet.call(fleet.process(), well=well), Pass | Closed)
    answer = fleet.process().enter("bank")
    if well is False:
        assert isinstance(answer, Closed)
        assert fleet.names() == ["breaker_opened", "breaker_opened"]
    elif well:
        assert answer == Pass("bank")
        assert fleet.names() == ["breaker_opened", "breaker_closed"]
    else:
        assert isinstance(answer, Pass)
        assert answer.probe


def test_processes_that_ask_at_once_get_as_many_probes_as_there_are(fleet: Fleet) -> None:
    """Compare and set: all have read the same breaker before one writes."""
    fleet.break_it()
    fleet.clock += 31
    processes = [fleet.process() for _ in range(8)]
    fleet.notes.meeting = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda process: process.enter("bank"), processes))
    assert sum(isinstance(answer, Pass) for answer in answers) == POLICY.probes


def test_the_store_away_lets_tasks_run_and_says_so(fleet: Fleet) -> None:
    """One that was seen open stays so for its time; a failure is told when the store is back."""
    process = fleet.process()
    fleet.notes.away = True
    assert fleet.call(process, well=False) == Pass("bank")
    assert fleet.names() == ["breaker_unknown"] * 2
    fleet.notes.away = False
    for _ in range(POLICY.failures - 1):
        fleet.call(process, well=False)
    assert isinstance(process.enter("bank"), Closed)
    fleet.notes.away = True
    assert isinstance(process.enter("bank"), Closed)


def test_opened_by_hand_it_stays_open_until_closed_by_hand(fleet: Fleet) -> None:
    """Or, with a time, until it is probed."""
    fleet.process().open("bank")
    fleet.clock += 86_400
    assert isinstance(fleet.process().enter("bank"), Closed)
    fleet.process().close("bank")
    assert fleet.process().enter("bank") == Pass("bank")
    fleet.process().open("bank", seconds=600)
    answer = fleet.process().enter("bank")
    assert isinstance(answer, Closed)
    assert answer.seconds > 600
    fleet.clock += 601
    assert isinstance(fleet.process().enter("bank"), Pass)


# --- as a block


def test_a_block_is_counted_and_refused() -> None:
    """Errors that may pass count, others do not; a refusal is a snooze to the task that lets it pass."""
    app = make_app(reliable_breakers={"bank": {"failures": 2}})
    for error in (Permanent("no such account"), LookupError("a mistake")):
        with pytest.raises(type(error)), guarded("bank", app=app):
            raise error
    assert runtime_of(app).breakers.known() == {}
    for _ in range(2):
        with pytest.raises(Transient), guarded("bank", app=app):
            raise Transient("down")
    with pytest.raises(BreakerOpen, match="'bank' is open") as caught, guarded("bank", app=app):
        pytest.fail("nothing may be called")
    assert isinstance(caught.value, Snooze)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.name, copy.seconds, str(copy)) == ("bank", caught.value.seconds, str(caught.value))


def test_a_block_in_a_task_uses_the_rules_and_the_app_of_the_task() -> None:
    """Not those of another app that happens to be current."""
    app = make_app(reliable_breakers={"bank": {"failures": 1}})

    def body(self: Any) -> None:
        with guarded("bank"):
            raise LookupError

    task = app.task(
        bind=True,
        base=ReliableTask,
        name="unit.bank",
        shared=False,
        retry_on=(LookupError,),
        max_retries=0,
    )(body)
    task.apply()
    assert runtime_of(app).breakers.known()["bank"].until


def test_the_option_is_a_name() -> None:
    """And refused at once when it is none."""
    task = job_task(make_app(), breaker="two words")
    with pytest.raises(Exception, match="breaker: expected a name of 1 to 100 characters without blanks"):
        _ = task.reliable_settings


def test_an_error_of_the_store_is_not_raised_to_the_task(fleet: Fleet) -> None:
    """Whatever it is."""
    fleet.notes.away = True
    process = fleet.process()
    try:
        assert process.enter("bank") == Pass("bank")
    except StoreError:
        pytest.fail("raised")
