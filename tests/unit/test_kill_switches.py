"""Kill switches: when a queue is stopped, who tries it, when it goes on, and what a worker reads and writes for it."""

from __future__ import annotations

import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import create_request_cls
from click.testing import CliRunner, Result
from kombu import Queue
from kombu.message import Message

from celery_reliable import Draining, Permanent, Snooze, Transient
from celery_reliable.alerts import alert_of
from celery_reliable.cli import reliable
from celery_reliable.errors import ConfigurationError
from celery_reliable.events import EVENTS
from celery_reliable.flow.runs import Runs
from celery_reliable.flow.switches import SHELF, Switches
from celery_reliable.flow.switching import RUNNING, SECOND, Switch, after, stopped
from celery_reliable.flow.window import Pair
from celery_reliable.runtime import runtime_of
from celery_reliable.settings.policies import KillSwitch
from celery_reliable.worker.request import ReliableRequest
from celery_reliable.worker.waiting import GiveBack, Hold, Snoozed
from tests.provoking import raise_
from tests.unit.test_breakers import CountedNotes
from tests.unit.test_task import job_task, make_app

BEGIN = 1_900_000_000 * SECOND
POLICY = KillSwitch(failure_ratio=0.5, window=60.0, minimum=20, pause=30.0)


def steps(*ended: Pair, before: Switch = RUNNING, worker: str = "a", each: float = 1.0, at: float = 0.0) -> Switch:
    """Return a switch after some steps of a worker, so many seconds apart."""
    found = before
    for number, pair in enumerate(ended):
        now = BEGIN + int((at + number * each) * SECOND)
        found = after(found, pair, worker=worker, policy=POLICY, now=now)
    return found


STOPPED = stopped(seconds=30.0, now=BEGIN)


# --- when it is stopped


def test_a_queue_is_stopped_when_half_of_enough_runs_fail() -> None:
    """Nineteen say nothing yet; one failure in three is too few."""
    assert steps((9, 10)).phase(BEGIN) == "running"
    assert steps((9, 10), (1, 0), (0, 0)).phase(BEGIN) == "running"
    assert steps((9, 10), (0, 1)).phase(BEGIN + SECOND) == "stopped"
    assert steps(*[(2, 1)] * 40).phase(BEGIN) == "running"


def test_it_tells_for_the_sake_of_which_runs() -> None:
    """For whoever asks why."""
    assert steps((8, 12)).judged == (8, 12)


def test_failures_of_long_ago_do_not_count() -> None:
    """The window slides; when nothing is left in it, nothing is known."""
    assert steps(*[(1, 1)] * 15, each=120.0).phase(BEGIN) == "running"
    assert steps((1, 9), (0, 0), (0, 0), each=61.0) == RUNNING


def test_runs_that_end_while_it_is_stopped_change_nothing() -> None:
    """They began before."""
    assert steps((50, 0), (0, 50), before=STOPPED) == STOPPED


# --- when it goes on


def test_one_worker_tries_it_when_the_pause_is_over() -> None:
    """Nobody before; then who looks first."""
    assert not STOPPED.lets("a", now=BEGIN + 29 * SECOND)
    tried = steps((0, 0), before=STOPPED, at=31)
    now = BEGIN + 32 * SECOND
    assert (tried.lets("a", now=now), tried.lets("b", now=now)) == (True, False)
    assert steps((0, 9), before=tried, worker="b", at=32) == tried  # of runs that began before it was stopped


@pytest.mark.parametrize(("ended", "phase"), [((5, 0), "running"), ((3, 2), "running"), ((2, 3), "stopped")])
def test_a_few_runs_decide(ended: Pair, phase: str) -> None:
    """A quarter of the minimum, by the same ratio."""
    tried = steps((0, 0), (0, 0), before=STOPPED, at=31)
    assert steps(ended, before=tried, at=33).phase(BEGIN + 33 * SECOND) == phase


@pytest.mark.parametrize(("ended", "phase"), [((0, 0), "running"), ((1, 0), "running"), ((1, 1), "stopped")])
def test_the_end_of_the_trial_decides_about_fewer(ended: Pair, phase: str) -> None:
    """The worker that tried it may have died, or nothing came: any other one sees it."""
    tried = steps((0, 0), ended, before=STOPPED, at=31)
    assert tried.phase(BEGIN + 60 * SECOND) == "tried"
    assert steps((0, 0), before=tried, worker="b", at=62).phase(BEGIN + 62 * SECOND) == phase


