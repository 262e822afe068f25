"""The scheduler in one process: leaders that come and go, brokers that refuse, entries that change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery.beat import Scheduler
from celery.schedules import crontab, maybe_schedule, schedule
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from celery_reliable import ReliableTask, keys
from celery_reliable.beat import LeaderMixin
from celery_reliable.beat.requests import Requests
from celery_reliable.heartbeats import read_sign
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import SHELF
from celery_reliable.slots.planning import MOST_CAUGHT_UP
from celery_reliable.stores.base import Run
from celery_reliable.stores.notes import Write
from tests.unit.beating import START, TTL, Fleet, every


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Make a fleet with a schedule; its beats end with the test."""
    made: list[Fleet] = []

    def make(schedule: Any, **conf: Any) -> Fleet:
        made.append(Fleet(schedule, **conf))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_beat_leads_and_the_other_stands_by(fleet: Callable[..., Fleet]) -> None:
    """Each slot goes out once, in time."""
    beats = fleet({"job": every(10.0)})
    beats.start(), beats.start()
    beats.run(35)
    assert beats.slots("job") == [10, 20, 30]
    assert len(beats.named("leading")) == 1


def test_a_standby_sets_up_nothing(fleet: Callable[..., Fleet]) -> None:
    """Setting up writes, for some schedulers."""
    beats = fleet({"job": every(10.0)})
    beats.start()
    standby = beats.start()
    beats.run(5)
    assert standby.schedule == {}


def test_a_killed_leader_is_replaced_within_the_ttl(fleet: Callable[..., Fleet]) -> None:
    """And nothing it fired is fired again."""
    beats = fleet({"job": every(10.0, catch_up="all")})
    first = beats.start()
    beats.run(12)
    beats.start()
    beats.kill(first)
    beats.run(TTL)
    assert len(beats.named("leading")) == 2
    beats.run(20)
    assert beats.slots("job") == [10, 20, 30, 40]


def test_a_leader_that_stops_hands_over_at_once(fleet: Callable[..., Fleet]) -> None:
    """The lease is freed."""
    beats = fleet({"job": every(10.0)})
    first, _ = beats.start(), beats.start()
    beats.run(5)
    first.close()
    beats.beats.remove(first)
    beats.run(1)
    assert len(beats.named("leading")) == 2


def test_a_leader_whose_lease_ran_out_does_not_publish(fleet: Callable[..., Fleet]) -> None:
    """A frozen one finds another in its place, stands by, and may lead again."""
    beats = fleet({"job": every(10.0)})
    first, second = beats.start(), beats.start()
    beats.run(5)
    beats.run(40, only=second)
    before = list(beats.slots("job"))
    assert before[-1] == 40
    beats.run(0, only=first)
    assert beats.slots("job") == before
    assert beats.named("standing_by")
    beats.kill(second)
    beats.run(TTL + 10, only=first)
    assert len(beats.named("leading")) == 3


def test_a_slot_claimed_by_a_dead_leader_goes_out_under_the_same_id(fleet: Callable[..., Fleet]) -> None:
    """Claimed and not confirmed: whoever leads publishes it again."""
    beats = fleet({"job": every(10.0)})
    first = beats.start()
    beats.run(9)
    with beats.broker_away():
        beats.run(2)
    refused = beats.named("slot_refused")[0]
    beats.kill(first)
    beats.start()
    beats.run(TTL)
    claimed = [headers for _, headers in beats.fired if headers["reliable_slot"] == refused["slot"]]
    (fired,) = [event for event in beats.named("slot_fired") if event["slot"] == refused["slot"]]
    assert [headers["id"] for headers in claimed] == [fired["task_id"]]
    assert fired["again"] is True


