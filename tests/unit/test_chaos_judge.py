"""The judge of the chaos runs finds each broken promise in made-up evidence, and nothing in a clean one."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest

from tests.chaos import report
from tests.chaos.accounts import Accounts, Write
from tests.chaos.beside import beside
from tests.chaos.evidence import Bounds, Evidence, Fate
from tests.chaos.faults import Field, draw_faults
from tests.chaos.judge import duplicates, fences, judge, recoveries, slots, unaccounted
from tests.chaos.ledger import Ledger, Row, What
from tests.chaos.picture import picture
from tests.chaos.plan import submission
from tests.chaos.run import CELLS, MATRIX, Run
from tests.docs_scripts import DOCS

WORKER, OTHER = 100, 200  # main processes
CHILD, SECOND_CHILD = 101, 201  # their pool children


def row(what: What, label: str = "a", *, at: float, pid: int = CHILD, worker: str = "w1", **facts: Any) -> Row:
    """A row of the ledger, written by the pool child of a worker."""
    return Row(what, label, at=at, pid=pid, parent=pid - 1, thread=1, worker=worker, facts=facts)


def start(at: float, *, fence: int = 1, attempt: int = 1, **who: Any) -> Row:
    """A body begins."""
    return row("start", at=at, fence=fence, attempt=attempt, task_id="id", **who)


def end(at: float, how: str = "done", *, fence: int = 1, **who: Any) -> Row:
    """A body ends."""
    return row("end", at=at, how=how, fence=fence, attempt=1, task_id="id", **who)


def accepted(label: str = "a", *, form: str = "own", after: tuple[str, ...] = ()) -> Row:
    """A producer's call returned."""
    return row("accepted", label, at=0.0, form=form, members=[{"label": label, "id": label, "after": list(after)}])


def fault(kind: str, *, at: float, victims: tuple[int, ...] = (), seconds: float = 0.0, **facts: Any) -> Row:
    """Something was broken."""
    return row("fault", "", at=at, kind=kind, name=f"{kind}#{at}", victims=victims, seconds=seconds, **facts)


def healed(kind: str, *, of: float, at: float) -> Row:
    """What was broken at ``of`` is whole again."""
    return row("healed", "", at=at, name=f"{kind}#{of}")


FAR_AWAY = fault("latency", at=-50.0, target="w9", link="broker")
CLEAN = Evidence(
    rows=[FAR_AWAY, accepted(), start(1.0), end(2.0)],
    writes=[Write("a", 1, accepted=True)],
    fates={"a": Fate("done", 1)},
    residue={"messages": 0},
)


def with_rows(*rows: Row, writes: tuple[Write, ...] = (), **changes: Any) -> Evidence:
    """The clean evidence with other runs of the job."""
    facts = {"writes": [*writes] or CLEAN.writes, **changes}
    return replace(CLEAN, rows=sorted([FAR_AWAY, accepted(), *rows], key=lambda one: one.at), **facts)


TWICE = (Write("a", 1, accepted=True), Write("a", 2, accepted=True))
AGAIN = (start(3.0, fence=2, pid=SECOND_CHILD, worker="w2"), end(4.0, fence=2, pid=SECOND_CHILD, worker="w2"))
SECOND: dict[str, Any] = {"writes": TWICE, "fates": {"a": Fate("done", 2)}}


def promises(evidence: Evidence) -> set[str]:
    """The promises that were broken."""
    return {violation.promise for violation in judge(evidence)}


def test_nothing_is_found_in_a_clean_run() -> None:
    """One submission, one execution, one effect, its outcome."""
    assert judge(CLEAN) == []


@pytest.mark.parametrize("missing", ["rows", "writes", "fates"])
def test_a_run_without_evidence_is_guilty(missing: str) -> None:
    """An empty ledger proves nothing."""
    assert "evidence" in promises(replace(CLEAN, **{missing: type(getattr(CLEAN, missing))()}))


def test_a_run_without_faults_is_guilty() -> None:
    """Where nothing was broken nothing was tested."""
    assert promises(replace(CLEAN, rows=[one for one in CLEAN.rows if one.what != "fault"])) == {"evidence"}


# --- G1


