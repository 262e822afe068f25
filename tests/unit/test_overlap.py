"""Overlap: who runs, who waits, who is skipped, and what becomes of a right whose holder is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable import ConfigurationError, ReliableTask
from celery_reliable.overlap import Board, Claimant, Go, OutspokenLives, Policy, Right, Rights, Skip, Step, Wait
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.stores.notes import MemoryNotes, Note
from celery_reliable.testing import in_memory
from celery_reliable.worker import stops
from tests.unit.test_task import job_task, make_app, waiting

TTL = 15.0
BEGIN = 1_900_000_000.0
RUNS = {"forbid": Skip, "queue": Wait, "replace": Wait}


class MeetingNotes(MemoryNotes):
    """Notes whose readers can be made to wait for each other, once a thread."""

    meet: Callable[[], object] | None = None

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Read, then meet the others."""
        found = super().read(shelf, names)
        if self.meet is not None and not hasattr(self._met, "yes"):
            self._met.yes = True
            self.meet()
        return found

    _met = threading.local()


@dataclass
class SomeLives:
    """Processes of which a test says which have ended. The name of this one may be changed, and may be a refusal."""

    name: str = "one"
    gone: set[str] = field(default_factory=set)
    refusal: str = ""

    def sign(self) -> str:
        """See `Lives.sign`."""
        if self.refusal:
            raise ConfigurationError(self.refusal)
        return self.name

    def is_gone(self, sign: str) -> bool:
        """See `Lives.is_gone`."""
        return sign in self.gone


@dataclass
class Fleet:
    """Jobs that meet under one key, on a clock moved by hand."""

    clock: float = BEGIN
    sure: bool = True
    ended: set[Job] = field(default_factory=set)
    lives: SomeLives | None = None

    def __post_init__(self) -> None:
        """Begin with an empty board."""
        self.notes = MeetingNotes(clock=lambda: self.clock)
        self.rights = Rights(
            self.notes,
            now=lambda: int(self.clock * 1e6),
            has_ended=lambda job: job.digest in {one.digest for one in self.ended},
            may_seize=lambda: self.sure,
            lives=self.lives,
        )

    def enter(self, name: str, policy: Policy = "forbid", *, has_run: bool = False) -> Step:
        """Let a job ask."""
        return self.rights.enter(claimant(name), policy=policy, has_run=has_run)

    def asks(self, *names: str, policy: Policy = "forbid") -> list[type[Step]]:
        """Let jobs ask one after the other."""
        return [type(self.enter(name, policy)) for name in names]

    def leave(self, name: str) -> None:
        """Let a job end."""
        self.rights.leave(claimant(name))

    def renew(self, name: str) -> Right | None:
        """Let a job's worker renew."""
        (right,) = self.rights.renew([claimant(name)]).values()
        return right


def claimant(name: str) -> Claimant:
    """A job of the key "import"."""
    return Claimant("import", Job(name, "given", stamp=7), f"id-{name}", TTL)


@pytest.fixture
def fleet() -> Fleet:
    """Nobody runs."""
    return Fleet()