@pytest.mark.parametrize(("task", "messages"), [("reliable", 2), ("plain", 1), ("elsewhere", 1)])
def test_a_beat_that_dies_right_after_a_publish(fleet: Callable[..., Fleet], task: str, messages: int) -> None:
    """A reliable slot goes out again, under the same id; a plain one does not: nobody would notice."""
    beats = fleet({"job": every(10.0, task)})
    beats.start()
    beats.run(9)
    beats.dies_at("slot_fired")
    beats.run(1)
    beats.start()
    beats.run(TTL)
    sent = [headers["id"] for _, headers in beats.fired if headers["reliable_slot"].endswith("12:00:10+00:00")]
    assert (len(sent), len(set(sent))) == (messages, 1)


def test_the_lease_is_looked_at_before_each_publish(fleet: Callable[..., Fleet]) -> None:
    """A leader that is deposed between claim and publish leaves the slot to the next one."""

    class Fatal(schedule):  # type: ignore[misc]  # Celery has no types
        armed = False

        def remaining_estimate(self, last_run_at: Any) -> Any:
            if self.armed:
                beats.beats[0]._leadership.give_up("a test")
            return super().remaining_estimate(last_run_at)

    fatal = Fatal(1000.0)
    beats = fleet({"job": every(10.0), "fatal": every(fatal)})
    beats.start()
    beats.run(9)
    entry = beats.beats[0].schedule["fatal"]
    entry.schedule.armed = True
    beats.clock.time += 1
    beats.beats[0].peers_of = lambda _: iter([entry])  # the other entries that are looked at together
    beats.beats[0].tick()
    beats._collect()
    assert beats.beats[0]._desk.record("job").state == "claimed"
    assert beats.fired == []
    entry.schedule.armed = False
    beats.start()
    beats.run(5)
    assert beats.slots("job") == [10]


def test_two_beats_that_both_believe_they_lead_fire_a_slot_once(fleet: Callable[..., Fleet]) -> None:
    """The record decides, not the belief: a plain slot goes out once, a reliable one under one id."""
    beats = fleet({"job": every(10.0, catch_up="all"), "plain": every(10.0, "plain", catch_up="all")})
    first, second = beats.start(), beats.start()
    beats.run(5)
    second._leads = True
    second._desk.load(epoch=first._leadership.epoch + 1)
    second.setup_schedule()
    for _ in range(6):
        beats.clock.time += 10
        for beat in (first, second):
            beat._leadership._until = float("inf")
        for _ in range(6):
            first.tick(), second.tick()
        beats._collect()
    assert len(beats.slots("plain")) == len(set(beats.slots("plain"))) >= 5
    ids = {one["id"] for _, one in _of(beats, "job")}
    assert len(ids) == len(set(beats.slots("job"))) >= 5


@pytest.mark.parametrize("seconds", [3, 60])
def test_a_store_that_goes_away_when_a_slot_is_due(fleet: Callable[..., Fleet], seconds: int) -> None:
    """Shorter and longer than the lease: the slot goes out as soon as the store is back, not five minutes later."""
    beats = fleet({"job": every(100.0), "plain": every(100.0, "plain")})
    beats.start()
    beats.run(99)
    beats.notes.away = True
    beats.run(seconds)
    beats.notes.away = False
    assert beats.fired == []
    beats.run(5)
    assert beats.slots("job") == beats.slots("plain") == [100]


def test_a_refused_slot_is_tried_again_and_not_dropped_until_the_next(fleet: Callable[..., Fleet]) -> None:
    """Seconds later, not an interval later."""
    beats = fleet({"job": every(60.0), "plain": every(60.0, "plain")})
    beats.start()
    beats.run(59)
    with beats.broker_away():
        beats.run(4)
    beats.run(8)
    assert beats.slots("job") == beats.slots("plain") == [60]
    beats.run(60)
    assert beats.slots("job") == beats.slots("plain") == [60, 120]


def test_a_slot_that_was_refused_and_then_taken_may_run(fleet: Callable[..., Fleet]) -> None:
    """The refusal withdrew the first submission; the second one, under the same id, is not meant by that."""
    beats = fleet({"job": every(60.0)})
    beats.start()
    beats.run(59)
    with beats.broker_away():
        beats.run(2)
    beats.run(8)
    assert beats.named("withdrawn")
    ((_, headers),) = beats.fired
    identity = keys.identity_of(headers["reliable"], task_id=headers["id"])
    assert identity is not None
    claim = {"task_id": headers["id"], "life": identity.life, "token": "t", "ttl": 9.0}
    answer = runtime_of(beats.app).store.claim(identity.job, **claim, max_deliveries=5, record_ttl=99.0)
    assert isinstance(answer, Run)