@pytest.mark.parametrize("state", ["none", "waiting", "running", "withdrawn", "skipped", "revoked", "expired", "late"])
def test_an_accepted_job_without_a_proper_end_is_found(state: str) -> None:
    """A revoke or an expiry that nobody asked for is no end either."""
    assert "G1 accounted" in promises(replace(CLEAN, fates={"a": Fate(state)}))


def test_rabbitmq_may_drop_what_expired_before_it_ran() -> None:
    """No other job, and none that had begun."""
    dropped = replace(CLEAN, fates={}, bounds=Bounds(broker_expires=True))
    expiring = replace(dropped, rows=[accepted(form="expires")])
    assert not any(unaccounted(expiring))
    assert any(unaccounted(replace(expiring, rows=[*expiring.rows, start(1.0)])))
    assert any(unaccounted(replace(expiring, bounds=Bounds())))
    retried = replace(expiring, rows=[*expiring.rows, start(1.0), end(2.0, "transient")], fates={"a": Fate("waiting")})
    assert not any(unaccounted(retried))
    assert any(unaccounted(replace(retried, residue={"messages": 1})))
    assert any(unaccounted(replace(retried, bounds=Bounds())))
    assert any(unaccounted(replace(dropped, rows=[accepted()])))


def test_an_expired_job_may_be_left_as_its_dead_holder_left_it() -> None:
    """By RabbitMQ, which drops its message, and once none is left; no other job may."""
    by_rabbitmq = Bounds(broker_expires=True)
    cut_off = with_rows(start(1.0), accepted(form="expires"), fates={"a": Fate("running")})
    assert any(unaccounted(cut_off))
    assert not any(unaccounted(replace(cut_off, bounds=by_rabbitmq)))
    assert any(unaccounted(replace(cut_off, bounds=by_rabbitmq, residue={"messages held": 1})))
    assert any(unaccounted(replace(with_rows(start(1.0), fates={"a": Fate("running")}), bounds=by_rabbitmq)))
    assert not any(unaccounted(replace(cut_off, fates={"a": Fate("revoked")})))


def test_a_revoke_that_was_asked_for_is_an_end() -> None:
    """So is an expiry."""
    revoked = with_rows(row("revoked", at=0.5), accepted("b"), start(1.0, label="b"), end(2.0, label="b"))
    fates = {"a": Fate("revoked"), "b": Fate("done", 1)}
    assert judge(replace(revoked, fates=fates, writes=[Write("b", 1, accepted=True)])) == []


def test_the_next_step_of_a_finished_job_must_end() -> None:
    """A chain that stops half-way is found; one whose first step died is not."""
    chain = with_rows(start(1.0), end(2.0), accepted("b", after=("a",)))
    assert "G1 accounted" in promises(chain)
    letter = {"a": Fate("dead", reason="permanent")}
    dead = with_rows(start(1.0), end(2.0, "permanent"), accepted("b", after=("a",)), fates=letter)
    assert "G1 accounted" not in promises(dead)


def test_a_step_that_was_told_nothing_is_found() -> None:
    """A continuation runs with the outcome of what it continues."""
    rows = [start(1.0), end(2.0), accepted("b", after=("a",)), start(3.0, label="b"), end(4.0, label="b")]
    fates = {"a": Fate("done", 1), "b": Fate("done", 1)}
    writes = (*CLEAN.writes, Write("b", 1, accepted=True))
    assert promises(with_rows(*rows, fates=fates, writes=writes)) == {"G1 accounted"}
    told = row("told", "a", at=3.0, fence=1, by="b")
    assert judge(with_rows(*rows, told, fates=fates, writes=writes)) == []


@pytest.mark.parametrize(("may_run", "found"), [(False, {"G1 accounted"}), (True, set())])
def test_a_refused_job_that_ran_is_found(*, may_run: bool, found: set[str]) -> None:
    """Unless the error had said that it may run."""
    intent = row("intent", "b", at=0.1, labels=["b"])
    refused = row("refused", "b", at=0.2, labels=["b"], error="no", may_run=may_run)
    rows = [start(1.0), end(2.0), intent, refused, start(3.0, label="b"), end(4.0, label="b")]
    assert promises(with_rows(*rows)) == found


