"""Lanes and turns: which lane a submission takes, and how many jobs run before one that waits."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import pytest
from kombu import Queue

from celery_reliable import ConfigurationError
from celery_reliable.cli.purge import purge_queue
from celery_reliable.flow.lanes import ALLOWED, Lanes, flood_lane_of, lane_name, lane_names, lane_of
from celery_reliable.flow.turns import Turns
from celery_reliable.runtime import runtime_of
from celery_reliable.settings.policies import FairQueue
from tests.docs_scripts import load_script
from tests.unit.test_task import UNREACHABLE, job_task, make_app

FAIR = {"celery": {"lanes": 8, "weights": {"tenant:1": 3, "tenant:2": 1}}}
POLICY = FairQueue(lanes=8, weights={"b": 3, "a": 1})
STEPS = (0, 3, 6, 9)


# --- which lane


def test_a_key_has_the_same_lane_in_every_process() -> None:
    """Pinned: two versions of a producer must agree as far as they can, and a changed hash moves every tenant."""
    assert [lane_of("reports", FairQueue(), key=f"tenant:{number}", task_id="x") for number in range(4)] == [
        "reports.lane.2",
        "reports.lane.1",
        "reports.lane.4",
        "reports.lane.9",
    ]


def test_keys_are_spread_over_all_shared_lanes() -> None:
    """Of 4000 keys each of 16 lanes gets about 250."""
    found = Counter(lane_of("q", FairQueue(), key=f"tenant:{number}", task_id="") for number in range(4000))
    assert set(found) == {lane_name("q", number + 1) for number in range(16)}
    assert max(found.values()) < 320


def test_a_weight_is_a_number_of_lanes_that_nobody_else_has() -> None:
    """The task id chooses among them, evenly."""
    for_a = {lane_of("q", POLICY, key="a", task_id=str(number)) for number in range(100)}
    for_b = Counter(lane_of("q", POLICY, key="b", task_id=str(number)) for number in range(300))
    others = {lane_of("q", POLICY, key=f"c{number}", task_id="1") for number in range(1000)}
    assert for_a == {lane_name("q", 9)}
    assert set(for_b) == {lane_name("q", number) for number in (10, 11, 12)}
    assert min(for_b.values()) > 60
    assert others == {lane_name("q", number + 1) for number in range(8)}
    assert set(lane_names("q", POLICY)) - for_a - set(for_b) - others == {
        f"q.flood.{number}" for number in (1, 2, 3, 4)
    }


def test_a_flood_leaves_the_lane_of_its_key_after_its_allowance() -> None:
    """Those that share it wait for no more; what is allowed grows again within a minute."""
    clock = 0.0
    lanes = Lanes({"q": POLICY}, clock=lambda: clock)
    own, flooded = lane_of("q", POLICY, key="x", task_id=""), flood_lane_of("q", key="x")
    assert [lanes.chosen("q", key="x", task_id="") for _ in range(500)] == [own] * ALLOWED + [flooded] * (500 - ALLOWED)
    clock = 30.0
    assert [lanes.chosen("q", key="x", task_id="") for _ in range(50)] == [own] * 10 + [flooded] * 40
    assert {lanes.chosen("q", key="a", task_id="") for _ in range(500)} == {
        lane_name("q", 9)
    }  # its own: it harms nobody
    clock = 10_000.0
    assert [lanes.chosen("q", key="x", task_id="") for _ in range(50)] == [own] * ALLOWED + [flooded] * (50 - ALLOWED)


def test_what_a_process_knows_of_keys_is_bounded() -> None:
    """The keys that it used last."""
    lanes = Lanes({"q": POLICY})
    for number in range(10_100):
        lanes.chosen("q", key=f"c{number}", task_id="")
    assert len(lanes._left) == 10_000
    assert ("q", "c10099") in lanes._left
    assert ("q", "c0") not in lanes._left


def test_lanes_know_their_queue() -> None:
    """Any other queue is its own, also one that is named like a lane."""
    lanes = Lanes({"q": POLICY})
    assert {lanes.queue_of(name) for name in lanes.expanded(["q"])} == {"q"}
    assert [lanes.queue_of(name) for name in ("other", "other.lane.1", "q.lane.99")] == [
        "other",
        "other.lane.1",
        "q.lane.99",
    ]
    assert lanes.expanded(["other"]) == ["other"]


# --- turns


def turns_over(*names: str, lanes: Lanes | None = None, every: int | None = None) -> Turns:
    """Return the turns of a worker that consumes these queues."""
    turns = Turns(queue_of=(lanes or Lanes({})).queue_of, every=every)
    turns.update(names)
    return turns


def test_who_was_served_goes_to_the_end() -> None:
    """One that is not consumed any more changes nothing."""
    turns = turns_over("a", "b", "c")
    assert turns.consume() == ["a", "b", "c"]
    turns.rotate("b")
    turns.rotate("gone")
    assert turns.consume() == ["a", "c", "b"]
    assert turns.consume(2) == ["a", "c"]


def test_a_queue_has_one_turn_however_many_lanes_it_has() -> None:
    """Else a queue with 16 lanes would get 16 of 17 turns."""
    lanes = Lanes({"fair": FairQueue(lanes=4)})
    turns = turns_over(*lanes.expanded(["fair", "plain"]), lanes=lanes)
    served = Counter(lanes.queue_of(turns.rotate(turns.consume()[0])) for _ in range(100))
    assert served == {"fair": 50, "plain": 50}


def test_a_new_connection_or_queue_keeps_the_turns() -> None:
    """Else every lost connection would begin with the same tenant."""
    turns = turns_over("a", "b", "c")
    turns.rotate("a")
    turns.update(["c", "a", "new", "b"])
    assert turns.consume() == ["b", "c", "a", "new"]
    turns.update(["a"])
    assert turns.consume() == ["a"]


def test_priorities_are_strict_unless_lower_ones_have_a_share() -> None:
    """Every so-manieth message is looked for in lower ones first, at which it begins goes round."""
    strict, shared = turns_over("q"), turns_over("q", every=3)
    seen: list[list[int]] = []
    for _ in range(12):
        assert strict.steps(STEPS) == list(STEPS)
        seen.append(shared.steps(STEPS))
        strict.rotate("q")
        shared.rotate("q")
    assert [order for number, order in enumerate(seen, 1) if number % 3] == [[0, 3, 6, 9]] * 8
    assert seen[2::3] == [[3, 6, 9, 0], [6, 9, 3, 0], [9, 3, 6, 0], [3, 6, 9, 0]]
    assert turns_over("q", every=2).steps([0]) == [0]


# --- how many run before


class Broker:
    """Queues with priorities as Redis has them, and workers that take one message after the other."""

    def __init__(self, queues: list[str], *, workers: int, lanes: Lanes, every: int | None = None) -> None:
        """Begin with empty queues."""
        self.lists: dict[tuple[str, int], deque[str]] = {(name, step): deque() for name in queues for step in STEPS}
        self._workers = [turns_over(*queues, lanes=lanes, every=every) for _ in range(workers)]
        self.taken: list[str] = []

    def put(self, queue: str, job: str, *, step: int = 0) -> None:
        """Publish a message."""
        self.lists[queue, step].append(job)

    def take(self, worker: int) -> str | None:
        """Let a worker take what is next for it."""
        turns = self._workers[worker]
        order = [(name, step) for step in turns.steps(STEPS) for name in turns.consume()]
        place = next((place for place in order if self.lists[place]), None)
        if place is None:
            return None
        turns.rotate(place[0])
        self.taken.append(self.lists[place].popleft())
        return self.taken[-1]

    def run_before(self, job: str, *, chance: random.Random) -> int:
        """Let workers take in any order until one has the job; return how many others were taken meanwhile."""
        begin = len(self.taken)
        while self.take(chance.randrange(len(self._workers))) != job:
            pass
        return len(self.taken) - begin - 1


@pytest.mark.parametrize("seed", range(20))
def test_a_flood_delays_others_by_one_round_for_each_worker(seed: int) -> None:
    """At most ``m (p - 1) + w (m - 1)`` jobs run before the p-th of a lane, with m lanes filled and w workers."""
    chance = random.Random(seed)
    lanes, workers = Lanes({"q": FairQueue()}), chance.randint(1, 6)
    names = lanes.expanded(["q"])
    broker = Broker(names, workers=workers, lanes=lanes)
    filled = chance.sample(names, chance.randint(2, len(names)))
    small, position = filled[0], chance.randint(1, 5)
    for lane in filled[1:]:
        for number in range(500):
            broker.put(lane, f"{lane} {number}")
    for _ in range(chance.randrange(50)):  # workers are at any point of their turns
        broker.take(chance.randrange(workers))
    for number in range(position):
        broker.put(small, f"small {number + 1}")
    before = broker.run_before(f"small {position}", chance=chance)
    assert before <= len(filled) * (position - 1) + workers * (len(filled) - 1)


@pytest.mark.parametrize("seed", range(20))
def test_who_shares_a_lane_with_a_flood_waits_for_its_allowance(seed: int) -> None:
    """Whoever it is, by the bound above with p = 21: the flood fills its lane so far, and then one for floods."""
    chance = random.Random(seed)
    lanes, workers = Lanes({"q": FairQueue()}, clock=lambda: 0.0), chance.randint(1, 6)
    broker = Broker(lanes.expanded(["q"]), workers=workers, lanes=lanes)
    for number in range(500):
        broker.put(lanes.chosen("q", key="flood", task_id=str(number)), "flood")
    broker.put(lane_of("q", FairQueue(), key="flood", task_id=""), "small")
    assert broker.run_before("small", chance=chance) <= 2 * ALLOWED + workers


def test_without_lanes_the_whole_flood_is_before() -> None:
    """What the bound above is worth."""
    broker = Broker(["q"], workers=1, lanes=Lanes({}))
    for number in range(500):
        broker.put("q", str(number))
    broker.put("q", "small")
    assert broker.run_before("small", chance=random.Random(1)) == 500


def test_a_weight_is_a_share() -> None:
    """A key with three lanes gets three of five turns, while two others are flooded, too."""
    policy = FairQueue(lanes=2, weights={"big": 3})
    lanes = Lanes({"q": policy})
    broker = Broker(lanes.expanded(["q"]), workers=1, lanes=lanes)
    for number in range(900):
        broker.put(lanes.chosen("q", key="big", task_id=str(number)), "big")
        broker.put(lane_name("q", 1), "one")
        broker.put(lane_name("q", 2), "two")
    for _ in range(500):
        broker.take(0)
    assert Counter(broker.taken) == {"big": 300, "one": 100, "two": 100}


@pytest.mark.parametrize("seed", range(20))
def test_a_low_priority_is_served_under_a_stream_of_higher_ones(seed: int) -> None:
    """At most ``n l (p - 1) + w (n l - 1)`` jobs run before the p-th of its list, with l lower priorities filled."""
    chance = random.Random(seed)
    workers, every, position = chance.randint(1, 4), chance.randint(2, 12), chance.randint(1, 4)
    broker = Broker(["q"], workers=workers, lanes=Lanes({}), every=every)
    rival = chance.sample([3, 6], chance.randint(0, 2))
    for _ in range(chance.randrange(50)):
        broker.put("q", "early")
        broker.take(chance.randrange(workers))
    for number in range(position):
        broker.put("q", f"low {number + 1}", step=9)
    begin, wanted, round_ = len(broker.taken), f"low {position}", every * (len(STEPS) - 1 if rival else 1)
    bound = round_ * (position - 1) + workers * (round_ - 1)
    while wanted not in broker.taken[begin:] and len(broker.taken) - begin <= bound:
        for step in (0, *rival):  # none of them ever ends
            broker.put("q", "stream", step=step)
        broker.take(chance.randrange(workers))
    assert broker.taken[-1] == wanted


def test_a_flood_of_500_jobs_leaves_others_alone() -> None:
    """Forty tenants, four workers, seed 7. The picture in the documentation is this one."""
    simulation = load_script("simulate_fairness")
    outcomes = simulation.play()
    without, rabbitmq, redis = outcomes.values()
    assert without.longest > 100
    assert redis.longest < 15
    assert rabbitmq.longest < 20
    assert len(redis.shared) == len(rabbitmq.shared) == 14
    assert sorted(redis.overtaken)[-2] <= 5  # jobs that began before one; more only for the first in the flooded lane
    assert max(redis.overtaken) <= 3 * ALLOWED
    assert simulation.PICTURE.read_text("utf-8") == simulation.drawn(outcomes), "run python docs/simulate_fairness.py"


# --- submitting


def app_with_lanes(**settings: Any) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """Return an app whose default queue has lanes, and the events of its process."""
    events: list[tuple[str, dict[str, Any]]] = []
    app = make_app(
        reliable_fair_queues=FAIR,
        reliable_event_hooks=(lambda name, fields: events.append((name, fields)),),
        **settings,
    )
    return app, events


def received(app: Any, queue: str) -> list[Any]:
    """Take all messages out of a queue."""
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.queue_declare(queue)
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found


def submitted_to(app: Any, task: Any, *args: Any, **options: Any) -> str:
    """Submit a call; return the queue in which its message is then."""
    names = ["celery", "other", *lane_names("celery", FairQueue(**FAIR["celery"]))]  # type: ignore[arg-type]
    for name in names:
        received(app, name)
    task_id = task.apply_async(args, **options).id
    (found,) = (name for name in names for message in received(app, name) if message.headers["id"] == task_id)
    return str(found)


def test_a_call_goes_into_the_lane_of_its_key() -> None:
    """Whatever route leads to the queue; other queues, and tasks without a key, are as they were."""
    app, _ = app_with_lanes()
    task = job_task(app, fairness_key="tenant:{x}")
    expected = lane_of("celery", FairQueue(**FAIR["celery"]), key="tenant:7", task_id="")  # type: ignore[arg-type]
    assert expected in lane_names("celery", FairQueue(lanes=8))
    assert submitted_to(app, task, 7) == expected
    assert submitted_to(app, task, 7, queue="celery", priority=3) == expected
    assert submitted_to(app, task, 2) == "celery.lane.12"
    assert submitted_to(app, task, 1) in {"celery.lane.9", "celery.lane.10", "celery.lane.11"}
    assert submitted_to(app, task, 7, queue="other") == "other"
    plain = job_task(make_app(reliable_fair_queues=FAIR))
    assert submitted_to(plain.app, plain, 7) == "celery"


def test_a_key_that_cannot_be_made_is_told_once_and_the_call_is_accepted() -> None:
    """It goes into the queue itself, which has its turn: fairness is no reason to refuse work."""
    app, events = app_with_lanes()
    task = job_task(app, fairness_key="tenant:{x[tenant]}")
    assert submitted_to(app, task, {"tenant": "2"}) == "celery.lane.12"
    assert submitted_to(app, task, {}) == "celery"
    assert submitted_to(app, task, 5) == "celery"
    ((_, told),) = [one for one in events if one[0] == "no_fairness_key"]
    assert told["queue"] == "celery"
    assert "fairness_key='tenant:{x[tenant]}' cannot be filled in: KeyError('tenant')" in told["error"]


@pytest.mark.parametrize("made", [None, "", 7, "x" * 1000, ZeroDivisionError("made by the project")])
def test_a_key_by_code_that_is_no_key_leads_into_the_queue_itself(made: Any) -> None:
    """Whatever the code returns or raises."""

    def owner(x: int) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    app, events = app_with_lanes()
    assert submitted_to(app, job_task(app, fairness_key=owner), 1) == "celery"
    assert [name for name, _ in events if name == "no_fairness_key"] == ["no_fairness_key"]


def test_lanes_need_no_store() -> None:
    """A store that is away refuses what it refuses without lanes, and nothing else."""
    app, _ = app_with_lanes(reliable_store_url=UNREACHABLE)
    assert submitted_to(app, job_task(app, fairness_key="tenant:{x}"), 2) == "celery.lane.12"


def test_a_purge_of_a_queue_takes_its_lanes() -> None:
    """They are part of it."""
    app, _ = app_with_lanes()
    task = job_task(app, fairness_key="tenant:{x}")
    purge_queue(app, "celery")
    for tenant in range(5):
        task.delay(tenant)
    assert purge_queue(app, "celery") == 5


def test_a_lane_is_like_its_queue() -> None:
    """Its type and its limits, under a name and an exchange of its own."""
    arguments = {"x-queue-type": "quorum", "x-max-priority": 5}
    app = make_app(
        reliable_fair_queues={"reports": {"lanes": 2}}, task_queues=[Queue("reports", queue_arguments=arguments)]
    )
    assert runtime_of(app).lanes is not None
    lane = app.amqp.queues["reports.lane.2"]
    assert (lane.name, lane.routing_key, lane.exchange.name) == ("reports.lane.2",) * 3
    assert lane.queue_arguments == arguments
    assert list(app.amqp.queues.consume_from) == ["reports"]


# --- bad input


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"q": {"lanes": 0}}, "'q': lanes: expected a whole number from 2 to 64, found 0"),
        ({"q": {"lanes": 1000}}, "lanes: expected a whole number from 2 to 64"),
        ({"q": {"lanes": True}}, "lanes: expected a whole number from 2 to 64"),
        ({"q": {"weights": {"a": 0}}}, "weights: expected a dict that gives fairness keys whole numbers from 1 to 16"),
        ({"q": {"weights": {"a": -1}}}, "weights: expected a dict"),
        ({"q": {"weights": {"a": 1_000_000}}}, "weights: expected a dict"),
        ({"q": {"weights": {"a": 0.5}}}, "weights: expected a dict"),
        ({"q": {"weights": {7: 1}}}, "weights: expected a dict"),
        ({"q": {"weights": {"a": 16, "b": 16, "c": 16, "d": 16, "e": 1}}}, "64 in all"),
        ({"q": {"weight": {}}}, "no option 'weight', expected lanes, weights"),
        (["q"], "expected a dict that gives each queue a dict of options"),
    ],
)
def test_wrong_lanes_are_refused(given: Any, problem: str) -> None:
    """At the start of a worker, and at the first submission."""
    with pytest.raises(ConfigurationError, match="reliable_fair_queues") as caught:
        runtime_of(make_app(reliable_fair_queues=given))
    assert problem in str(caught.value)


@pytest.mark.parametrize("every", [0, 1, -5, 1001, True, "10"])
def test_a_wrong_share_of_lower_priorities_is_refused(every: Any) -> None:
    """1 would turn priorities round."""
    with pytest.raises(ConfigurationError, match="low_priority_every: expected a whole number, at least 2 and at most"):
        runtime_of(make_app(reliable_low_priority_every=every))


def test_lanes_of_an_unknown_queue_are_refused() -> None:
    """They would do nothing."""
    app = make_app(reliable_fair_queues={"repots": {}}, task_queues=[Queue("reports")])
    with pytest.raises(
        ConfigurationError, match=r"reliable_fair_queues: expected queues of task_queues \(reports\), found repots"
    ):
        _ = runtime_of(app).lanes
    strict = make_app(reliable_fair_queues={"reports": {}}, task_create_missing_queues=False)
    with pytest.raises(ConfigurationError, match="reliable_fair_queues: 'reports': expected a queue of the app"):
        _ = runtime_of(strict).lanes


def test_a_template_of_an_unknown_argument_is_refused() -> None:
    """At registration."""
    app, _ = app_with_lanes()
    job_task(app, fairness_key="tenant:{tenant}")
    with pytest.raises(ConfigurationError, match=r"fairness_key='tenant:\{tenant\}'.*no argument named tenant"):
        app.finalize()