def test_a_refused_slot_is_dropped_at_its_deadline(fleet: Callable[..., Fleet]) -> None:
    """And that is kept."""
    beats = fleet({"job": every(60.0, start_deadline=5)})
    beats.start()
    beats.run(59)
    with beats.broker_away():
        beats.run(10)
    beats.run(10)
    assert beats.slots("job") == []
    assert beats.named("slot_dropped")[0]["reason"] == "deadline"


def test_a_long_outage_of_the_broker_is_one_run_with_latest(fleet: Callable[..., Fleet]) -> None:
    """What was claimed before is superseded by what is newer."""
    beats = fleet({"job": every(10.0), "all": every(10.0, catch_up="all")})
    beats.start()
    beats.run(9)
    with beats.broker_away():
        beats.run(52)
    beats.run(8)
    assert beats.slots("job") == [60]
    assert beats.slots("all") == [10, 20, 30, 40, 50, 60]


def test_a_broker_that_is_away_is_not_asked_for_every_entry(fleet: Callable[..., Fleet]) -> None:
    """A thousand entries that each wait for it would stop the loop."""
    beats = fleet({f"job{number}": every(10.0) for number in range(50)})
    beats.start()
    beats.run(9)
    with beats.broker_away():
        beats.run(3)
    assert len(beats.named("slot_refused")) <= 5
    beats.run(10)
    assert sorted(beats.slots(f"job{number}") for number in range(50)) == [[10.0, 20.0]] * 50


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"catch_up": "latest"}, [21_600]),
        ({"catch_up": "skip"}, []),
        ({"catch_up": "all", "catch_up_window": 1350}, [20_400, 20_700, 21_000, 21_300, 21_600]),
        ({"catch_up": "all", "start_deadline": 400}, [21_300, 21_600]),
    ],
)
def test_six_hours_without_a_beat(fleet: Callable[..., Fleet], policy: dict[str, Any], expected: list[int]) -> None:
    """The policy decides; then the schedule goes on."""
    beats = fleet({"job": every(300.0, **policy)})
    first = beats.start()
    beats.run(1)
    beats.kill(first)
    beats.clock.time = START + 6 * 3600 + 100
    beats.start()
    beats.run(30)
    assert beats.slots("job") == expected
    beats.run(300)
    assert beats.slots("job") == [*expected, 21_900]


def test_missed_slots_are_caught_up_at_a_bounded_rate(fleet: Callable[..., Fleet]) -> None:
    """A hundred at most, and not all at once."""
    beats = fleet({"job": every(1.0, catch_up="all")})
    first = beats.start()
    beats.run(2)
    beats.kill(first)
    beats.pass_time(3600)
    beats.start()
    beats.run(2)
    assert len(beats.slots("job")) <= 2 + 12
    beats.run(60)
    caught_up = beats.slots("job")
    assert caught_up == sorted(set(caught_up))
    assert 100 <= len(caught_up) <= 170


def test_an_entry_that_was_switched_off_has_missed_nothing(fleet: Callable[..., Fleet]) -> None:
    """It goes on in its rhythm, also under another leader."""
    beats = fleet({"job": every(10.0, catch_up="all"), "other": every(7.0)})
    first = beats.start()
    beats.run(12)
    entry = first.schedule.pop("job")
    beats.run(30)
    beats.kill(first)
    beats.start()
    beats.run(TTL + 4)
    second = beats.beats[-1]
    assert "job" in second.schedule
    second.schedule.pop("job")
    beats.run(20)
    second.schedule["job"] = entry
    beats.run(16)
    late = [slot for slot in beats.slots("job") if slot > 10]
    assert all(slot % 10 == 0 for slot in late)
    assert late == sorted(set(late))
    assert [slot for slot in late if 10 < slot < 45] == []