def test_a_letter_of_a_job_that_never_failed_is_found() -> None:
    """The plan of the run knows what fails for good."""
    letter = {"a": Fate("dead", reason="late")}
    assert promises(replace(CLEAN, fates={**letter, "b": Fate("done", 1)})) >= {"G1 accounted"}


# --- G2


def test_an_outcome_without_its_effect_is_found() -> None:
    """The store says done by a run whose change the accounts do not have."""
    assert promises(replace(CLEAN, fates={"a": Fate("done", 7)})) == {"G2 one outcome"}


def test_an_effect_after_the_committed_one_is_found() -> None:
    """A job that is done runs no more."""
    again = with_rows(start(1.0), end(2.0), *AGAIN, fault("kill child", at=2.5, victims=(CHILD,)), writes=TWICE)
    assert promises(again) == {"G2 one outcome"}


def test_two_different_outcomes_told_are_found() -> None:
    """Whoever is handed the outcome is handed the committed one."""
    assert promises(with_rows(start(1.0), end(2.0), row("told", "a", at=3.0, fence=9, by="b"))) == {"G2 one outcome"}


def test_a_holder_that_was_frozen_before_it_wrote_that_it_began_may_seem_to_come_late() -> None:
    """Its fence is the smaller one; without the freeze that is a fault."""
    frozen = fault("freeze worker", at=0.5, seconds=6.0, victims=(CHILD,))
    rows = (*AGAIN, start(6.5, fence=1), end(6.6, "raised", fence=1))
    assert [*fences(with_rows(frozen, healed("freeze worker", of=0.5, at=6.5), *rows))] == []
    assert len([*fences(with_rows(*rows))]) == 1


def test_a_body_that_raised_while_it_was_cut_off_is_explained_by_that() -> None:
    """It asked the store for something, when another had its job already."""
    rows = (start(1.0), *AGAIN, end(5.0, "raised"), healed("blackhole", of=1.5, at=7.5))
    for link, cause in (("store", "blackhole"), ("broker", "")):
        away = fault("blackhole", at=1.5, seconds=6.0, target="w1", link=link)
        assert [one.cause for one in duplicates(with_rows(away, *rows))] == [cause]


def test_a_fence_that_does_not_grow_is_found() -> None:
    """A later run has the larger fence, or the accounts would refuse the wrong one."""
    kill = fault("kill child", at=1.5, victims=(CHILD,))
    assert "G2 one outcome" in promises(with_rows(start(1.0, fence=5), kill, *AGAIN, **SECOND))


# --- G3


def test_two_runs_at_the_same_time_are_found() -> None:
    """Even when a fault explains the second run."""
    reset = fault("reset", at=2.0, target="w1", link="store")
    assert promises(with_rows(start(1.0), reset, *AGAIN, end(3.5), **SECOND)) == {"G3 one at a time"}


def test_a_run_of_a_process_that_nobody_saw_die_overlaps_the_next() -> None:
    """An orphan whose parent was killed may go on: the death of the parent is not its own."""
    killed = [start(1.0), fault("kill main", at=1.5, victims=(WORKER,))]
    assert promises(with_rows(*killed, *AGAIN, **SECOND)) == {"G3 one at a time"}
    orphaned = row("gone", "", at=1.6, target="w1", main=WORKER, code=-9, orphans=[CHILD])
    assert promises(with_rows(*killed, orphaned, *AGAIN, **SECOND)) == {"G3 one at a time"}
    dead = row("gone", "", at=1.6, target="w1", main=WORKER, code=-9, orphans=[])
    assert judge(with_rows(*killed, dead, *AGAIN, **SECOND)) == []


@pytest.mark.parametrize(("until", "found"), [(2.9, set()), (1.2, {"G3 one at a time", "duplicate without a fault"})])
def test_a_freeze_excuses_an_overlap_when_it_was_long_enough(until: float, found: set[str]) -> None:
    """A holder that is frozen beyond its lease is fenced, not stopped."""
    freeze = fault("freeze worker", at=1.1, victims=(WORKER, CHILD), seconds=5.0)
    rows = [start(1.0), freeze, healed("freeze worker", of=1.1, at=until), *AGAIN, end(3.5)]
    assert promises(with_rows(*rows, **SECOND)) == found