class TestPolicies:
    """Five at once, under each."""

    def test_forbid_runs_one_and_skips_the_others(self, fleet: Fleet) -> None:
        """With who runs as the reason; the next after the end runs."""
        assert fleet.asks(*"abcde") == [Go, Skip, Skip, Skip, Skip]
        assert fleet.enter("f") == Skip("task id-a runs")
        fleet.leave("a")
        assert fleet.asks("g") == [Go]

    def test_queue_lets_exactly_one_wait(self, fleet: Fleet) -> None:
        """And it runs next, before whoever comes at that moment."""
        assert fleet.asks(*"abcde", policy="queue") == [Go, Wait, Skip, Skip, Skip]
        assert fleet.enter("f", "queue") == Skip("task id-b waits already")
        fleet.leave("a")
        assert fleet.asks("g", "b", "h", policy="queue") == [Wait, Go, Skip]

    def test_replace_stops_the_running_one_and_the_newest_wins(self, fleet: Fleet) -> None:
        """Those between are skipped when they ask again; the newest starts when the running one has ended."""
        assert fleet.asks(*"abcde", policy="replace") == [Go, Wait, Wait, Wait, Wait]
        right = fleet.renew("a")
        assert right is not None
        assert right.stop
        assert fleet.asks(*"bcde", policy="replace") == [Skip, Skip, Skip, Wait]
        fleet.leave("a")
        assert fleet.asks("e", policy="replace") == [Go]
        assert fleet.enter("b", "replace").__class__ is Wait, "told once; the same job again is a newer one"

    def test_job_that_was_asked_to_stop_does_not_run_again(self, fleet: Fleet) -> None:
        """It came back from a drain, say."""
        fleet.asks("a", "b", policy="replace")
        assert fleet.asks("a", policy="replace") == [Skip]

    def test_keys_do_not_meet(self, fleet: Fleet) -> None:
        """Other shops, other imports."""
        other = Claimant("other", Job("b"), "id-b", TTL)
        assert fleet.asks("a") == [Go]
        assert isinstance(fleet.rights.enter(other, policy="forbid", has_run=False), Go)

    @pytest.mark.parametrize("policy", RUNS)
    def test_job_that_ran_before_is_never_skipped(self, fleet: Fleet, policy: Policy) -> None:
        """It is half done; it waits for its turn, whoever else waits, and asks nobody to stop."""
        fleet.asks("a", "b", policy=policy)
        before = fleet.renew("a")
        assert isinstance(fleet.enter("old", policy, has_run=True), Wait)
        assert fleet.renew("a") == before
        fleet.leave("a")
        fleet.leave("b")
        assert isinstance(fleet.enter("old", policy, has_run=True), Go)

    def test_many_who_saw_the_same_board_get_one_right(self) -> None:
        """Compare and set decides: all have read before the first writes."""
        fleet, barrier = Fleet(), threading.Barrier(8)
        fleet.notes.meet = barrier.wait

        with ThreadPoolExecutor(8) as pool:
            steps = list(pool.map(lambda number: type(fleet.enter(str(number))), range(8)))
        assert steps.count(Go) == 1
        assert steps.count(Skip) == 7

    @given(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["ask", "leave", "tick", "renew"])), max_size=60),
        st.sampled_from(["forbid", "queue", "replace"]),
    )
    def test_never_two_at_once_and_never_a_queue(self, moves: list[tuple[str, str]], policy: Policy) -> None:
        """Whatever comes in whatever order, as long as who runs renews or has ended."""
        fleet, running = Fleet(), set[str]()
        for name, move in moves:
            if move == "tick":
                fleet.clock += TTL / 2
                for one in running:
                    fleet.renew(one)
            elif move == "ask" and name not in running and isinstance(fleet.enter(name, policy), Go):
                running.add(name)
            elif move == "leave" and name in running:
                running.discard(name)
                fleet.leave(name)
            assert len(running) <= 1


class TestLeases:
    """A right ends by itself."""

    def test_killed_holder_frees_it_within_the_ttl(self, fleet: Fleet) -> None:
        """Not before."""
        fleet.asks("a")
        fleet.clock += TTL - 0.1
        assert fleet.asks("b") == [Skip]
        fleet.clock += 0.2
        assert fleet.asks("c") == [Go]

    def test_renewed_right_lasts(self, fleet: Fleet) -> None:
        """For hours, a third of its life at a time."""
        fleet.asks("a")
        for _ in range(1000):
            fleet.clock += TTL / 3
            assert fleet.renew("a") is not None
        assert fleet.asks("b") == [Skip]

    def test_nobody_takes_a_right_while_renewals_were_away(self, fleet: Fleet) -> None:
        """An outage of the store ends nobody's right; one that was given up is free all the same."""
        fleet.asks("a")
        fleet.clock += 100 * TTL
        fleet.sure = False
        assert fleet.asks("b", policy="queue") == [Wait]
        fleet.leave("a")
        assert fleet.asks("b", policy="queue") == [Go]

    def test_holder_that_stood_still_learns_that_it_lost(self, fleet: Fleet) -> None:
        """Its renewal does not take the right back."""
        fleet.asks("a")
        fleet.clock += TTL + 1
        assert fleet.asks("b") == [Go]
        assert fleet.renew("a") is None
        fleet.leave("a")
        assert fleet.renew("b") is not None

    def test_redelivered_job_goes_on_at_once(self, fleet: Fleet) -> None:
        """The right belongs to the job, also when a retry brings the stamp that its message had not."""
        fleet.asks("a")
        again = Claimant("import", Job("a", "given", stamp=99), "id-a", TTL)
        assert isinstance(fleet.rights.enter(again, policy="forbid", has_run=True), Go)

    def test_right_lasts_through_the_backoff(self, fleet: Fleet) -> None:
        """A job between two attempts has not ended."""
        fleet.asks("a")
        fleet.rights.rest(claimant("a"), seconds=300, has_run=False)
        fleet.clock += 300
        assert fleet.asks("b") == [Skip]

    def test_resting_job_that_ended_otherwise_is_no_hindrance(self, fleet: Fleet) -> None:
        """Revoked during its backoff: its record says so, not a timer."""
        fleet.asks("a")
        fleet.rights.rest(claimant("a"), seconds=300, has_run=False)
        assert fleet.rights.foresee(claimant("b"), policy="forbid")
        fleet.ended.add(Job("a"))
        assert not fleet.rights.foresee(claimant("b"), policy="forbid")
        assert fleet.asks("b") == [Go]

    def test_interrupted_job_is_remembered_as_started(self, fleet: Fleet) -> None:
        """Its counts do not show it, and its right ended before it came back."""
        fleet.asks("a")
        fleet.rights.rest(claimant("a"), seconds=0, has_run=True)
        fleet.clock += TTL + 1
        assert fleet.asks("b", "c", "a") == [Go, Skip, Wait]

    def test_waiter_that_died_makes_room(self, fleet: Fleet) -> None:
        """It asks each second; who does not for a ttl is gone."""
        fleet.asks("a", "b", policy="queue")
        for _ in range(4):
            fleet.clock += TTL / 3
            fleet.renew("a")
        assert fleet.asks("c", "d", policy="queue") == [Wait, Skip]

    def test_board_survives_being_stored(self) -> None:
        """Everything on it."""
        board = Board(
            Right("aa", "1", 5, stop=True, kind="declared"), Right("bb", "2", 6, resting=True, stamp=3), ("cc",)
        )
        assert Board.from_bytes(board.to_bytes()) == board
        assert Board.from_bytes(Board().to_bytes()) == Board()