def test_a_changed_entry_starts_anew(fleet: Callable[..., Fleet]) -> None:
    """Other arguments or another interval are another job; other options are not."""
    beats = fleet({"job": every(10.0, catch_up="all")})
    first = beats.start()
    beats.run(12)
    beats.kill(first)
    beats.pass_time(100)
    beats.app.conf.beat_schedule = {"job": {**every(10.0, catch_up="all"), "args": ("changed",)}}
    beats.start()
    beats.run(11)
    assert beats.slots("job")[1:] == [122]
    record = beats.beats[0]._desk.record("job")
    assert [passed.slot for passed in record.history] == [int((START + 122) * 1e6)]


def test_a_change_under_the_leader_is_seen(fleet: Callable[..., Fleet]) -> None:
    """Within seconds, though schedules are compared by identity first: other arguments, a new entry, one that is gone."""
    beats = fleet({"job": every(100.0), "gone": every(10.0)})
    beat = beats.start()
    beats.run(2)
    schedule = beat.schedule
    schedule["job"] = beat.Entry(**{**dict(schedule["job"]), "schedule": maybe_schedule(10.0, app=beats.app)})
    schedule["new"] = beat.Entry(**{**dict(schedule["job"]), "name": "new"})
    del schedule["gone"]
    beats.run(14)
    assert (beats.slots("job"), beats.slots("new"), beats.slots("gone")) == ([13], [13], [])


def test_a_renamed_entry_starts_anew(fleet: Callable[..., Fleet]) -> None:
    """Nothing of the old name's history is the new one's; the old one is kept as gone."""
    beats = fleet({"old": every(10.0, catch_up="all")})
    first = beats.start()
    beats.run(12)
    beats.kill(first)
    beats.pass_time(100)
    beats.app.conf.beat_schedule = {"new": every(10.0, catch_up="all")}
    beats.start()
    beats.run(11)
    assert (beats.slots("old"), beats.slots("new")) == ([10], [122])
    desk = beats.beats[0]._desk
    assert [passed.slot for passed in desk.record("new").history] == [int((START + 122) * 1e6)]
    assert desk.record("old").absent


def test_a_task_may_have_policies_and_its_entries_others(fleet: Callable[..., Fleet]) -> None:
    """Header before option before setting."""
    beats = fleet({"as-task": every(300.0, "skipper"), "own": every(300.0, "skipper", catch_up="latest")})

    def skipper() -> None: ...

    beats.app.task(name="skipper", base=ReliableTask, catch_up="skip", shared=False)(skipper)
    first = beats.start()
    beats.run(1)
    beats.kill(first)
    beats.pass_time(3700)
    beats.start()
    beats.run(10)
    assert (beats.slots("as-task"), beats.slots("own")) == ([], [3600])


def test_nobody_sleeps_long(fleet: Callable[..., Fleet]) -> None:
    """A leader looks at least once a second, a standby three times in a ttl: a free lease is seen in time."""
    beats = fleet({"job": every(3600.0)})
    leader, standby = beats.start(), beats.start()
    beats.run(2)
    assert 0 < leader.tick() <= 1.0
    assert 0 < standby.tick() <= TTL / 3


def test_a_round_that_takes_longer_than_the_lease_is_told(fleet: Callable[..., Fleet]) -> None:
    """With the setting; the slot in whose midst it lost the lease goes out once."""

    class Slow(schedule):  # type: ignore[misc]  # Celery has no types
        def remaining_estimate(self, last_run_at: Any) -> Any:
            if hangs:
                beats.clock.time += hangs.pop()
            return super().remaining_estimate(last_run_at)

    hangs: list[float] = []
    beats = fleet({"job": every(10.0, catch_up="all"), "slow": every(Slow(10.0))})
    beats.start()
    beats.run(9)
    hangs.append(2 * TTL)
    beats.run(60)
    assert beats.named("beat_slow")[0]["seconds"] >= TTL
    assert len(beats.named("leading")) == 2
    assert beats.slots("job") == sorted(set(beats.slots("job")))
    assert set(range(10, 61, 10)) <= set(beats.slots("job"))