# --- duplicates


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        ([start(1.0), fault("kill child", at=1.5, victims=(CHILD,))], "kill child"),
        ([start(1.0), end(2.0), fault("kill worker", at=2.5, victims=(WORKER, CHILD))], "kill worker"),
        ([start(1.0), end(2.0), fault("kill server", at=1.5, target="store")], "kill server"),
        ([start(1.0), end(2.0, "interrupted"), fault("restart", at=1.5, victims=(WORKER,))], "restart"),
        ([start(1.0), end(2.0, "interrupted"), fault("roll", at=0.9, victims=(WORKER,))], "roll"),
    ],
)
def test_a_repeated_run_is_explained_by_the_fault_that_struck_the_first(first: list[Row], cause: str) -> None:
    """It is no violation."""
    evidence = with_rows(*first, *AGAIN, **SECOND)
    assert [duplicate.cause for duplicate in duplicates(evidence)] == [cause]
    assert judge(evidence) == []


@pytest.mark.parametrize(
    "first",
    [
        [start(1.0), end(2.0)],
        [start(1.0), end(2.0), fault("kill child", at=2.5, victims=(999,))],  # another process
        [start(1.0), end(2.0), fault("kill child", at=3.5, victims=(CHILD,))],  # after the second had begun
        [start(1.0), end(2.0), fault("reset", at=1.5, target="w2", link="store")],  # another worker's way
        [start(1.0), end(2.0), fault("restart", at=1.5, victims=(WORKER,))],  # told to stop, but it was done
    ],
)
def test_a_repeated_run_that_no_fault_explains_is_found(first: list[Row]) -> None:
    """A fault elsewhere or at another time is no excuse."""
    assert promises(with_rows(*first, *AGAIN, **SECOND)) == {"duplicate without a fault"}


def test_a_retry_is_no_duplicate() -> None:
    """The body had asked for it."""
    assert (
        judge(with_rows(start(1.0), end(2.0, "transient"), *AGAIN, writes=(TWICE[1],), fates={"a": Fate("done", 2)}))
        == []
    )


def test_an_error_that_was_counted_as_an_attempt_is_no_duplicate() -> None:
    """One that was not is."""
    facts: dict[str, Any] = {"writes": (TWICE[1],), "fates": {"a": Fate("done", 2)}}
    second = end(4.0, fence=2, pid=SECOND_CHILD)
    retried = with_rows(
        start(1.0), end(2.0, "raised"), start(3.0, fence=2, attempt=2, pid=SECOND_CHILD), second, **facts
    )
    assert judge(retried) == []
    again = with_rows(start(1.0), end(2.0, "raised"), start(3.0, fence=2, pid=SECOND_CHILD), second, **facts)
    assert promises(again) == {"duplicate without a fault"}


# --- the rest


def cut_off(times: int) -> list[Row]:
    """A job whose processes were killed one after the other, then done."""
    kills = [
        one
        for at in range(times)
        for one in (start(at + 1.0, fence=at + 1), fault("kill child", at=at + 1.5, victims=(CHILD,)))
    ]
    return [*kills, start(90.0, fence=99, pid=SECOND_CHILD), end(91.0, fence=99, pid=SECOND_CHILD)]


def test_a_body_that_is_cut_off_more_often_than_it_may_be_delivered_is_found() -> None:
    """Deliveries are bounded, too."""
    done: dict[str, Any] = {"writes": (Write("a", 99, accepted=True),), "fates": {"a": Fate("done", 99)}}
    assert "G4 bounded" in promises(with_rows(*cut_off(25), **done))
    assert "G4 bounded" not in promises(with_rows(*cut_off(8), **done))


def test_a_worker_that_does_not_stop_in_its_time_is_found() -> None:
    """Unless it was frozen while it should have."""
    overdue = fault("kill overdue", at=20.0, target="w1", victims=(WORKER,))
    assert promises(with_rows(start(1.0), end(2.0), overdue)) == {"G4 bounded"}
    freeze = [fault("freeze worker", at=9.0, seconds=4.0), healed("freeze worker", of=9.0, at=13.0)]
    assert judge(with_rows(start(1.0), end(2.0), *freeze, overdue)) == []