def test_an_operators_word_lasts() -> None:
    """Whatever is told, whenever."""
    held = Switch(held=True)
    assert steps((50, 0), (0, 50), before=held, each=1000.0) == held
    assert not held.lets("a", now=BEGIN)


def test_a_switch_survives_its_note_and_one_of_a_later_version() -> None:
    """Every field; what is not known is left out."""
    made = Switch(until=BEGIN, runs=steps((3, 4)).runs, trial="a", trial_ends=7, judged=(1, 2))
    assert Switch.from_bytes(made.to_bytes()) == made
    assert Switch.from_bytes(made.to_bytes()[:-1] + b',"later":1}') == made


# --- when the server's clock goes back


@pytest.mark.parametrize("back", [2, 30, 3600])
def test_a_clock_that_went_back_forgets_what_was_counted(back: int) -> None:
    """It begins anew, so a queue is neither stopped for what is forgotten, nor spared for it."""
    before = steps((0, 19))
    assert steps((0, 1), before=before, at=-back).phase(BEGIN - back * SECOND) == "running"
    assert steps((0, 1), (0, 19), before=before, at=-back).phase(BEGIN - back * SECOND + SECOND) == "stopped"


@pytest.mark.parametrize("back", [2, 30, 3600])
def test_a_stopped_queue_is_tried_within_a_pause_though_the_clock_went_back(back: int) -> None:
    """So is a trial that nobody ends. An operator's own time lasts as long as he said."""
    failed = steps((0, 20))
    seen = steps((0, 0), before=failed, at=-back)
    assert seen.phase(BEGIN - (back - 29) * SECOND) == "stopped"
    assert seen.phase(BEGIN - (back - 30) * SECOND) == "tried"
    tried = steps((0, 0), before=replace(seen, until=1), at=31)
    assert steps((0, 0), (0, 0), before=tried, worker="b", at=31 - back, each=30.0) == RUNNING
    by_hand = stopped(seconds=7200.0, now=BEGIN)
    assert steps((0, 0), before=by_hand, at=-back) == by_hand


# --- shared by a fleet


@dataclass
class Fleet:
    """Workers that share switches, on a server's clock moved by hand."""

    clock: float = BEGIN / SECOND
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.notes = CountedNotes(clock=lambda: self.clock)

    def worker(self, name: str = "a") -> Switches:
        """Return the switches as one worker sees them."""
        return Switches(
            self.notes,
            now=self.now,
            policies={"reports": POLICY, "mail": POLICY},
            worker=name,
            emit=self._emit,
            clock=lambda: self.clock,
        )

    def now(self) -> int:
        """Ask the server, which may be away."""
        self.notes.read(SHELF, [])
        return int(self.clock * SECOND)

    def _emit(self, name: str, **facts: Any) -> None:
        assert facts.keys() == set(EVENTS[name].fields)
        self.events.append((name, facts))

    def names(self) -> list[str]:
        """Return which events were emitted."""
        return [name for name, _ in self.events]


@pytest.fixture
def fleet() -> Fleet:
    """Nothing known."""
    return Fleet()


def test_two_workers_stop_one_queue_together_and_no_other(fleet: Fleet) -> None:
    """Each has seen too few failures; the event is told once, with what was counted."""
    one, two = fleet.worker("a"), fleet.worker("b")
    assert one.look({"reports": (2, 9), "mail": (50, 0)}) == frozenset()
    assert two.look({"reports": (0, 9), "mail": (50, 0)}) == {"reports"}
    assert one.look({"reports": (0, 0), "mail": (0, 0)}) == {"reports"}
    assert fleet.events == [
        ("queue_stopped", {"queue": "reports", "by": "failures", "failed": 18, "runs": 20, "wait": 30.0})
    ]


