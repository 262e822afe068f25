"""Entries whose runs must not overlap, by their headers; and why an entry did not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from celery_reliable.errors import ConfigurationError
from celery_reliable.overlap import Claimant, Go, Skip, Step, Wait
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import SHELF
from celery_reliable.slots.reasons import reasons
from celery_reliable.slots.records import Passed, SlotRecord
from celery_reliable.slots.skips import SHELF as SKIPS
from celery_reliable.slots.skips import by_entry, skipped
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import Write
from tests.unit.beating import START, Fleet, every

SLOT = int((START + 10) * 1e6)


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Make a fleet with a schedule; its beats end with the test."""
    made: list[Fleet] = []

    def make(schedule: Any) -> Fleet:
        made.append(Fleet(schedule))
        return made[-1]

    yield make
    for one in made:
        one.close()


def running(beats: Fleet, name: str) -> Claimant:
    """Let a job of some task run under an overlap key."""
    holder = Claimant(name, Job("held"), "id-held", ttl=60.0)
    runtime_of(beats.app).rights.enter(holder, policy="forbid", has_run=False)
    return holder


def waiting(beats: Fleet, name: str) -> Claimant:
    """Let another job wait for the one that runs."""
    waiter = Claimant(name, Job("waits"), "id-waits", ttl=60.0)
    assert runtime_of(beats.app).rights.enter(waiter, policy="queue", has_run=False) == Wait("task id-held runs")
    return waiter


def why(beats: Fleet, entry: str) -> str:
    """Run ``celery reliable beat why``."""
    obj = SimpleNamespace(app=beats.app, no_color=True)
    result = CliRunner(env={"COLUMNS": "150"}).invoke(reliable, ["beat", "why", entry], obj=obj)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("policies", "name", "reason"),
    [
        ({"overlap": "forbid"}, "reliable", "task id-held runs"),
        ({"overlap": "forbid", "overlap_key": "nightly"}, "nightly", "task id-held runs"),
        ({"overlap": "queue"}, "reliable", "task id-waits waits already"),
        ({"overlap": "queue", "overlap_key": "nightly"}, "nightly", "task id-waits waits already"),
    ],
)
def test_a_slot_is_skipped_while_another_job_of_its_kind_runs(
    fleet: Callable[..., Fleet], policies: dict[str, str], name: str, reason: str
) -> None:
    """Nothing is sent, the reason is kept, and the next slot runs when the other job has ended."""
    beats = fleet({"job": every(10.0, **policies), "other": every(10.0)})
    beats.start()
    holder = running(beats, name)
    if policies["overlap"] == "queue":
        waiting(beats, name)
    beats.run(11)
    assert (beats.slots("job"), beats.slots("other")) == ([], [10])
    (dropped,) = beats.named("slot_dropped")
    assert (dropped["entry"], dropped["reason"]) == ("job", f"overlap: {reason}")
    beats.run(1)
    assert why(beats, "job").count(f"verlap: {reason}") == 2  # the reason now, and in the history
    runtime_of(beats.app).rights.leave(holder)
    beats.run(10)
    assert beats.slots("job") == [20]
    assert "Nothing keeps it from running" in why(beats, "job")


@pytest.mark.parametrize("crowded", [False, True], ids=["one runs", "and one waits"])
def test_a_slot_under_replace_is_sent_and_stops_who_runs(fleet: Callable[..., Fleet], *, crowded: bool) -> None:
    """Beat skips none; the newest slot takes the place of who waits, and begins when the other has ended."""
    beats = fleet({"job": every(10.0, overlap="replace")})
    beats.start()
    holder = running(beats, "reliable")
    waiter = waiting(beats, "reliable") if crowded else None
    beats.run(11)
    assert (beats.slots("job"), beats.named("slot_dropped")) == ([10], [])
    ((_, sent),) = beats.fired
    rights = runtime_of(beats.app).rights
    newest = Claimant("reliable", Job(sent["reliable"]["key"]), sent["id"], ttl=60.0)

    def enter(one: Claimant) -> Step:
        return rights.enter(one, policy=sent["reliable_overlap"], has_run=False)

    assert enter(newest) == Wait("task id-held runs")
    (held,) = rights.renew([holder]).values()
    assert held is not None
    assert held.stop
    if waiter is not None:
        assert enter(waiter) == Skip("a newer one took its place")
    rights.leave(holder)
    assert enter(newest) == Go()


def test_one_slot_under_queue_is_sent_to_wait(fleet: Callable[..., Fleet]) -> None:
    """The first one that meets a running job; those that come while it waits are skipped."""
    beats = fleet({"job": every(10.0, overlap="queue")})
    beats.start()
    running(beats, "reliable")
    beats.run(11)
    assert beats.slots("job") == [10]
    waiting(beats, "reliable")  # a worker has taken it
    beats.run(20)
    assert beats.slots("job") == [10]
    assert [one["reason"] for one in beats.named("slot_dropped")] == ["overlap: task id-waits waits already"] * 2