class TestLives:
    """A right whose holder is known to have lost its process."""

    @pytest.fixture
    def fleet(self) -> Fleet:
        """Where processes can be told to have ended."""
        return Fleet(lives=SomeLives())

    def test_it_is_free_at_once(self, fleet: Fleet) -> None:
        """Long before its lease ends, also while nobody's silence means anything; renewals keep the sign."""
        fleet.asks("a")
        fleet.clock += TTL / 2
        fleet.renew("a")
        assert fleet.asks("b") == [Skip]
        assert fleet.lives is not None
        fleet.lives.gone.add("one")
        fleet.lives.name, fleet.sure = "two", False
        assert fleet.rights.foresee(claimant("c"), policy="forbid") == ""
        assert fleet.asks("c", "d") == [Go, Skip]

    def test_who_waits_is_the_first_to_get_it(self, fleet: Fleet) -> None:
        """Also when the process in which it waits has ended: it does not run there."""
        assert fleet.asks("a", "b", policy="queue") == [Go, Wait]
        assert fleet.lives is not None
        fleet.lives.gone.add("one")
        assert fleet.asks("c", policy="queue") == [Wait]
        fleet.lives.name = "two"
        assert fleet.asks("b", policy="queue") == [Go]

    def test_a_job_between_two_attempts_keeps_it(self, fleet: Fleet) -> None:
        """It runs in no process."""
        fleet.asks("a")
        fleet.rights.rest(claimant("a"), seconds=300, has_run=False)
        assert fleet.lives is not None
        fleet.lives.gone.add("one")
        assert fleet.asks("b") == [Skip]

    def test_a_frozen_holder_is_bound_by_its_lease(self, fleet: Fleet) -> None:
        """Its process has not ended, so nothing else would ever free it."""
        fleet.asks("a")
        fleet.clock += TTL + 1
        assert fleet.asks("b") == [Go]

    def test_why_a_process_cannot_sign_is_told_once(self) -> None:
        """Then leases decide."""
        told: list[str] = []
        lives = OutspokenLives(SomeLives(refusal="a pooler"), tell=told.append)
        assert [lives.sign(), lives.sign()] == ["", ""]
        assert told == ["a pooler"]

    def test_a_store_that_has_no_such_lock_is_refused(self) -> None:
        """With what to set."""
        app = make_app(reliable_overlap_lock="postgres-advisory")
        with pytest.raises(ConfigurationError, match=r"reliable_store_url on PostgreSQL.*found a MemoryStore.*'lease'"):
            _ = runtime_of(app).rights


class TestStops:
    """What a run sees of a request to stop."""

    def test_only_who_was_asked_sees_it(self) -> None:
        """By the token of its claim, with the reason."""
        page = stops.Stops()
        try:
            page.ask("one", reason=stops.REPLACED)
            page.ask("other", reason=stops.LOST)
            assert [stops.asked(token) for token in ("one", "other", "third")] == [stops.REPLACED, stops.LOST, 0]
            page.forget("one")
            page.ask("other", reason=stops.LOST)
            assert [stops.asked(token) for token in ("one", "other")] == [0, stops.LOST]
        finally:
            page.close()
            page.close()
        assert stops.asked("other") == 0

    def test_full_page_tells_no_more_and_forgets_none(self) -> None:
        """A thousand runs at once."""
        page = stops.Stops()
        try:
            for number in range(2000):
                page.ask(str(number), reason=stops.REPLACED)
            told = [number for number in range(2000) if stops.asked(str(number))]
            assert told == list(range(1024))
        finally:
            page.close()