def test_a_well_queue_costs_one_read_and_no_write(fleet: Fleet) -> None:
    """Also when thousands of its runs end."""
    worker = fleet.worker()
    for _ in range(10):
        reads = fleet.notes.reads
        worker.look({"reports": (1000, 0), "mail": (0, 0)})
        assert (
            fleet.notes.reads - reads == 2
        )  # the second one stands for the clock, which a store measures once a minute
    assert fleet.notes.writes == 0


def test_runs_that_went_well_before_the_first_failures_count(fleet: Fleet) -> None:
    """They were not worth a write until then. Those of more than a window ago say nothing any more."""
    worker = fleet.worker()
    worker.look({"reports": (40, 0)})
    assert worker.look({"reports": (0, 20)}) == frozenset()
    late = Fleet()
    worker = late.worker()
    worker.look({"reports": (40, 0)})
    late.clock += 61
    assert worker.look({"reports": (0, 20)}) == {"reports"}


def test_the_fleet_goes_on_by_itself(fleet: Fleet) -> None:
    """One worker tries it, then all; a new process, as after a restart, sees the same."""
    one, two = fleet.worker("a"), fleet.worker("b")
    one.look({"reports": (0, 20)})
    assert fleet.worker("new").look({"reports": (0, 0)}) == {"reports"}
    fleet.clock += 31
    assert two.look({"reports": (0, 0)}) == frozenset()
    assert one.look({"reports": (0, 0)}) == {"reports"}
    two.look({"reports": (5, 0)})
    assert one.look({"reports": (0, 0)}) == frozenset()
    assert fleet.names() == ["queue_stopped", "queue_resumed"]
    assert fleet.notes.read(SHELF, ["reports"]) == {}


def test_workers_that_write_at_once_lose_no_run(fleet: Fleet) -> None:
    """Compare and set: all have read the same switch before one writes."""
    fleet.notes.meeting = threading.Barrier(4)
    workers = [fleet.worker(str(number)) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda worker: worker.look({"reports": (0, 4)}), workers))
    fleet.notes.meeting = threading.Barrier(1)
    switch = fleet.worker().known()["reports"]
    assert switch.runs.now == (0, 16)


def test_a_store_that_is_away_stops_nothing_and_is_told_once(fleet: Fleet) -> None:
    """What was counted meanwhile is told when it is back."""
    worker = fleet.worker()
    fleet.notes.away = True
    assert worker.look({"reports": (0, 10)}) == worker.look({"reports": (0, 10)}) == frozenset()
    assert fleet.names() == ["kill_switch_unknown"]
    fleet.notes.away = False
    assert worker.look({"reports": (0, 0)}) == {"reports"}


def test_a_queue_last_seen_stopped_goes_on_when_its_pause_is_over_without_the_store(fleet: Fleet) -> None:
    """Nobody can ask for the trial then. What an operator stopped stays so."""
    worker = fleet.worker()
    worker.look({"reports": (0, 20), "mail": (0, 0)})
    worker.stop("mail")
    worker.look({"reports": (0, 0), "mail": (0, 0)})
    fleet.notes.away = True
    fleet.clock += 29
    assert worker.look({"reports": (0, 0), "mail": (0, 0)}) == {"reports", "mail"}
    fleet.clock += 2
    assert worker.look({"reports": (0, 0), "mail": (0, 0)}) == {"mail"}


def test_an_operator_stops_and_starts(fleet: Fleet) -> None:
    """For ever, or for a time, after which it is tried."""
    worker = fleet.worker()
    worker.stop("reports")
    assert worker.look({"reports": (0, 0)}) == {"reports"}
    worker.start("reports")
    assert worker.look({"reports": (0, 0)}) == frozenset()
    worker.stop("reports", seconds=5.0)
    assert worker.look({"reports": (0, 0)}) == {"reports"}
    fleet.clock += 6
    assert worker.look({"reports": (0, 0)}) == frozenset()
    assert fleet.names() == ["queue_stopped", "queue_resumed", "queue_stopped"]


# --- a simulated outage