def test_an_entry_that_cannot_be_made_or_asked_does_not_stop_the_others(fleet: Callable[..., Fleet]) -> None:
    """Each is told of once."""

    class Moody:
        app = None

        def is_due(self, last_run_at: Any) -> Any:
            raise RuntimeError("no idea")

    beats = fleet({"bad": {"task": "plain", "schedule": "nonsense"}, "moody": every(Moody()), "job": every(10.0)})
    beats.start()
    beats.run(25)
    assert beats.slots("job") == [10, 20]
    assert {event["entry"] for event in beats.named("schedule_failed")} == {"bad", "moody"}
    assert len(beats.named("schedule_failed")) == 2


def test_unknown_policies_are_told_and_the_default_holds(fleet: Callable[..., Fleet]) -> None:
    """In whatever header."""
    beats = fleet({"job": every(10.0, catch_up="sometimes", start_deadline="soon", timezone="Mars/Olympus")})
    beats.start()
    beats.run(12)
    assert beats.slots("job") == [10]
    assert sorted(event["problem"].split(":")[0] for event in beats.named("policy_invalid")) == [
        "reliable_catch_up",
        "reliable_start_deadline",
        "reliable_timezone",
    ]


def test_what_is_published_carries_slot_id_and_key_for_every_kind_of_task(fleet: Callable[..., Fleet]) -> None:
    """A task that beat can import, a plain one, and one that it cannot."""
    beats = fleet({"job": every(10.0), "plain": every(10.0, "plain"), "far": every(10.0, "elsewhere.task")})
    beats.start()
    beats.run(11)
    assert [beats.slots(entry) for entry in ("job", "plain", "far")] == [[10], [10], [10]]
    headers = {one["reliable_entry"]: one for _, one in beats.fired}
    assert headers["job"]["reliable"]["k"] == headers["far"]["reliable"]["k"] == "slot"
    for entry in ("job", "far"):
        assert headers[entry]["reliable"]["i"] == headers[entry]["id"]
        assert headers[entry]["reliable"]["key"].startswith(f"beat:{entry}:")
    assert len({one["id"] for one in headers.values()}) == 3


def test_ids_do_not_depend_on_who_fires(fleet: Callable[..., Fleet]) -> None:
    """Two fleets that know nothing of each other give one slot one id."""
    found = []
    for _ in range(2):
        beats = fleet({"job": every(10.0)})
        beats.start()
        beats.run(11)
        found.append([one["id"] for _, one in beats.fired])
    assert found[0] == found[1]


def test_the_entry_of_the_schedule_is_not_touched(fleet: Callable[..., Fleet]) -> None:
    """Ids and slots stay out of it, headers included; its last run is the slot."""
    beats = fleet({"job": every(10.0)})
    beat = beats.start()
    beats.run(12)
    entry = beat.schedule["job"]
    assert entry.options == {"headers": {}}
    assert entry.last_run_at.timestamp() == START + 10


def test_a_loop_that_stalls_loses_leadership(fleet: Callable[..., Fleet]) -> None:
    """Not just a process that died: the renewing thread looks at the loop."""
    beats = fleet({"job": every(10.0)})
    beat = beats.start()
    beats.run(1)
    beats.clock.time += 2
    assert beat._leadership.holds()
    beat._leadership._due_by = beats.clock.time - 1
    beat._leadership._stop.set()
    stop = type("Once", (), {"wait": staticmethod(lambda _: False)})()
    beat._leadership._keep(stop)
    assert not beat._leadership.holds()
    beats.start()
    beats.run(1)
    assert len(beats.named("leading")) == 2
    assert beats.named("beat_stalled")