def slot(number: int, *, at: float, key: str = "") -> Row:
    """A slot of the entry that is due each second began to run."""
    label = f"slot:each-second:2026-01-01T00:00:{number:02d}+00:00"
    return row("accepted", label, at=at, form="slot", members=[{"label": label, "id": key or label, "kind": "slot"}])


def test_a_slot_that_did_not_come_or_came_twice_is_found() -> None:
    """Each due time once, under one id."""
    found = {number: [violation.promise for violation in slots(with_rows(*rows))] for number, rows in SLOTS.items()}
    assert found == {"each": [], "missed": ["G5 one fire per slot"], "again": [], "doubled": ["G5 one fire per slot"]}


SLOTS = {
    "each": [slot(1, at=1.0), slot(2, at=2.0), slot(3, at=3.0)],
    "missed": [slot(1, at=1.0), slot(3, at=3.0)],
    "again": [slot(1, at=1.0), slot(1, at=1.5), slot(2, at=2.0)],
    "doubled": [slot(1, at=1.0), slot(1, at=1.5, key="another"), slot(2, at=2.0)],
}


def test_more_attempts_than_allowed_are_found() -> None:
    """Retries are bounded."""
    assert promises(with_rows(start(1.0, attempt=7), end(2.0))) == {"G4 bounded"}


def test_a_worker_that_ends_by_itself_is_found() -> None:
    """One that was killed is not."""
    gone = row("gone", "", at=2.0, target="w1", main=WORKER, code=1)
    assert promises(with_rows(start(1.0), end(1.5), gone)) == {"worker ended"}
    killed = fault("kill worker", at=1.9, victims=(WORKER, CHILD))
    assert judge(with_rows(start(1.0), end(1.5), gone, killed)) == []


def test_what_is_left_over_is_found() -> None:
    """A message in the queue when all is quiet belongs to somebody."""
    assert promises(replace(CLEAN, residue={"messages": 1})) == {"left over"}


def test_the_time_of_recovery_is_from_the_kill_to_the_next_run() -> None:
    """It is reported, by the kind of the kill."""
    evidence = with_rows(start(1.0), fault("kill child", at=1.5, victims=(CHILD,)), *AGAIN, **SECOND)
    assert [(one.kind, one.seconds) for one in recoveries(evidence)] == [("kill child", 1.5)]


def test_a_job_that_waits_through_a_long_peace_is_found() -> None:
    """Nothing was broken for ten leases, and still it did not run again; with a fault in between it had an excuse."""
    late = (start(40.0, fence=2, pid=SECOND_CHILD, worker="w2"), end(41.0, fence=2, pid=SECOND_CHILD, worker="w2"))
    kill = fault("kill child", at=1.5, victims=(CHILD,))
    assert promises(with_rows(start(1.0), kill, *late, **SECOND)) == {"G6 recoverable"}
    assert judge(with_rows(start(1.0), kill, fault("reset", at=20.0), *late, **SECOND)) == []


# --- the tools


def test_the_accounts_refuse_a_smaller_fence_and_a_second_change_of_one_run(tmp_path: Any) -> None:
    """The users' data are guarded by the fence."""
    accounts = Accounts(tmp_path).create()
    assert [accounts.change("a", fence=fence) for fence in (5, 5, 3, 6)] == [True, False, False, True]
    assert [(one.fence, one.accepted) for one in accounts.writes()] == [(5, True), (5, False), (3, False), (6, True)]


def test_a_row_that_is_still_being_written_is_not_read(tmp_path: Any) -> None:
    """Every whole row is."""
    ledger = Ledger(tmp_path, worker="w1")
    ledger.note("start", "a", fence=1)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('["end", "a"')
    (found,) = ledger.rows()
    assert (found.what, found.label, found.worker, found.facts) == ("start", "a", "w1", {"fence": 1})