@pytest.mark.parametrize("seed", [1, 2])
def test_an_outage_costs_few_runs_and_the_end_of_it_is_seen(seed: int) -> None:
    """Eight workers, forty runs a second. It takes half a window until half of its runs have failed, then five in a pause."""
    fleet, chance = Fleet(), random.Random(seed)
    workers = [fleet.worker(str(number)) for number in range(8)]
    consuming, failed = dict.fromkeys(range(8), True), dict.fromkeys(range(400), 0)
    for second in range(400):
        fleet.clock += 1
        down = 60 <= second < 360
        for number in chance.sample(range(8), 8):
            runs = 5 if consuming[number] else 0
            bad = sum(chance.random() < (0.95 if down else 0.02) for _ in range(runs))
            failed[second] += bad
            consuming[number] = not workers[number].look({"reports": (runs - bad, bad)})
    assert sum(failed[second] for second in range(60, 100)) < 40 * (POLICY.window / 2 + 5)
    assert sum(failed[second] for second in range(100, 360)) <= 260 / POLICY.pause * 2 * POLICY.trial_runs
    assert all(consuming.values())
    assert fleet.names()[-1] == "queue_resumed"


# --- what is counted


def test_runs_of_the_last_minute_are_counted_by_queue() -> None:
    """Of every queue, for who looks how things go; what is older is not counted, and looking takes nothing away."""
    runs = Runs()
    assert runs.lately(now=0.0) == {}
    for failed in (False, False, True):
        runs.note("reports", "t", seconds=1.0, failed=failed)
    assert runs.lately(now=5.0) == runs.lately(now=5.1) == {"reports": (2, 1)}
    runs.note("mails", "t", seconds=1.0, failed=False)
    assert runs.lately(now=50.0) == {"reports": (2, 1), "mails": (1, 0)}
    assert runs.lately(now=65.1) == {"mails": (1, 0)}
    assert runs.lately(now=111.0) == {}
    for number in range(1000):
        runs.note(f"q{number}", "t", seconds=1.0, failed=False)
    assert len(runs.lately(now=112.0)) <= 100


def test_runs_are_counted_for_queues_that_may_be_stopped_alone() -> None:
    """Each is told once; runtimes are kept for all, bounded in number."""
    runs = Runs()
    runs.note("reports", "t", seconds=1.0, failed=True)
    runs.count(["reports"])
    for seconds in (1.0, 3.0, 8.0):
        runs.note("reports", "t", seconds=seconds, failed=seconds > 2)
    runs.note("reports", "t", seconds=None, failed=True)
    runs.note("other", "u", seconds=7.0, failed=True)
    assert runs.ended() == {"reports": (1, 3)}
    assert runs.ended() == {"reports": (0, 0)}
    assert runs.runtimes() == {"reports": {"t": (4, 2.0, 8.0)}, "other": {"u": (1, 7.0, 7.0)}}
    for number in range(1000):
        runs.note("q", f"task{number}", seconds=1.0, failed=False)
        runs.learn(number, "q")
    assert sum(map(len, runs.runtimes().values())) == 100