def test_a_beat_shows_a_sign_of_life_as_long_as_its_loop_comes_by(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """Leading or standing by; gone when it ends."""
    beats = fleet({"job": every(10.0)}, reliable_heartbeat_file=str(tmp_path / "%n.json"))
    beat = beats.start()
    beats.run(1)
    sign = read_sign(tmp_path / "celerybeat.json")
    assert (sign.role, sign.state) == ("beat", "leading")
    beats.pass_time(30)
    assert read_sign(tmp_path / "celerybeat.json") == sign
    beat.close()
    assert not (tmp_path / "celerybeat.json").exists()


def test_an_unreadable_record_is_written_over(fleet: Callable[..., Fleet]) -> None:
    """Somebody else's, or a later version's."""
    beats = fleet({"job": every(10.0)})
    runtime_of(beats.app).store.notes.write(SHELF, [Write(name="job", value=b"\x00junk", ttl=99.0)])
    beats.start()
    beats.run(11)
    assert beats.slots("job") == [10]


def test_an_entry_can_be_run_now_as_a_job_of_its_own(fleet: Callable[..., Fleet]) -> None:
    """The leader publishes it; its slots go on."""
    beats = fleet({"job": every(100.0)})
    beats.start()
    beats.run(2)
    requests = Requests(runtime_of(beats.app).store.notes)
    asked, unknown = requests.ask("job"), requests.ask("nothing")
    beats.run(3)
    assert requests.read(asked).sent
    assert "no entry 'nothing'" in requests.read(unknown).error
    ((_, headers),) = beats.fired
    assert headers["id"] == asked.task_id
    assert "reliable_slot" not in headers
    beats.run(100)
    assert beats.slots("job") == [100]


# --- any schedule, any outage, any history of leaders

_moves = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "both",
                "first",
                "second",
                "nobody",
                "kill first",
                "kill second",
                "refuse",
                "accept",
                "forget",
                "lose",
                "find",
            ]
        ),
        st.integers(0, 90),
    ),
    max_size=14,
)


@settings(max_examples=12, deadline=None)
@example(moves=[("refuse", 54), ("both", 82)], interval=3, policy="all")
@example(moves=[("both", 1), ("second", 13)], interval=3, policy="all")
@given(moves=_moves, interval=st.integers(3, 40), policy=st.sampled_from(["latest", "skip", "all"]))
def test_each_slot_fires_at_most_once_whatever_happens(
    moves: list[tuple[str, int]], interval: int, policy: str
) -> None:
    """A plain task's slot is published at most once, a reliable one's under one id; the policy decides the rest.

    Of intervals and of crontabs.
    """
    assume(policy != "all" or sum(seconds for _, seconds in moves) < MOST_CAUGHT_UP * interval)  # more are passed over
    job, plain = every(float(interval), catch_up=policy), every(float(interval), "plain", catch_up=policy)
    beats = Fleet({"job": job, "plain": plain, "cron": every(crontab(), catch_up=policy)})
    try:
        for beat in (beats.start(), beats.start()):
            beats.run(0, only=beat)
        for move, seconds in moves:
            _make(beats, move, seconds)
        beats.set_broker(away=False)
        beats.notes.away = False
        missed = sum(seconds for _, seconds in moves) if policy == "all" else 0
        beats.run(
            4 * TTL + 2 * interval + missed / (interval - 1)
        )  # with two beats the clock steps by seconds: a slot each
        _judge(beats, interval, policy)
    finally:
        beats.close()


def _make(beats: Fleet, move: str, seconds: int) -> None:
    """Let something happen for some seconds."""
    who, _, which = move.rpartition(" ")
    if who == "kill":
        beats.kill(beats.beats[which == "second"])
        beats.start()
    elif move in {"refuse", "accept"}:
        beats.set_broker(away=move == "refuse")
    elif move in {"lose", "find"}:
        beats.notes.away = move == "lose"  # the store
    elif move == "forget":
        beats.beats[0]._leadership.give_up("a test")
    if move == "nobody":
        beats.pass_time(seconds)
    else:
        beats.run(seconds, only={"first": beats.beats[0], "second": beats.beats[1]}.get(move))