def test_what_cannot_be_done_about_overlap_is_told_and_not_sent(fleet: Callable[..., Fleet]) -> None:
    """An unknown word, a key that no argument fills, a task that nothing keeps apart; every entry goes on."""
    beats = fleet(
        {
            "word": every(10.0, overlap="sometimes"),
            "key": every(10.0, overlap="forbid", overlap_key="import:{nosuch}"),
            "plain": every(10.0, "plain", overlap="forbid"),
            "good": every(10.0, overlap="queue"),
        }
    )
    beats.start()
    beats.run(11)
    assert [beats.slots(name) for name in ("word", "key", "plain", "good")] == [[10]] * 4
    problems = {event["entry"]: event["problem"] for event in beats.named("policy_invalid")}
    assert set(problems) == {"word", "key", "plain"}
    assert "reliable_overlap: expected 'allow' or 'forbid'" in problems["word"]
    assert "found 'sometimes'" in problems["word"]
    assert "no argument named nosuch" in problems["key"]
    assert "base=ReliableTask" in problems["plain"]
    sent = {one["reliable_entry"]: one.get("reliable_overlap") for _, one in beats.fired}
    assert sent == {"word": None, "key": "forbid", "plain": None, "good": "queue"}


def test_a_call_may_name_its_own_policy(fleet: Callable[..., Fleet]) -> None:
    """Without beat: a header of ``apply_async``; an unknown word is refused."""
    beats = fleet({})
    running(beats, "reliable")
    task = beats.app.tasks["reliable"]
    assert task.apply_async(headers={"reliable_overlap": "forbid"}).reliable_skipped == "task id-held runs"
    with pytest.raises(ConfigurationError, match="header reliable_overlap: expected 'allow' or 'forbid'"):
        task.apply_async(headers={"reliable_overlap": "sometimes"})


def test_a_skip_in_a_worker_is_known_to_the_entry(fleet: Callable[..., Fleet]) -> None:
    """The slot was published, and then skipped: its history says so."""
    beats = fleet({"job": every(10.0)})
    beats.start()
    beats.run(12)
    skipped(beats.notes, "job", slot="2026-06-01T12:00:10+00:00", reason="task id-held runs", now=SLOT)
    told = why(beats, "job")
    assert "Overlap: task id-held runs." in told
    assert "published" not in told
    beats.run(10)
    assert "Overlap: task id-held runs." not in why(beats, "job")


def test_skips_are_bounded_and_foreign_ones_are_no_hindrance() -> None:
    """Ten for each entry."""
    notes = MemoryStore().notes
    notes.write(SKIPS, [Write(name="job", value=b"junk", ttl=9.0)])
    for second in range(25):
        skipped(notes, "job", slot=f"2026-06-01T12:00:{second:02d}+00:00", reason="x", now=second)
    assert [skip.at for skip in by_entry(notes.read(SKIPS, ["job"]))["job"]] == list(range(15, 25))


def test_a_six_minute_job_every_five_minutes_neither_doubles_nor_piles_up(fleet: Callable[..., Fleet]) -> None:
    """Every second slot is skipped."""
    beats = fleet({"job": every(300.0, overlap="forbid")})
    beats.start()
    rights = runtime_of(beats.app).rights
    began: float | None = None
    runs: list[float] = []
    me = Claimant("reliable", Job("run"), "id-run", ttl=600.0)
    for _ in range(360):
        beats.run(10)
        if began is not None and beats.clock() - began >= 360:
            rights.leave(me)
            began = None
        for _ in beats.fired[len(runs) :]:
            assert began is None, "two at once"
            began = beats.clock()
            runs.append(began)
            rights.enter(me, policy="forbid", has_run=False)
    assert beats.slots("job") == [300, 900, 1500, 2100, 2700, 3300]
    assert len(beats.named("slot_dropped")) == 6


FIRED = SlotRecord("v", SLOT, "fired", following=SLOT + 10_000_000)


@pytest.mark.parametrize(
    ("record", "led", "told"),
    [
        (FIRED, True, ""),
        (FIRED, False, "No beat leads"),
        (SlotRecord("v", SLOT, "fired", absent=SLOT), True, "disabled, or gone from the schedule, since 2026-06-01"),
        (SlotRecord("v", SLOT, "claimed"), True, "is claimed and not known to be published; it is tried again"),
        (SlotRecord("v", SLOT, "claimed", why="publish refused: no route"), True, "Publish refused: no route"),
        (
            FIRED.dropped("deadline", at=SLOT),
            True,
            "12:00:10 UTC was dropped: it could not start before its start_deadline.",
        ),
        (FIRED.dropped("overlap: task x runs", at=SLOT), True, "Overlap: task x runs"),
        (FIRED.with_skips([Passed(SLOT, "overlap: task x runs", SLOT)]), True, "Overlap: task x runs"),
        (SlotRecord("v", SLOT, "fired", why="its schedule raised X"), True, "Its schedule raised X"),
        (SlotRecord("v", SLOT, "seen", following=SLOT + 1), True, "has not been due since it was first seen"),
        (SlotRecord("v", SLOT, "fired", following=SLOT - 120_000_000), True, "It is overdue since"),
        (SlotRecord("v", SLOT, "fired"), True, "Its schedule has no further slot"),
    ],
)
def test_why_an_entry_did_not_run(record: SlotRecord, *, led: bool, told: str) -> None:
    """Each cause in words; nothing when all is well."""
    found = " ".join(reasons(record, led=led, now=SLOT))
    assert told in found
    assert bool(told) == bool(found)


def test_history_is_bounded_in_the_store(fleet: Callable[..., Fleet]) -> None:
    """Ten outcomes, however often it ran."""
    beats = fleet({"job": every(1.0)})
    beats.start()
    beats.run(30)
    note = beats.notes.read(SHELF, ["job"])["job"]
    assert len(SlotRecord.from_bytes(note.value).history) == 10