def request_of(app: Any, task: Any, *, lane: str) -> ReliableRequest:
    """Return the request of a message that a worker has received from a lane, and begun to run."""
    headers = {"id": "1", "task": task.name, "lang": "py"}
    info = {"exchange": "", "routing_key": lane}
    body: Any = ([1], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    message = Message(headers=headers, delivery_info=info, properties={}, body=body, content_type="application/json")
    made_by = create_request_cls(ReliableRequest, task, SimpleNamespace(apply_async=None), "here", None, app=app)
    request = made_by(message, app=app, task=task, body=body, headers=headers, decoded=True)
    request.on_accepted(1, time.monotonic() - 2.0)
    return request


def ended_with(request: ReliableRequest, exc: BaseException | None) -> None:
    """Let a run end as a pool tells it: with what it raised, or (None) well."""
    try:
        if exc is not None:
            raise_(exc)
    except BaseException:  # noqa: BLE001  # as the pool does
        request.on_success((1, ExceptionInfo(), 2.0))
        return
    request.on_success((0, "7", 2.0))


@pytest.mark.parametrize(
    ("exc", "counted"),
    [
        (None, (1, 0)),
        (Permanent("no"), (0, 1)),
        (Retry(exc=Transient("down"), when=1), (0, 1)),
        (Reject("no", requeue=False), (0, 1)),
        (WorkerLostError("signal 9 (SIGKILL)"), (0, 1)),
        (Snoozed(when=1), (0, 0)),
        (Ignore(), (0, 0)),
        (Draining(), (0, 0)),
        (Reject(Hold(1.0, "busy"), requeue=True), (0, 0)),
        (Reject(GiveBack("draining"), requeue=True), (0, 0)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_run_counts_once_and_only_if_it_says_something_of_its_task(exc: BaseException | None, counted: Pair) -> None:
    """What came from a lane counts for its queue. A run of which nothing is told counts when it ends later."""
    app = make_app(reliable_fair_queues={"reports": {}}, reliable_kill_switches={"reports": {}})
    runtime = runtime_of(app)
    runtime.runs.count(["reports"])
    runtime.holding = SimpleNamespace(
        consumer=SimpleNamespace(task_consumer=None), hold=lambda *_: None, give_back=lambda *_, **__: None
    )
    request = request_of(app, job_task(app), lane="reports.lane.3")
    ended_with(request, exc)
    assert runtime.runs.ended() == {"reports": counted}
    request.acknowledge()
    request.acknowledge()
    waits = isinstance(exc, Draining | Reject) and counted == (0, 0)
    assert runtime.runs.ended() == {"reports": (1, 0) if waits else (0, 0)}
    for median in [one[1] for tasks in runtime.runs.runtimes().values() for one in tasks.values()]:
        assert median >= 2.0


def test_a_snooze_comes_out_of_a_pool_child_as_one() -> None:
    """It is pickled on its way."""
    known = pickle.loads(pickle.dumps(Snoozed(exc=Snooze(3.0), when=3.0)))
    assert (type(known), known.when) == (Snoozed, 3.0)


def test_a_message_that_is_acked_before_its_run_says_nothing() -> None:
    """Its run is not over when it is acked."""
    app = make_app(reliable_kill_switches={"celery": {}})
    runtime_of(app).runs.count(["celery"])
    request = request_of(app, job_task(app, acks_late=False), lane="celery")
    ended_with(request, None)
    assert runtime_of(app).runs.ended() == {"celery": (0, 0)}


# --- settings, command line, alerts


def test_a_switch_for_a_queue_that_is_not_there_is_refused() -> None:
    """It would stop nothing."""
    app = make_app(reliable_kill_switches={"repots": {}}, task_queues=[Queue("reports")])
    with pytest.raises(ConfigurationError, match="reliable_kill_switches: expected queues of task_queues"):
        _ = runtime_of(app).switches
    assert runtime_of(make_app()).switches is None


def call(app: Any, *words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(reliable, ("kill-switch", *words), obj=SimpleNamespace(app=app, no_color=True))


def test_the_command_stops_starts_and_lists() -> None:
    """What an operator does in an incident."""
    app = make_app(reliable_kill_switches={"reports": {}, "mail": {"pause": 5}})
    assert "reports is stopped until it is started" in call(app, "stop", "reports").output
    assert "mail is stopped for 90 s" in call(app, "stop", "mail", "--for", "90s").output
    listed = call(app, "list").output
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [["mail", "stopped"], ["reports", "stopped"]]
    assert "tried in" in listed
    assert '"state": "held"' in call(app, "list", "--json").output
    assert "reports is started" in call(app, "start", "reports").output
    assert [line.split()[1] for line in call(app, "list").output.splitlines()[1:]] == ["stopped", "running"]


def test_the_command_refuses_a_queue_without_a_switch() -> None:
    """No worker would look at it."""
    refused = call(make_app(reliable_kill_switches={"reports": {}}), "stop", "mail")
    assert refused.exit_code == 1
    assert "expected a queue of reliable_kill_switches (reports), found mail" in refused.output
    assert "names no queue" in call(make_app(), "list").output


def test_a_stopped_queue_is_an_alert_unless_a_person_stopped_it() -> None:
    """Who did it knows."""
    facts = {"queue": "reports", "by": "failures", "failed": 12, "runs": 20, "wait": 60.0}
    alert = alert_of("queue_stopped", facts)
    assert alert is not None
    assert alert.text == "queue reports is stopped, 12 of 20 runs failed"
    assert alert_of("queue_stopped", {**facts, "by": "hand"}) is None