def test_the_same_seed_draws_the_same_work_and_faults() -> None:
    """Another seed draws others."""
    field = Field("redis", "prefork", ("w1", "w2"), ("p1",))
    drawn = [list(draw_faults(field, seed=seed, seconds=60, every=1)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    plans = [[submission(seed, "p1", number) for number in range(100)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_what_can_be_broken_depends_on_the_cell() -> None:
    """A pool of threads has no children; only a Redis has a limit of memory; a Cluster has slots to move."""
    drawn = {
        name: {one.kind for one in islice(draw_faults(run.field, seed=1, every=1), 2000)} for name, run in RUNS.items()
    }
    everywhere = {
        "kill worker",
        "restart",
        "roll",
        "freeze worker",
        "kill producer",
        "kill beat",
        "freeze beat",
        "warrant",
    }
    everywhere |= {"kill server", "freeze server", "memory", "disk", "latency", "blackhole", "reset", "down"}
    children = {"kill main", "kill child"}
    assert drawn["redis-threads-redis"] == drawn["rabbitmq-gevent-sql"] == everywhere
    assert drawn["redis-prefork-redis"] == drawn["redis-prefork-sql"] == everywhere | children
    assert drawn["redis-prefork-sentinel"] == everywhere | children | {"fail over"}
    assert drawn["redis-prefork-cluster"] == everywhere | children | {"move slots"}
    assert drawn["redis-prefork-redis-clock"] == everywhere | children | {"clock"}


RUNS = {name: Run(cell=cell) for name, cell in CELLS.items()}


def test_the_matrix_is_each_broker_with_each_pool_and_store() -> None:
    """Twelve cells, by name."""
    names = {
        "-".join(parts) for parts in product(("redis", "rabbitmq"), ("prefork", "threads", "gevent"), ("redis", "sql"))
    }
    assert {cell.name for cell in MATRIX} == names


def test_a_memory_or_disk_limit_strikes_a_redis_only() -> None:
    """And a single server, not one node of several."""
    assert RUNS["rabbitmq-prefork-redis"].field.roles("memory") == ("store",)
    assert RUNS["rabbitmq-prefork-sql"].field.roles("disk") == ("backend",)
    assert RUNS["rabbitmq-prefork-sql"].field.roles("kill server") == ("broker", "store", "backend")
    assert RUNS["redis-prefork-cluster"].field.roles("freeze server") == ("broker", "backend")


def test_a_ledger_is_followed_from_where_reading_ended(tmp_path: Any) -> None:
    """Each row once, and only when it is whole."""
    ledger = Ledger(tmp_path, worker="w1")
    follower = ledger.follow()
    assert list(follower.read()) == []
    ledger.note("start", "a")
    assert [one.label for one in follower.read()] == ["a"]
    ledger.note("start", "b")
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('["end", ')
    assert [one.label for one in follower.read()] == ["b"]
    assert list(follower.read()) == []


def test_the_published_runs_are_listed_and_kept_every_promise() -> None:
    """The index is written from the data beside it."""
    folder = DOCS / "chaos"
    cells = [path for path in folder.glob("*.json") if path.name != "beats.json"]  # which has a judge of its own
    found = [json.loads(path.read_text()) for path in cells]
    assert found
    assert [one["violations"] for one in found] == [[]] * len(found)
    assert (folder / "index.md").read_text() == report.index(folder)


def test_producers_meet_on_declared_keys_with_the_same_work() -> None:
    """Else a key would belong to other arguments."""
    calls = [submission(1, name, number) for name in ("p1", "p2") for number in range(200)]
    shared = [call for call in calls if call.form == "declared"]
    assert len({call.label for call in shared}) == len({(call.label, call.parts) for call in shared}) < len(shared)


def test_the_picture_shows_every_fault() -> None:
    """As a rectangle in the lane of its kind."""
    assert "latency" in picture(CLEAN)
    assert picture(CLEAN).count("<title>") == 1 + len(CLEAN.faults)


# --- what is done beside a run


def test_work_beside_a_block_that_fails_ends_the_block_and_is_told() -> None:
    """A collector that has died would let a run go on for ever."""

    def work(_: threading.Event) -> None:
        raise LookupError("in the thread")

    ended = []

    def watched() -> None:
        with beside(work) as stopped:
            ended.append(stopped.wait(10.0))

    with pytest.raises(LookupError, match="in the thread"):
        watched()
    assert ended == [True]