def _judge(beats: Fleet, interval: int, policy: str) -> None:
    plain, job, cron = beats.slots("plain"), beats.slots("job"), beats.slots("cron")
    ids = {(one["reliable_entry"], one["reliable_slot"]): one["id"] for _, one in beats.fired}
    assert len(plain) == len(set(plain))
    assert all(ids[one["reliable_entry"], one["reliable_slot"]] == one["id"] for _, one in beats.fired)
    assert len(set(ids.values())) == len(ids)
    for slots, step in ((plain, interval), (job, interval), (cron, 60)):
        assert all(slot % step == 0 for slot in slots)
        assert max(slots) >= beats.clock.time - START - step  # what is due this instant goes out at the next look
    assert all(START + slot <= at for slot, (at, _) in zip(plain, _of(beats, "plain"), strict=True))
    for slots, step in ((job, interval), (cron, 60)) if policy == "all" else ():
        assert sorted(set(slots)) == [step * number for number in range(1, int(max(slots)) // step + 1)]


def _of(beats: Fleet, entry: str) -> list[tuple[float, dict[str, Any]]]:
    return [one for one in beats.fired if one[1].get("reliable_entry") == entry]


def test_a_closed_beat_ticks_no_more(fleet: Callable[..., Fleet]) -> None:
    """The SystemExit of Celery's signal handler may have been swallowed where it was raised."""
    beat = fleet({"job": every(10.0)}).start()
    beat.close()
    with pytest.raises(SystemExit):
        beat.tick()


# --- a scheduler of one's own


class Orders(Scheduler):  # type: ignore[misc]  # Celery has no types
    """A project's scheduler, which reads its entries from somewhere else."""

    source: ClassVar[dict[str, Any]] = {}

    def setup_schedule(self) -> None:
        """Read the entries."""
        self.merge_inplace(self.source)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Read them again in every round."""
        self.merge_inplace(self.source)
        return super().tick(*args, **kwargs)


class Mine(LeaderMixin, Orders):
    """Written out, as the documentation has it."""


class MinePlainly(LeaderMixin, Scheduler):  # type: ignore[misc]  # Celery has no types
    """Over Celery's own, with nothing of the project's."""

    def setup_schedule(self) -> None:
        """Read the entries once, as Celery's scheduler does."""
        self.merge_inplace(Orders.source)


@pytest.mark.parametrize("mine", [Mine, MinePlainly])
def test_a_scheduler_of_ones_own_leads_stands_by_and_fires_once(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, mine: type[Any]
) -> None:
    """With `LeaderMixin` in front of it: a killed leader's slots are the next one's, and a slot has one id."""
    monkeypatch.setattr(Orders, "source", {"job": every(10.0, catch_up="all"), "plain": every(10.0, "plain")})
    beats = fleet({}, scheduler=mine)
    first, second = beats.start(), beats.start()
    beats.run(11)
    assert (beats.slots("job"), second.schedule) == ([10], {})
    beats.dies_at("slot_fired")
    beats.run(10)
    assert first not in beats.beats
    beats.run(30)
    assert sorted(set(beats.slots("job"))) == [10, 20, 30, 40, 50]
    assert len(beats.slots("plain")) == len(set(beats.slots("plain")))
    assert len({sent["id"] for _, sent in beats.fired if sent["reliable_entry"] == "job"}) == 5
    assert len(beats.named("leading")) == 2


def test_entries_that_come_and_change_in_ones_own_scheduler_are_seen(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the beat that leads, and by the next one."""
    monkeypatch.setattr(Orders, "source", {"job": every(10.0)})
    beats = fleet({}, scheduler=Mine)
    first, _ = beats.start(), beats.start()
    beats.run(11)
    Orders.source["job"] = every(5.0)
    Orders.source["late"] = every(20.0)
    beats.run(29)
    first.close()
    beats.beats.remove(first)
    beats.run(12)
    changed, added = beats.slots("job")[1:], beats.slots("late")
    assert changed == [changed[0] + 5 * number for number in range(8)]
    assert added == [added[0], added[0] + 20]
    assert 15 < changed[0] <= 17, "seen a second after the change, and begun then"