class TestSubmission:
    """What would be skipped is not even sent."""

    def hold(self, app: Any, task: Any, name: str) -> None:
        """Let a job run under the task's key."""
        me = Claimant(task.overlap_name((1,), {}), Job(name), f"id-{name}", TTL)
        runtime_of(app).rights.enter(me, policy=task.reliable_settings.overlap, has_run=False)

    def test_skipped_submission_is_recorded_and_not_sent(self) -> None:
        """The caller gets a handle that says why."""
        seen: list[Any] = []
        app = make_app(reliable_event_hooks=[lambda *event: seen.append(event)])
        task = job_task(app, overlap="forbid")
        before = waiting_in(app)
        self.hold(app, task, "a")
        result = task.delay(1)
        assert (result.state, str(result.result)) == ("REVOKED", "skipped: task id-a runs")
        assert waiting_in(app) == before
        (fields,) = [fields for name, fields in seen if name == "skipped"]
        assert (fields["policy"], fields["reason"]) == ("forbid", "task id-a runs")

    def test_what_only_a_worker_can_tell_is_sent(self) -> None:
        """Due later, chained to something, or under another policy."""
        app = make_app()
        task, replacing = job_task(app, overlap="forbid"), job_task(make_app(), overlap="replace")
        self.hold(app, task, "a")
        before = waiting_in(app)
        task.apply_async((1,), countdown=3600)
        task.apply_async((1,), link=task.si(2))
        replacing.delay(1)
        assert waiting_in(app) == before + 3

    def test_key_may_come_from_arguments(self) -> None:
        """Other arguments do not meet."""
        task = job_task(make_app(), overlap="forbid", overlap_key="import:{x}")
        assert [task.overlap_name((1,), {}), task.overlap_name((), {"x": 1}), task.overlap_name((2,), {})] == [
            "import:1",
            "import:1",
            "import:2",
        ]

    def test_key_is_the_task_by_default(self) -> None:
        """And may be a plain name that tasks share, or made by a callable."""
        assert job_task(make_app()).overlap_name((1,), {}) == "unit.job"
        assert job_task(make_app(), overlap_key="nightly").overlap_name((1,), {}) == "nightly"
        assert job_task(make_app(), overlap_key=lambda x: f"x{x}").overlap_name((1,), {}) == "x1"

    def test_wrong_key_is_refused_at_registration(self) -> None:
        """With the name of the option."""
        app = make_app()
        job_task(app, overlap_key="import:{nosuch}")
        with pytest.raises(ConfigurationError, match=r"overlap_key='import:\{nosuch\}'.*no argument named nosuch"):
            app.finalize()


def _of_one_shop(x: str) -> str:
    return {"known": "import:known"}[x]


@pytest.mark.parametrize(
    ("rule", "args", "error", "reason"),
    [
        (_of_one_shop, ("new",), KeyError, "permanent"),
        ("{x}", ("",), ConfigurationError, "permanent"),
        ("import:{x}", (), TypeError, "invalid"),
    ],
    ids=["a callable that raises", "an empty key", "arguments that do not fit"],
)
def test_a_call_whose_overlap_key_cannot_be_made_is_a_letter(
    rule: Any, args: tuple[str, ...], error: type[Exception], reason: str
) -> None:
    """It was sent by a process without task code; it does not run, and its parent goes on."""
    app = make_app()
    runs: list[str] = []

    def imported(x: str) -> None:
        runs.append(x)

    app.task(base=ReliableTask, name="import", shared=False, overlap="forbid", overlap_key=rule)(imported)
    told: list[Any] = []
    with in_memory(app, hooks=(lambda name, fields: told.append((name, fields.get("reason"))),)) as bench:
        app.send_task("import", args, task_id="sent")
        bench.drain_all()

    assert (runs, [type(one) for one in bench.failures]) == ([], [error])
    assert [one for one in told if one[0] == "buried"] == [("buried", reason)]


def waiting_in(app: Any) -> int:
    """Return how many messages wait, of an app whose queue may not exist yet."""
    with app.connection_for_write() as connection:
        app.amqp.queues["celery"](connection.default_channel).declare()
    return waiting(app)
