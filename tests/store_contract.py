"""Say what every store must do: one suite, run against each back end.

A test module for a back end subclasses `StoreContract` and gives it a ``harness`` fixture. Rules are cited as P1 to P21
(PROTOCOL.md, part 1) and T3 to T12 (part 2).

Time: whatever must still be alive in a test gets `LONG`; whatever must end gets a tick and is waited for, so a slow
machine can only make a test slower, not wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from celery_reliable.stores.base import (
    Busy,
    ClaimAnswer,
    Dead,
    Done,
    Existing,
    Job,
    Mismatch,
    New,
    NotYet,
    Over,
    Poisoned,
    Refused,
    Reopening,
    Replaying,
    Run,
    SettleAnswer,
    Settled,
    Stale,
    Store,
    SubmitAnswer,
)
from celery_reliable.stores.notes import Note, Write, every

LONG = 60.0  # seconds: outlives every test
APPLES, PEARS = "aaaaaaaa", "pppppppp"  # fingerprints
ODD_IDS = (
    "import-2024-0001",
    "0" * 32,
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "0F8FAD5B-D9CB-469F-A165-70867728950E",
    "0f8fad5bd9cb469fa16570867728950e----",
    "i" * 200,
)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StoreUnderTest:
    """One empty store, a way to let its time pass, and the verbs with the arguments most tests do not care about."""

    store: Store
    elapse: Callable[[float], None]
    tick: float
    job: Job = field(default_factory=lambda: Job("order:1", kind="declared"))

    def beat(self, *, ttl: float = LONG) -> None:
        """Beat the fleet's pulse."""
        self.store.renew([], pulse_ttl=ttl)

    def elapse_alive(self, seconds: float) -> None:
        """Let time pass under a fleet that is alive and past the grace of its own start."""
        self.beat(ttl=self.tick / 100)
        self.elapse(max(seconds, self.tick / 50))
        self.beat()

    def submit(self, task_id: str, *, job: Job | None = None, **changes: Any) -> SubmitAnswer:
        """Submit to ``job`` (`self.job` by default)."""
        return self.store.submit(job or self.job, **{"task_id": task_id, "ttl": LONG, **changes})

    def claim(self, task_id: str, *, job: Job | None = None, **changes: Any) -> ClaimAnswer:
        """Claim with a token named after the task id, a long lease and plenty of deliveries."""
        given = {"task_id": task_id, "life": 1, "token": f"token of {task_id}", "ttl": LONG}
        limits = {"max_deliveries": 5, "record_ttl": LONG}
        return self.store.claim(job or self.job, **{**given, **limits, **changes})

    def run(self, task_id: str, **changes: Any) -> Run:
        """Claim and expect the right to run."""
        return expect(Run, self.claim(task_id, **changes))

    def run_and_lose(self, task_id: str, **changes: Any) -> Run:
        """Claim, then let the lease end by `free`, as a parent does for a child it saw die."""
        run = self.run(task_id, **changes)
        token = changes.get("token", f"token of {task_id}")
        assert self.store.free(changes.get("job", self.job), token=token, evidence=b'{"signal":9}', keep=LONG)
        return run

    def complete(self, task_id: str, run: Run | Poisoned, *, job: Job | None = None, **changes: Any) -> SettleAnswer:
        """Complete what ``run`` gave."""
        given = {"fence": run.fence, "token": f"token of {task_id}", "outcome": b"out", "marker_ttl": LONG}
        return self.store.complete(job or self.job, **{"task_id": task_id, **given, **changes})

    def release(self, task_id: str, run: Run | Poisoned, *, job: Job | None = None, **changes: Any) -> SettleAnswer:
        """Release what ``run`` gave; due at once, by a retry."""
        given = {"fence": run.fence, "token": f"token of {task_id}", "outcome": "retry", "delay": 0.0}
        return self.store.release(job or self.job, **{**given, "record_ttl": LONG, **changes})

    def bury(self, task_id: str, run: Run | Poisoned, *, job: Job | None = None, **changes: Any) -> SettleAnswer:
        """Bury what ``run`` gave as letter ``L1``."""
        given = {"fence": run.fence, "token": f"token of {task_id}", "letter_id": "L1", "letter": b"letter one"}
        limits = {"letter_ttl": LONG, "letter_max": 100}
        return self.store.bury(job or self.job, **{"task_id": task_id, **given, **limits, **changes})

    def save(self, task_id: str, run: Run | Poisoned, *, job: Job | None = None, **changes: Any) -> SettleAnswer:
        """Save a checkpoint for ``run``."""
        given = {"fence": run.fence, "token": f"token of {task_id}", "name": "state", "body": b"half", "ttl": LONG}
        return self.store.save(job or self.job, **{**given, **changes})

    def keep_letter(self, letter_id: str, **changes: Any) -> int:
        """Keep a letter that has no claim."""
        return self.store.keep_letter(
            letter_id, **{"letter": b"kept", "letter_ttl": LONG, "letter_max": 100, **changes}
        )

    def replay(self, letter_id: str, task_id: str, *, job: Job | None = None, **changes: Any) -> Replaying | Refused:
        """Replay a letter under a new task id."""
        given = {"task_id": task_id, "envelope": b"again", "body": b"letter, replayed", "fingerprint": "", "ttl": LONG}
        return self.store.replay(letter_id, job or self.job, **{**given, **changes})

    def settle(self, task_id: str, state: Any, *, job: Job | None = None) -> None:
        """Settle a submission."""
        self.store.settle(job or self.job, task_id=task_id, state=state, ttl=LONG)

    def revoke(self, task_id: str, *, job: Job | None = None) -> None:
        """Revoke a task."""
        self.store.revoke(job or self.job, task_id=task_id, ttl=LONG)

    def ledger(self) -> dict[str, bytes]:
        """Return the whole ledger."""
        entries: dict[str, bytes] = {}
        for task_id, envelope in self.store.ledger():
            assert task_id not in entries, f"the ledger gives {task_id} twice or does not end"
            entries[task_id] = envelope
        return entries

    def state(self) -> str:
        """Return the state of `self.job` in words."""
        return self.store.inspect(self.job).get("state", "none")

    def dead(self, task_id: str, **changes: Any) -> None:
        """Bring `self.job` to a dead letter ``L1`` under ``task_id``."""
        self.bury(task_id, self.run(task_id, **changes))

    def die_again(self, number: int, **changes: Any) -> None:
        """Live and die once more under the one key: task ``T<number>``, letter ``L<number>``."""
        answer = self.submit(f"T{number}")
        run = self.run(f"T{number}", life=expect(New, answer).life)
        self.bury(f"T{number}", run, letter_id=f"L{number}", **changes)

    def letters(self, *, page: int = 500, **wanted: Any) -> list[tuple[str, str, bytes]]:
        """Return all letters, read in pages."""
        seen: list[tuple[str, str, bytes]] = []
        cursor = ""
        for _ in range(100):
            answer = self.store.letters(cursor, limit=page, **wanted)
            assert len(answer.letters) <= page
            seen += answer.letters
            cursor = answer.cursor
            if not cursor:
                return seen
        pytest.fail("the cursor does not come to an end")

    def letter_ids(self, *, page: int = 500, **wanted: Any) -> list[str]:
        """Return the ids of all letters, newest first."""
        return [letter_id for letter_id, _, _ in self.letters(page=page, **wanted)]


def expect(kind: type[Answer], answer: object) -> Answer:
    """Return the answer, which must be of this kind."""
    assert isinstance(answer, kind), f"expected {kind.__name__}, got {answer!r}"
    return answer


def together(count: int, call: Callable[[int], Answer]) -> list[Answer]:
    """Call ``call(0) .. call(count - 1)`` in as many threads, all let go at one barrier."""
    barrier = threading.Barrier(count)
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def body(number: int) -> None:
        try:
            barrier.wait(timeout=LONG)
            answers.append(call(number))
        except BaseException as exc:  # noqa: BLE001  # a thread cannot fail the test by itself
            failures.append(exc)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LONG)
    assert not failures
    return answers


def kinds(answers: Sequence[object], kind: type[Answer]) -> list[Answer]:
    """Return the answers of one kind."""
    return [answer for answer in answers if isinstance(answer, kind)]


def own(task_id: str, *, kind: Any = "own", stamp: int = 0) -> Job:
    """Return the job of a submission without a declared key."""
    return Job(task_id, kind=kind, stamp=stamp)


class Submitting:
    """Accepting, joining and withdrawing submissions."""

    def test_first_submission_of_a_declared_key_is_new(self, harness: StoreUnderTest) -> None:
        """T3: a key without record begins life 1."""
        assert harness.submit("A", envelope=b"call") == New(life=1)
        assert harness.state() == "waiting"

    @pytest.mark.parametrize("kind", ["own", "given", "derived", "slot"])
    def test_undeclared_submission_writes_only_the_ledger(self, harness: StoreUnderTest, kind: str) -> None:
        """T2: ids of their own are New(1) each time; only the ledger entry is written."""
        job = own("A", kind=kind, stamp=harness.store.now())
        assert harness.submit("A", job=job, envelope=b"call") == New(life=1)
        assert harness.submit("A", job=job, envelope=b"call") == New(life=1)
        assert harness.ledger() == {"A": b"call"}
        assert harness.store.inspect(job) == {}

    @pytest.mark.parametrize("kind", ["own", "given", "derived", "slot"])
    def test_undeclared_job_runs_once_and_then_answers_done(self, harness: StoreUnderTest, kind: str) -> None:
        """T2: a claim without record makes it; the same id again meets Done."""
        job = own("A", kind=kind, stamp=harness.store.now())
        run = harness.run("A", job=job)
        assert (run.life, run.attempt, run.delivery) == (1, 1, 1)
        assert harness.complete("A", run, job=job) == Settled()
        assert expect(Done, harness.claim("A", job=job)).outcome == b"out"

    def test_hint_first_changes_no_answer(self, harness: StoreUnderTest) -> None:
        """T4: ``first`` is a hint; a wrong one must not run a job twice."""
        job = own("A", stamp=harness.store.now())
        assert isinstance(harness.claim("A", job=job, first=True), Run)
        assert isinstance(harness.claim("A", job=job, first=True), Busy)

    def test_ledger_entry_lives_from_submit_to_done(self, harness: StoreUnderTest) -> None:
        """P1: the entry outlives claim and retry, and goes with done."""
        harness.submit("A", envelope=b"call")
        harness.release("A", harness.run("A"))
        run = harness.run("A")
        assert harness.ledger() == {"A": b"call"}
        harness.complete("A", run)
        assert harness.ledger() == {}

    def test_ledger_entry_is_found_by_its_id(self, harness: StoreUnderTest) -> None:
        """As it was given, also once the sweep has published it again; None when there is none."""
        harness.submit("A", envelope=b"call")
        assert harness.store.entry(harness.job, task_id="A") == b"call"
        assert harness.store.entry(harness.job, task_id="B") is None
        harness.elapse_alive(2 * harness.tick)
        harness.store.resend(harness.job, task_id="A", quiet=harness.tick / 10, most=3, record_ttl=LONG)
        assert harness.store.entry(harness.job, task_id="A") == b"call"

    def test_ledger_entry_with_a_continuation_ends_when_it_was_sent(self, harness: StoreUnderTest) -> None:
        """P1, T5.1: complete keeps the entry on request; ``sent`` ends it and leaves the marker alone."""
        harness.submit("A", envelope=b"call", canvas=True)
        harness.complete("A", harness.run("A"), entry_ends=False)
        assert harness.ledger() == {"A": b"call"}
        harness.settle("A", "sent")
        assert harness.ledger() == {}
        assert isinstance(harness.claim("A"), Done)

    def test_ledger_entry_ends_with_the_dead_letter(self, harness: StoreUnderTest) -> None:
        """P1: dead is an end."""
        harness.submit("A", envelope=b"call")
        harness.dead("A")
        assert harness.ledger() == {}

    def test_revoke_of_a_waiting_job_ends_its_ledger_entry(self, harness: StoreUnderTest) -> None:
        """P1: revoked is an end."""
        harness.submit("A", envelope=b"call")
        harness.revoke("A")
        assert harness.ledger() == {}

    def test_revoke_after_done_does_not_lose_the_continuation(self, harness: StoreUnderTest) -> None:
        """P1: a done job's entry stands for the continuation that is still to be sent."""
        harness.submit("A", envelope=b"call", canvas=True)
        harness.complete("A", harness.run("A"), entry_ends=False)
        harness.revoke("A")
        assert harness.ledger() == {"A": b"call"}

    def test_no_envelope_means_no_ledger_entry(self, harness: StoreUnderTest) -> None:
        """T3: with the ledger off nothing is kept beside the record."""
        harness.submit("A")
        assert harness.ledger() == {}

    def test_ledger_gives_everything_across_pages(self, harness: StoreUnderTest) -> None:
        """T4: readers merge shards and pages."""
        wanted = {f"T{number}": b"call %d" % number for number in range(40)}
        for task_id, envelope in wanted.items():
            harness.submit(task_id, job=own(task_id, stamp=harness.store.now()), envelope=envelope)
        assert dict(harness.store.ledger(limit=7)) == wanted

    def test_same_id_again_publishes_again_while_it_waits(self, harness: StoreUnderTest) -> None:
        """P2, T3 (2): the producer may have died between submit and publish."""
        harness.submit("A", envelope=b"call")
        answer = harness.submit("A", envelope=b"call")
        assert answer == Existing(task_id="A", state="waiting", publish="same", life=1)

    def test_same_id_again_publishes_nothing_under_a_live_lease(self, harness: StoreUnderTest) -> None:
        """T3 (2): the holder's message exists."""
        harness.submit("A", envelope=b"call")
        harness.run("A")
        assert harness.submit("A", envelope=b"call") == Existing(task_id="A", state="running", publish="no", life=1)

    def test_same_id_again_publishes_again_when_its_lease_is_over(self, harness: StoreUnderTest) -> None:
        """T3 (2): the holder is gone, its message may be too."""
        harness.submit("A", envelope=b"call")
        harness.run_and_lose("A")
        assert expect(Existing, harness.submit("A", envelope=b"call")).publish == "same"

    def test_same_id_again_after_the_end_publishes_nothing(self, harness: StoreUnderTest) -> None:
        """T3 (2): an own id never begins a new life."""
        harness.submit("A", envelope=b"call")
        harness.complete("A", harness.run("A"))
        answer = harness.submit("A", envelope=b"call")
        assert answer == Existing(task_id="A", state="done", publish="no", life=1, outcome=b"out")
        assert harness.ledger() == {}

    def test_same_id_again_after_its_dead_letter_begins_no_life(self, harness: StoreUnderTest) -> None:
        """T3: only another id opens a new life over a dead one."""
        harness.submit("A")
        harness.dead("A")
        answer = expect(Existing, harness.submit("A"))
        assert (answer.task_id, answer.state, answer.publish) == ("A", "dead", "no")

    def test_same_id_again_after_its_revoke_begins_no_life(self, harness: StoreUnderTest) -> None:
        """T3: the tombstone is for that id."""
        harness.submit("A")
        harness.revoke("A")
        answer = expect(Existing, harness.submit("A"))
        assert (answer.task_id, answer.state, answer.publish) == ("A", "revoked", "no")

    def test_another_id_joins_a_job_that_the_ledger_stands_behind(self, harness: StoreUnderTest) -> None:
        """T3 (4): nothing is published and no second entry is kept."""
        harness.submit("A", envelope=b"call")
        assert harness.submit("B", envelope=b"call") == Existing(task_id="A", state="waiting", publish="no", life=1)
        assert harness.ledger() == {"A": b"call"}

    def test_another_id_joins_a_running_job(self, harness: StoreUnderTest) -> None:
        """T3 (4): the job runs; nothing to send."""
        harness.submit("A")
        harness.run("A")
        assert harness.submit("B") == Existing(task_id="A", state="running", publish="no", life=1)

    def test_another_id_gets_the_outcome_of_a_done_job(self, harness: StoreUnderTest) -> None:
        """T3: the caller shares the fate of the job, and can store the kept result again."""
        harness.submit("A")
        harness.complete("A", harness.run("A"))
        assert harness.submit("B") == Existing(task_id="A", state="done", publish="no", life=1, outcome=b"out")

    @pytest.mark.parametrize("fingerprint", ["", APPLES])
    def test_done_job_is_known_by_the_very_id_of_its_submission(
        self, harness: StoreUnderTest, fingerprint: str
    ) -> None:
        """T3: whatever the id looks like, also if it is as long as a UUID is in bytes, or in characters."""
        for number, task_id in enumerate(ODD_IDS):
            given: Any = {"job": Job(f"order:{number}", "declared"), "fingerprint": fingerprint}
            harness.submit(task_id, **given)
            harness.complete(task_id, harness.run(task_id, **given), job=given["job"])
            done = Existing(task_id=task_id, state="done", publish="no", life=1, outcome=b"out")
            assert harness.submit("B", **given) == done

    def test_canvas_on_a_waiting_job_is_published_under_its_own_id(self, harness: StoreUnderTest) -> None:
        """P4, T3 (1): with a ledger entry of its own, which ends by itself."""
        harness.submit("A", envelope=b"call")
        answer = expect(Existing, harness.submit("B", envelope=b"with link", canvas=True))
        assert (answer.task_id, answer.publish) == ("A", "own")
        harness.complete("A", harness.run("A"))
        assert harness.ledger() == {"B": b"with link"}
        assert expect(Done, harness.claim("B", life=answer.life)).outcome == b"out"

    def test_canvas_waits_for_a_running_job(self, harness: StoreUnderTest) -> None:
        """T3 (1): its claim is Busy while the job runs."""
        harness.submit("A")
        harness.run("A")
        answer = expect(Existing, harness.submit("B", canvas=True))
        assert answer.publish == "own"
        assert isinstance(harness.claim("B", life=answer.life), Busy)

    def test_canvas_on_a_done_job_is_published_under_its_own_id(self, harness: StoreUnderTest) -> None:
        """P4: it claims, gets Done and its own continuation goes on."""
        harness.submit("A")
        harness.complete("A", harness.run("A"))
        answer = expect(Existing, harness.submit("B", envelope=b"with link", canvas=True))
        assert (answer.task_id, answer.publish, answer.outcome) == ("A", "own", b"out")
        assert harness.ledger() == {"B": b"with link"}
        assert isinstance(harness.claim("B", life=answer.life), Done)

    def test_canvas_shares_the_death_of_the_job_it_joined(self, harness: StoreUnderTest) -> None:
        """T3 (1): it ends with the same outcome."""
        harness.submit("A")
        life = expect(Existing, harness.submit("B", canvas=True)).life
        harness.dead("A")
        assert harness.claim("B", life=life) == Dead(letter_id="L1", letter=b"letter one")

    def test_unconfirmed_job_without_ledger_is_published_again(self, harness: StoreUnderTest) -> None:
        """P2, T3 (2b): under the existing id, since its message may never have reached the broker."""
        harness.submit("A")
        assert harness.submit("B") == Existing(task_id="A", state="waiting", publish="same", life=1)

    def test_confirmed_job_without_ledger_is_not_published_again(self, harness: StoreUnderTest) -> None:
        """T3 (2b): the broker has it."""
        harness.submit("A")
        harness.store.published(harness.job, task_id="A")
        assert expect(Existing, harness.submit("B")).publish == "no"

    def test_confirmation_of_another_id_confirms_nothing(self, harness: StoreUnderTest) -> None:
        """T3 (2b): `published` names the submission."""
        harness.submit("A")
        harness.store.published(harness.job, task_id="B")
        assert expect(Existing, harness.submit("C")).publish == "same"

    def test_job_without_ledger_whose_lease_is_over_is_published_again(self, harness: StoreUnderTest) -> None:
        """T3 (2b): its holder is gone."""
        harness.submit("A")
        harness.store.published(harness.job, task_id="A")
        harness.run_and_lose("A")
        answer = expect(Existing, harness.submit("B"))
        assert (answer.task_id, answer.state, answer.publish) == ("A", "running", "same")

    def test_job_revoked_while_it_runs_is_not_joined(self, harness: StoreUnderTest) -> None:
        """P5, T3 (3): the new submission is published and starts when the holder has ended.

        `Existing.life` must be one that outlives the revoke: the message carries it.
        """
        harness.submit("A")
        run = harness.run("A")
        harness.revoke("A")
        answer = expect(Existing, harness.submit("B", envelope=b"call"))
        assert (answer.task_id, answer.publish) == ("A", "own")
        assert harness.ledger() == {"B": b"call"}
        assert isinstance(harness.claim("B", life=answer.life), Busy)
        assert harness.release("A", run, outcome="interrupted") == Settled(revoked=True)
        fresh = harness.run("B", life=answer.life)
        assert (fresh.attempt, fresh.delivery) == (1, 1)
        assert harness.claim("A") == Over("ended")

    def test_submission_over_a_revoked_job_meets_done_when_the_holder_completed(self, harness: StoreUnderTest) -> None:
        """P5, G2: a revoked holder may complete; while its marker lives nothing else is committed for the key."""
        harness.submit("A")
        run = harness.run("A")
        harness.revoke("A")
        life = expect(Existing, harness.submit("B")).life
        harness.complete("A", run)
        assert expect(Done, harness.claim("B", life=life)).outcome == b"out"

    @pytest.mark.parametrize("state", ["expired", "revoked", "skipped"])
    def test_another_id_over_an_ended_job_is_new(self, harness: StoreUnderTest, state: Any) -> None:
        """P5, T3: it starts a new life with a new number."""
        harness.submit("A")
        harness.settle("A", state)
        assert harness.submit("B", envelope=b"call") == New(life=2)
        assert harness.ledger() == {"B": b"call"}
        assert harness.run("B", life=2).life == 2

    def test_another_id_over_a_dead_job_inherits_its_progress(self, harness: StoreUnderTest) -> None:
        """T3, T9: a new life has a new budget and keeps checkpoint and steps."""
        harness.submit("A")
        harness.release("A", harness.run("A"))
        harness.release("A", harness.run("A"), outcome="snooze")
        run = harness.run_and_lose("A")
        run = harness.run("A")
        harness.save("A", run, body=b"half")
        harness.save("A", run, name="step:mail", body=b"sent")
        harness.bury("A", run)
        assert harness.submit("B") == New(life=2)
        fresh = harness.run("B", life=2)
        assert (fresh.attempt, fresh.delivery, fresh.snoozes, fresh.checks) == (1, 1, 0, 2)
        assert dict(fresh.saved) == {"state": b"half", "step:mail": b"sent"}
        assert fresh.fence > run.fence

    def test_dead_key_takes_other_arguments(self, harness: StoreUnderTest) -> None:
        """T3: New comes before Mismatch."""
        harness.submit("A", fingerprint=APPLES)
        harness.dead("A", fingerprint=APPLES)
        assert harness.submit("B", fingerprint=PEARS) == New(life=2)
        assert isinstance(harness.claim("B", life=2, fingerprint=PEARS), Run)

    def test_other_arguments_under_one_key_are_a_mismatch(self, harness: StoreUnderTest) -> None:
        """T3: both fingerprints are given and differ, whatever the state of the job."""
        harness.submit("A", fingerprint=APPLES)
        assert harness.submit("B", fingerprint=PEARS, envelope=b"call") == Mismatch(existing_id="A")
        run = harness.run("A", fingerprint=APPLES)
        assert harness.submit("B", fingerprint=PEARS) == Mismatch(existing_id="A")
        harness.complete("A", run)
        assert harness.submit("B", fingerprint=PEARS) == Mismatch(existing_id="A")
        assert harness.ledger() == {}

    def test_missing_fingerprint_never_mismatches(self, harness: StoreUnderTest) -> None:
        """T3: unknown is not different."""
        harness.submit("A", fingerprint=APPLES)
        assert isinstance(harness.submit("B"), Existing)
        assert isinstance(harness.claim("A"), Run)

    def test_replace_hands_the_newest_arguments_to_the_claim(self, harness: StoreUnderTest) -> None:
        """T3 ``on_conflict="replace"``: the record takes them under the existing id, each claim hands them out."""
        harness.submit("A", fingerprint=APPLES, envelope=b"apples")
        answer = harness.submit("B", fingerprint=PEARS, envelope=b"pears", replace=True)
        assert answer == Existing(task_id="A", state="waiting", publish="no", life=1, replaced=True)
        run = harness.run("A", fingerprint=APPLES)
        assert run.envelope == b"pears"
        harness.release("A", run)
        assert harness.run("A", fingerprint=APPLES).envelope == b"pears"

    def test_ledger_keeps_the_first_envelope_of_a_replaced_job(self, harness: StoreUnderTest) -> None:
        """P1: what is published again is the message that was lost, with its own id and continuation."""
        harness.submit("A", envelope=b"apples")
        for newer in (b"pears", b"plums, and more of them"):
            harness.submit("B", envelope=newer, replace=True)
        assert harness.ledger() == {"A": b"apples"}
        harness.elapse_alive(2 * harness.tick)
        assert harness.store.resend(harness.job, task_id="A", quiet=harness.tick, most=3, record_ttl=LONG) == "publish"
        harness.submit("C", envelope=b"figs", replace=True)
        assert harness.store.entry(harness.job, task_id="A") == b"apples"
        assert harness.submit("A", envelope=b"apples", replace=True) == Existing("A", "waiting", "same", 1)
        run = harness.run("A")
        assert run.envelope == b"figs"
        harness.complete("A", run)
        assert harness.ledger() == {}

    def test_replacement_with_a_continuation_is_published_too(self, harness: StoreUnderTest) -> None:
        """P4: its own message goes on with it once the job is done."""
        harness.submit("A", envelope=b"apples")
        answer = harness.submit("B", envelope=b"pears", canvas=True, replace=True)
        assert answer == Existing("A", "waiting", "own", 1, replaced=True)
        assert harness.ledger() == {"A": b"apples", "B": b"pears"}
        harness.complete("A", harness.run("A"))
        assert isinstance(harness.claim("B"), Done)
        assert harness.ledger() == {"B": b"pears"}

    def test_replacement_that_nobody_sweeps_is_published_until_that_is_confirmed(self, harness: StoreUnderTest) -> None:
        """P2: the producer of the only message may have died before its publish."""
        given: Any = {"replace": True, "swept": False}
        harness.submit("A", envelope=b"apples", **given)
        assert harness.submit("B", envelope=b"pears", **given) == Existing("A", "waiting", "same", 1, replaced=True)
        harness.store.published(harness.job, task_id="A")
        assert harness.submit("C", envelope=b"plums", **given) == Existing("A", "waiting", "no", 1, replaced=True)
        assert harness.run("A").envelope == b"plums"

    def test_delayed_job_is_not_due_before_its_time(self, harness: StoreUnderTest) -> None:
        """By the store's clock, whenever its message comes."""
        harness.submit("A", envelope=b"call", replace=True, delay=harness.tick, delay_max=LONG)
        assert 0 < expect(NotYet, harness.claim("A")).due_in < harness.tick + 0.001  # a store may round up
        harness.elapse(harness.tick * 1.2)
        assert harness.run("A").envelope is None

    def test_replacement_begins_the_delay_anew_within_its_limit(self, harness: StoreUnderTest) -> None:
        """However often it is replaced; the limit counts from the first submission."""
        harness.submit("A", envelope=b"0", replace=True, delay=LONG / 2, delay_max=LONG)
        harness.submit("B", envelope=b"1", replace=True, delay=LONG * 2)
        assert LONG / 2 < expect(NotYet, harness.claim("A")).due_in <= LONG
        harness.submit("B", envelope=b"2", replace=True, delay=harness.tick)
        assert 0 < expect(NotYet, harness.claim("A")).due_in < harness.tick + 0.001  # a store may round up
        harness.elapse(harness.tick * 1.2)
        assert harness.run("A").envelope == b"2"
        assert harness.submit("C", envelope=b"3", replace=True, delay=LONG) == Existing("A", "running", "no", 1)
        assert isinstance(harness.claim("A", token="another"), Busy)

    def test_delay_without_a_limit_of_the_first_submission_is_none(self, harness: StoreUnderTest) -> None:
        """It came from code that did not delay; its message may be the only one, and is not held up."""
        harness.submit("A", envelope=b"0", replace=True)
        harness.submit("B", envelope=b"1", replace=True, delay=LONG, delay_max=LONG)
        assert harness.run("A").envelope == b"1"

    def test_delayed_job_is_not_taken_for_lost(self, harness: StoreUnderTest) -> None:
        """Its message waits in a worker; the sweep publishes nothing before it is due."""
        harness.submit("A", envelope=b"call", replace=True, delay=LONG, delay_max=LONG)
        harness.elapse_alive(2 * harness.tick)
        assert harness.store.resend(harness.job, task_id="A", quiet=harness.tick, most=3, record_ttl=LONG) == "no"

    def test_fifty_replace_at_once_and_one_begins(self, harness: StoreUnderTest) -> None:
        """One life, whose claim hands out what one of the submissions brought."""
        given: Any = {"replace": True, "delay": harness.tick, "delay_max": harness.tick}
        answers = together(50, lambda number: harness.submit(f"T{number}", envelope=b"%d" % number, **given))
        (new,) = kinds(answers, New)
        existing = kinds(answers, Existing)
        assert new == New(life=1)
        assert {(one.publish, one.replaced) for one in existing} == {("no", True)}
        (holder,) = {one.task_id for one in existing}
        harness.elapse(harness.tick * 1.2)
        assert harness.run(holder).envelope in {b"%d" % number for number in range(50)}
        assert isinstance(harness.claim(holder), Busy)

    def test_claim_without_replacement_hands_out_no_envelope(self, harness: StoreUnderTest) -> None:
        """T3: the message has the arguments."""
        harness.submit("A", envelope=b"apples")
        assert harness.run("A").envelope is None

    def test_redelivered_message_of_a_replaced_job_gets_its_outcome(self, harness: StoreUnderTest) -> None:
        """T3, T5.1: the message still carries the old arguments; it is the job's own and must not be a mismatch."""
        harness.submit("A", fingerprint=APPLES, envelope=b"apples")
        harness.submit("B", fingerprint=PEARS, envelope=b"pears", replace=True)
        harness.complete("A", harness.run("A", fingerprint=APPLES))
        assert isinstance(harness.claim("A", fingerprint=APPLES), Done)

    def test_replace_after_the_first_claim_changes_nothing(self, harness: StoreUnderTest) -> None:
        """T3: it is a plain Existing, also with other arguments and also while the job waits for a retry."""
        harness.submit("A", fingerprint=APPLES, envelope=b"apples")
        run = harness.run("A", fingerprint=APPLES)
        assert harness.submit("B", fingerprint=PEARS, envelope=b"pears", replace=True) == Existing(
            "A", "running", "no", 1
        )
        harness.release("A", run)
        assert harness.submit("B", fingerprint=PEARS, envelope=b"pears", replace=True) == Existing(
            "A", "waiting", "no", 1
        )
        assert harness.run("A", fingerprint=APPLES).envelope is None

    def test_waiting_record_is_forgotten_after_its_ttl(self, harness: StoreUnderTest) -> None:
        """T3: ``ttl`` is the life of the waiting record."""
        harness.submit("A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.submit("B") == New(life=1)

    def test_withdrawn_submission_never_runs(self, harness: StoreUnderTest) -> None:
        """P3: apply_async raised, so a message that got out after all is over and the ledger forgets it."""
        harness.submit("A", envelope=b"call")
        assert harness.store.withdraw(harness.job, task_id="A") is True
        assert harness.claim("A") == Over("withdrawn")
        assert harness.ledger() == {}

    def test_withdraw_twice_is_once(self, harness: StoreUnderTest) -> None:
        """T4: every verb may be repeated."""
        harness.submit("A")
        assert harness.store.withdraw(harness.job, task_id="A") is True
        assert harness.store.withdraw(harness.job, task_id="A") is True
        assert harness.claim("A") == Over("withdrawn")

    @pytest.mark.parametrize("kind", ["own", "given", "derived", "slot"])
    def test_withdrawn_undeclared_submission_never_runs(self, harness: StoreUnderTest, kind: str) -> None:
        """P3, T5.6: a tombstone for that id, though submit wrote no record."""
        job = own("A", kind=kind, stamp=harness.store.now())
        harness.submit("A", job=job, envelope=b"call")
        assert harness.store.withdraw(job, task_id="A") is True
        assert harness.claim("A", job=job) == Over("withdrawn")
        assert harness.ledger() == {}

    def test_withdraw_after_a_claim_is_refused(self, harness: StoreUnderTest) -> None:
        """P3: somebody has claimed it, so it may run; its ledger entry stays."""
        harness.submit("A", envelope=b"call")
        run = harness.run("A")
        assert harness.store.withdraw(harness.job, task_id="A") is False
        assert harness.ledger() == {"A": b"call"}
        assert harness.complete("A", run) == Settled()

    def test_withdraw_of_a_joined_submission_leaves_the_job_alone(self, harness: StoreUnderTest) -> None:
        """P3: only that submission's ledger entry goes."""
        harness.submit("A", envelope=b"call")
        harness.submit("B", envelope=b"with link", canvas=True)
        harness.store.withdraw(harness.job, task_id="B")
        assert harness.ledger() == {"A": b"call"}
        assert isinstance(harness.claim("A"), Run)

    def test_withdraw_of_a_job_that_others_joined_is_refused(self, harness: StoreUnderTest) -> None:
        """G1: their apply_async returned, so the job must run; the ledger still has it, and its own caller is warned.

        Goes beyond base.py, which refuses only after a claim: there the joined callers' job would vanish in silence.
        """
        harness.submit("A", envelope=b"call")
        assert expect(Existing, harness.submit("B", envelope=b"call")).publish == "no"
        assert harness.store.withdraw(harness.job, task_id="A") is False
        assert harness.ledger() == {"A": b"call"}
        assert isinstance(harness.claim("A"), Run)

    def test_withdraw_of_a_job_that_others_publish_is_refused(self, harness: StoreUnderTest) -> None:
        """G1, T3 (2b): without a ledger the other caller publishes it under the existing id; that copy must run."""
        harness.submit("A")
        assert expect(Existing, harness.submit("B")).publish == "same"
        assert harness.store.withdraw(harness.job, task_id="A") is False
        assert isinstance(harness.claim("A"), Run)

    def test_canvas_outlives_the_withdrawal_of_the_job_it_joined(self, harness: StoreUnderTest) -> None:
        """G1, T3 (1): it has a message and an entry of its own; with the job withdrawn it is the job."""
        harness.submit("A", envelope=b"call")
        life = expect(Existing, harness.submit("B", envelope=b"with link", canvas=True)).life
        assert harness.store.withdraw(harness.job, task_id="A") is True
        assert isinstance(harness.claim("B", life=life), Run)

    def test_withdrawn_key_is_free_for_another_id(self, harness: StoreUnderTest) -> None:
        """T3: withdrawn is an end; the withdrawn message stays over."""
        harness.submit("A")
        harness.store.withdraw(harness.job, task_id="A")
        assert harness.submit("B") == New(life=2)
        assert harness.claim("A") == Over("ended")
        assert isinstance(harness.claim("B", life=2), Run)

    def test_withdrawn_declared_submission_may_be_tried_again_under_its_id(self, harness: StoreUnderTest) -> None:
        """P3, G1: the caller was told no and tries again; an Existing here would accept a task that never runs.

        Departs from base.py, where only *another* id is New over a withdrawn record.
        """
        harness.submit("A", envelope=b"call")
        harness.store.withdraw(harness.job, task_id="A")
        answer = expect(New, harness.submit("A", envelope=b"call"))
        assert harness.claim("A", life=1) == Over("ended")
        assert isinstance(harness.claim("A", life=answer.life), Run)

    @pytest.mark.parametrize("kind", ["given", "derived", "slot"])
    def test_withdrawn_undeclared_submission_may_be_tried_again(self, harness: StoreUnderTest, kind: str) -> None:
        """P3, P14, G1: a parent whose child's publish failed runs again and submits the same child, which must run.

        Withdrawing took the ledger entry away, so one that is there belongs to the later try and lifts the tombstone.
        """
        job = own("A", kind=kind, stamp=harness.store.now())
        harness.submit("A", job=job, envelope=b"call")
        harness.store.withdraw(job, task_id="A")
        harness.submit("A", job=job, envelope=b"call")
        run = harness.run("A", job=job)
        assert harness.complete("A", run, job=job) == Settled()

    def test_withdrawn_new_life_falls_back_to_the_dead_one(self, harness: StoreUnderTest) -> None:
        """T5.6: its message and its predecessor's report the dead letter; progress is still there."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.bury("A", run)
        harness.submit("B", envelope=b"call")
        assert harness.store.withdraw(harness.job, task_id="B") is True
        assert harness.ledger() == {}
        assert harness.claim("B", life=2) == Dead(letter_id="L1", letter=b"letter one")
        answer = expect(New, harness.submit("C"))
        assert dict(harness.run("C", life=answer.life).saved) == {"state": b"half"}

    @pytest.mark.parametrize("kind", ["own", "given", "derived", "slot"])
    def test_withdrawn_undeclared_submission_runs_again_without_a_ledger(
        self, harness: StoreUnderTest, kind: str
    ) -> None:
        """P3, P14: with no ledger nothing is written at the second try; its stamp tells it from the withdrawn message."""
        first = own("A", kind=kind, stamp=harness.store.now())
        harness.store.withdraw(first, task_id="A")
        assert harness.claim("A", job=first) == Over("withdrawn")
        if kind != "own":  # a fresh id is never submitted twice
            again = own("A", kind=kind, stamp=first.stamp + 1)
            assert isinstance(harness.claim("A", job=again), Run)

    def test_withdrawn_life_number_is_not_given_out_again(self, harness: StoreUnderTest) -> None:
        """P3, P7: else the message of the withdrawn submission would run as a copy of the next one."""
        harness.submit("A")
        harness.dead("A")
        withdrawn = expect(New, harness.submit("B"))
        harness.store.withdraw(harness.job, task_id="B")
        assert expect(New, harness.submit("C")).life > withdrawn.life
        assert harness.claim("B", life=withdrawn.life) == Over("ended")

    def test_life_withdrawn_over_a_dead_one_may_be_tried_again_under_its_id(self, harness: StoreUnderTest) -> None:
        """Its caller was told no; the dead life has its own id again, under which it stays dead."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        assert harness.store.withdraw(harness.job, task_id="B") is True
        assert harness.store.withdraw(harness.job, task_id="B") is True
        assert harness.store.inspect(harness.job)["task_id"] == "A"
        assert expect(Existing, harness.submit("A")).state == "dead"
        again = expect(New, harness.submit("B"))
        assert harness.store.inspect(harness.job)["task_id"] == "B"
        assert isinstance(harness.claim("B", life=again.life), Run)

    def test_withdraw_of_a_dead_job_is_refused(self, harness: StoreUnderTest) -> None:
        """It has run: whoever could not publish it must not be told that it did not."""
        harness.submit("A")
        harness.dead("A")
        assert harness.store.withdraw(harness.job, task_id="A") is False

    @pytest.mark.parametrize("end", ["expired", "skipped", "withdrawn"])
    def test_submission_that_ended_without_a_run_supersedes_no_letter(self, harness: StoreUnderTest, end: str) -> None:
        """T10: nothing of the key has come after the dead life."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        if end == "withdrawn":
            harness.store.withdraw(harness.job, task_id="B")
        else:
            harness.settle("B", end)
        assert isinstance(harness.replay("L1", "R"), Replaying)

    def test_revoked_submission_supersedes_a_letter(self, harness: StoreUnderTest) -> None:
        """T10: somebody has decided about the key since."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        harness.settle("B", "revoked")
        assert expect(Refused, harness.replay("L1", "R")).reason == "superseded"

    def test_letter_of_a_dead_life_can_be_replayed_after_a_withdrawal(self, harness: StoreUnderTest) -> None:
        """T5.6, T10: the later life is gone, so nothing supersedes the letter."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        harness.store.withdraw(harness.job, task_id="B")
        answer = expect(Replaying, harness.replay("L1", "R"))
        assert isinstance(harness.claim("R", life=answer.life), Run)


class Claiming:
    """Taking the right to run."""

    def test_claim_before_the_due_time_waits(self, harness: StoreUnderTest) -> None:
        """P6: a redelivered original must not run before its backoff."""
        harness.submit("A")
        harness.release("A", harness.run("A"), delay=LONG)
        assert LONG / 2 < expect(NotYet, harness.claim("A")).due_in <= LONG

    def test_claim_after_the_due_time_runs(self, harness: StoreUnderTest) -> None:
        """P6: the gate opens by itself."""
        harness.submit("A")
        harness.release("A", harness.run("A"), delay=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.run("A").attempt == 2

    def test_live_lease_is_busy(self, harness: StoreUnderTest) -> None:
        """P10: the answer says when to come back."""
        harness.submit("A")
        harness.run("A")
        assert LONG / 2 < expect(Busy, harness.claim("A", token="other")).expires_in <= LONG

    def test_same_token_is_busy_too(self, harness: StoreUnderTest) -> None:
        """T4: a claim is never re-entrant."""
        harness.submit("A")
        harness.run("A", token="one")
        assert isinstance(harness.claim("A", token="one"), Busy)

    def test_jobs_do_not_touch_each_other(self, harness: StoreUnderTest) -> None:
        """P9: a lease is for one key."""
        other = Job("order:2", kind="declared")
        harness.run("A")
        assert isinstance(harness.claim("B", job=other), Run)

    def test_declared_job_without_record_runs(self, harness: StoreUnderTest) -> None:
        """T12: a message without record that is not late is run (its record was lost, or `send_task` sent it)."""
        run = harness.run("A", life=0)
        assert run.life == 1

    def test_message_of_a_dead_life_is_over_once_a_new_one_began(self, harness: StoreUnderTest) -> None:
        """P7: acked, never run."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        assert harness.claim("A", life=1) == Over("ended")

    def test_message_of_an_earlier_life_is_over_also_when_the_job_is_done(self, harness: StoreUnderTest) -> None:
        """P7: the later life's outcome is not its own."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        harness.complete("B", harness.run("B", life=2))
        assert harness.claim("A", life=1) == Over("ended")

    def test_message_of_a_later_life_raises_the_record(self, harness: StoreUnderTest) -> None:
        """P7, T5.17: the store lost the writes that began that life."""
        harness.submit("A")
        assert harness.run("B", life=3).life == 3
        assert harness.claim("A", life=1) == Over("ended")

    def test_record_made_by_a_claim_takes_the_life_of_the_message(self, harness: StoreUnderTest) -> None:
        """P7: after the record expired, an older life stays ended."""
        assert harness.run("A", life=4).life == 4
        assert harness.claim("B", life=3) == Over("ended")

    def test_dead_job_never_runs(self, harness: StoreUnderTest) -> None:
        """P7, T5.12: a redelivered message only reports the failure again, with or without its life number."""
        harness.submit("A")
        harness.dead("A")
        assert harness.claim("A") == Dead(letter_id="L1", letter=b"letter one")
        assert harness.claim("A", life=0) == Dead(letter_id="L1", letter=b"letter one")

    def test_message_from_elsewhere_opens_a_new_life_over_a_dead_one(self, harness: StoreUnderTest) -> None:
        """T3: life 0 and another id is a submission that did not pass `submit`; it inherits progress."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.bury("A", run)
        fresh = harness.run("B", life=0)
        assert (fresh.life, fresh.attempt, dict(fresh.saved)) == (2, 1, {"state": b"half"})

    @pytest.mark.parametrize("state", ["expired", "revoked", "skipped"])
    def test_message_from_elsewhere_opens_a_new_life_over_an_ended_one(
        self, harness: StoreUnderTest, state: Any
    ) -> None:
        """T3: life 0 with the record's own id is the old message, another id begins anew."""
        harness.submit("A")
        harness.settle("A", state)
        assert harness.claim("A", life=0) == Over(state)
        assert harness.run("B", life=0).life == 2

    def test_message_from_elsewhere_joins_the_current_life(self, harness: StoreUnderTest) -> None:
        """T3: unknown life is the current one, alive or done."""
        harness.submit("A")
        run = harness.run("A")
        assert isinstance(harness.claim("B", life=0), Busy)
        harness.complete("A", run)
        assert isinstance(harness.claim("B", life=0), Done)

    def test_late_copy_without_record_does_not_run(self, harness: StoreUnderTest) -> None:
        """P8, T12: older than the marker's life, so it has ended or its store was lost."""
        stamp = harness.store.now() - 10_000_000
        assert harness.claim("A", job=own("A", stamp=stamp), late_after=5.0) == Over("late")

    @pytest.mark.parametrize("first", [False, True])
    def test_late_copy_with_a_ledger_entry_runs(self, harness: StoreUnderTest, *, first: bool) -> None:
        """P8, T12: its submission has not ended, it only waited long."""
        job = own("A", stamp=harness.store.now() - 10_000_000)
        harness.submit("A", job=job, envelope=b"call")
        assert isinstance(harness.claim("A", job=job, late_after=5.0, first=first), Run)

    def test_late_copy_is_late_also_as_a_first_delivery(self, harness: StoreUnderTest) -> None:
        """P8: ``first`` changes no answer."""
        stamp = harness.store.now() - 10_000_000
        assert harness.claim("A", job=own("A", stamp=stamp), late_after=5.0, first=True) == Over("late")

    def test_young_copy_without_record_runs(self, harness: StoreUnderTest) -> None:
        """T12: a younger one without a record is run."""
        stamp = harness.store.now() - 10_000_000
        assert isinstance(harness.claim("A", job=own("A", stamp=stamp), late_after=3600.0), Run)

    def test_copy_without_stamp_is_never_late(self, harness: StoreUnderTest) -> None:
        """T12: one without a stamp (`send_task` from elsewhere) is run."""
        assert isinstance(harness.claim("A", job=own("A", stamp=0), late_after=5.0), Run)

    def test_lateness_is_off_at_zero(self, harness: StoreUnderTest) -> None:
        """P8: ``late_after`` 0 judges nobody."""
        assert isinstance(harness.claim("A", job=own("A", stamp=1)), Run)

    def test_record_decides_before_lateness(self, harness: StoreUnderTest) -> None:
        """P8: a late copy of a done job gets its outcome."""
        job = own("A", stamp=harness.store.now() - 10_000_000)
        harness.complete("A", harness.run("A", job=job), job=job)
        assert isinstance(harness.claim("A", job=job, late_after=5.0), Done)

    def test_fence_grows_with_each_claim(self, harness: StoreUnderTest) -> None:
        """P9, T5.6: larger than any before."""
        fences = [harness.run_and_lose("A", max_deliveries=99).fence for _ in range(5)]
        assert fences == sorted(set(fences))

    def test_fence_grows_across_the_expiry_of_the_record(self, harness: StoreUnderTest) -> None:
        """P9, T5.6: it contains the server's microseconds."""
        before = harness.run("A")
        harness.complete("A", before, marker_ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.run("A").fence > before.fence

    def test_fence_grows_across_lives(self, harness: StoreUnderTest) -> None:
        """P9: one per key, not one per life."""
        harness.submit("A")
        before = harness.run("A")
        harness.bury("A", before)
        harness.submit("B")
        assert harness.run("B", life=2).fence > before.fence

    def test_claim_of_another_arguments_message_is_a_mismatch(self, harness: StoreUnderTest) -> None:
        """T4: it buries the message, not the key; known at once, also while the job runs and when it is done."""
        harness.submit("A", fingerprint=APPLES)
        assert harness.claim("B", life=0, fingerprint=PEARS) == Mismatch(existing_id="A")
        run = harness.run("A", fingerprint=APPLES)
        assert harness.claim("B", life=0, fingerprint=PEARS) == Mismatch(existing_id="A")
        harness.complete("A", run)
        assert harness.claim("B", life=0, fingerprint=PEARS) == Mismatch(existing_id="A")
        assert isinstance(harness.claim("A", fingerprint=APPLES), Done)

    def test_claim_of_another_id_with_the_same_arguments_shares_the_outcome(self, harness: StoreUnderTest) -> None:
        """T3: the done marker names the job that holds the key."""
        harness.submit("A", fingerprint=APPLES)
        harness.complete("A", harness.run("A", fingerprint=APPLES))
        assert harness.claim("B", life=0, fingerprint=APPLES) == Done(task_id="A", outcome=b"out")

    def test_outcome_that_was_not_kept_is_empty(self, harness: StoreUnderTest) -> None:
        """T12: not kept when the result is ignored."""
        harness.submit("A")
        harness.complete("A", harness.run("A"), outcome=None)
        assert harness.claim("A") == Done(task_id="A", outcome=b"")

    @pytest.mark.parametrize("outcome", [b"", b"|", b"\x00\xff|=\n", b"x" * 20_000])
    @pytest.mark.parametrize("kind", ["declared", "own"])
    def test_outcome_comes_back_byte_for_byte(self, harness: StoreUnderTest, outcome: bytes, kind: str) -> None:
        """T5.1: whatever its bytes and its size."""
        job = own("A", kind=kind, stamp=harness.store.now())
        harness.complete("A", harness.run("A", job=job), job=job, outcome=outcome)
        assert expect(Done, harness.claim("A", job=job)).outcome == outcome

    def test_marker_is_forgotten_after_its_ttl(self, harness: StoreUnderTest) -> None:
        """T12: counted from the end."""
        harness.submit("A")
        harness.complete("A", harness.run("A"), marker_ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.submit("B") == New(life=1)

    def test_twenty_claims_of_one_key_give_one_run(self, harness: StoreUnderTest) -> None:
        """P9: of all the claims of one key exactly one wins."""
        harness.submit("A")
        answers = together(20, lambda number: harness.claim("A", token=f"token {number}"))
        assert len(kinds(answers, Run)) == 1
        assert len(kinds(answers, Busy)) == 19

    def test_twenty_claims_of_one_own_id_give_one_run(self, harness: StoreUnderTest) -> None:
        """P9: also on the cheapest path."""
        job = own("A", stamp=harness.store.now())
        answers = together(
            20, lambda number: harness.claim("A", job=job, token=f"token {number}", first=number % 2 == 0)
        )
        assert len(kinds(answers, Run)) == 1
        assert len(kinds(answers, Busy)) == 19

    def test_twenty_claims_of_an_ended_lease_give_one_run(self, harness: StoreUnderTest) -> None:
        """P9: taking over is atomic too, and counts one lost delivery."""
        harness.run_and_lose("A")
        answers = together(20, lambda number: harness.claim("A", token=f"token {number}"))
        assert [run.delivery for run in kinds(answers, Run)] == [2]

    def test_twenty_submissions_of_one_key_give_one_new(self, harness: StoreUnderTest) -> None:
        """T3: of all the submissions of one key exactly one is new, the others join it."""
        answers = together(20, lambda number: harness.submit(f"T{number}", envelope=b"call"))
        assert len(kinds(answers, New)) == 1
        assert len({answer.task_id for answer in kinds(answers, Existing)}) == 1
        assert len(harness.ledger()) == 1


class HoldingLeases:
    """Renewing, losing and ending leases."""

    def test_ended_lease_is_taken_under_a_living_pulse(self, harness: StoreUnderTest) -> None:
        """P19, T5.16: the fleet renews, this holder does not: it is gone."""
        harness.run("A", ttl=harness.tick)
        harness.elapse_alive(harness.tick * 1.2)
        assert harness.run("A", token="next").delivery == 2

    def test_first_pulse_begins_a_grace(self, harness: StoreUnderTest) -> None:
        """P19, T5.16: a fleet that was away ends nobody's lease for one ttl."""
        harness.run("A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        harness.beat(ttl=LONG)
        assert LONG / 2 < expect(Busy, harness.claim("A", token="next")).expires_in <= LONG

    def test_pulse_after_a_silence_begins_a_grace(self, harness: StoreUnderTest) -> None:
        """P19, T5.16: later than half a ttl after the last one."""
        harness.elapse_alive(0.0)
        harness.run("A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        harness.beat(ttl=harness.tick * 2)
        answer = expect(Busy, harness.claim("A", token="next"))
        assert answer.expires_in <= harness.tick * 2 + 1e-3  # the clock is a float in SQLite
        harness.elapse(harness.tick)
        harness.beat()
        harness.elapse(harness.tick * 1.2)
        harness.beat()
        assert isinstance(harness.claim("A", token="next"), Run)

    def test_lone_claimer_waits_one_ttl_and_then_takes(self, harness: StoreUnderTest) -> None:
        """P19, G6: without any pulse the first claim that meets the ended lease begins the grace, once."""
        harness.run("A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        wait = expect(Busy, harness.claim("A", token="next", ttl=harness.tick)).expires_in
        assert harness.tick / 2 < wait <= harness.tick
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next", ttl=harness.tick), Run)

    def test_claimer_meets_a_silence_once(self, harness: StoreUnderTest) -> None:
        """P19: keepers were there and fell silent: one grace, not one for each claim."""
        harness.elapse_alive(0.0)
        harness.run("A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next", ttl=harness.tick), Busy)
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next", ttl=harness.tick), Run)

    def test_silence_soon_after_a_grace_began_has_its_own(self, harness: StoreUnderTest) -> None:
        """P19: a store that comes back and goes again at once ends nobody's lease either time."""
        harness.run("A", ttl=harness.tick)
        harness.beat(ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next", ttl=harness.tick), Busy)
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next", ttl=harness.tick), Run)

    def test_freed_lease_is_taken_together(self, harness: StoreUnderTest) -> None:
        """P19, T4: its holder was seen to die, so no grace is due."""
        harness.run_and_lose("A")
        assert harness.run("A", token="next").delivery == 2

    def test_free_needs_the_token(self, harness: StoreUnderTest) -> None:
        """P9: nobody frees another's claim, nor one that is over."""
        run = harness.run("A")
        assert harness.store.free(harness.job, token="other", evidence=b"{}", keep=LONG) is False
        assert isinstance(harness.claim("A", token="next"), Busy)
        harness.complete("A", run)
        assert harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG) is False
        assert harness.store.free(Job("none"), token="token of A", evidence=b"{}", keep=LONG) is False

    def test_renewed_lease_lives_on(self, harness: StoreUnderTest) -> None:
        """P19: one call extends all leases, judged by token."""
        harness.run("A", ttl=harness.tick)
        other = own("B", stamp=harness.store.now())
        harness.run("B", job=other, ttl=harness.tick)
        assert (
            harness.store.renew(
                [(harness.job, "token of A", LONG), (other, "token of B", LONG)], pulse_ttl=harness.tick / 100
            )
            == []
        )
        harness.elapse_alive(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next"), Busy)
        assert isinstance(harness.claim("B", job=other, token="next"), Busy)

    def test_ended_lease_that_nobody_took_is_renewed(self, harness: StoreUnderTest) -> None:
        """T5.16: an outage ends nobody's lease."""
        harness.run("A", ttl=harness.tick)
        harness.elapse_alive(harness.tick * 1.2)
        assert harness.store.renew([(harness.job, "token of A", LONG)], pulse_ttl=LONG) == []
        assert isinstance(harness.claim("A", token="next"), Busy)

    def test_lease_can_be_shortened(self, harness: StoreUnderTest) -> None:
        """P16, T7: a draining worker shortens its lease to cover the exit."""
        harness.run("A", ttl=LONG)
        harness.store.renew([(harness.job, "token of A", harness.tick)], pulse_ttl=harness.tick / 100)
        harness.elapse_alive(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next"), Run)

    def test_renew_names_what_is_lost(self, harness: StoreUnderTest) -> None:
        """T4: taken by another, done, or gone."""
        taken, done, held = (own(name, stamp=harness.store.now()) for name in ("taken", "done", "held"))
        gone = Job("gone", kind="declared")
        harness.run_and_lose("taken", job=taken)
        harness.run("taken", job=taken, token="next")
        harness.complete("done", harness.run("done", job=done), job=done)
        harness.run("held", job=held)
        claims = [(job, f"token of {job.key}", LONG) for job in (taken, done, gone, held)]
        assert sorted(harness.store.renew(claims, pulse_ttl=LONG)) == ["done", "gone", "taken"]

    def test_released_claim_cannot_be_renewed(self, harness: StoreUnderTest) -> None:
        """T4: the right was given back."""
        harness.submit("A")
        harness.release("A", harness.run("A"))
        assert harness.store.renew([(harness.job, "token of A", LONG)], pulse_ttl=LONG) == ["order:1"]
        assert isinstance(harness.claim("A"), Run)

    def test_record_outlives_a_renewed_lease(self, harness: StoreUnderTest) -> None:
        """T4: a job that runs longer than its record's ttl keeps its record as long as it is renewed."""
        harness.run("A", ttl=harness.tick, record_ttl=harness.tick)
        assert harness.store.renew([(harness.job, "token of A", LONG)], pulse_ttl=LONG) == []
        harness.elapse(harness.tick * 1.2)
        assert isinstance(harness.claim("A", token="next"), Busy)

    def test_poisoned_after_so_many_lost_deliveries(self, harness: StoreUnderTest) -> None:
        """T4, T5.11: the claim after ``max_deliveries`` lost ones may only bury; evidence is handed to it."""
        harness.submit("A")
        first = harness.run_and_lose("A", max_deliveries=2)
        second = harness.run_and_lose("A", max_deliveries=2)
        assert (first.delivery, second.delivery) == (1, 2)
        poisoned = expect(Poisoned, harness.claim("A", max_deliveries=2))
        assert poisoned.fence > second.fence
        assert list(poisoned.evidence) == [b'{"signal":9}', b'{"signal":9}']

    def test_poisoned_claim_may_only_bury(self, harness: StoreUnderTest) -> None:
        """T4: everything else is Stale, and the key is held meanwhile."""
        harness.run_and_lose("A", max_deliveries=1)
        poisoned = expect(Poisoned, harness.claim("A", max_deliveries=1))
        assert harness.complete("A", poisoned) == Stale()
        assert harness.release("A", poisoned) == Stale()
        assert harness.save("A", poisoned) == Stale()
        assert isinstance(harness.claim("A", token="next", max_deliveries=1), Busy)
        assert harness.bury("A", poisoned) == Settled()
        assert isinstance(harness.claim("A"), Dead)

    def test_lost_poisoned_claim_is_poisoned_again(self, harness: StoreUnderTest) -> None:
        """T4: a worker that dies while it buries leaves the job to the next, never back to a run."""
        harness.run_and_lose("A", max_deliveries=1)
        expect(Poisoned, harness.claim("A", max_deliveries=1))
        harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        poisoned = expect(Poisoned, harness.claim("A", token="next", max_deliveries=1))
        assert harness.bury("A", poisoned, token="next") == Settled()

    @pytest.mark.parametrize("outcome", ["retry", "snooze", "interrupted"])
    def test_release_counts_no_delivery(self, harness: StoreUnderTest, outcome: str) -> None:
        """T5.11: a claim that was given back was not lost."""
        harness.submit("A")
        for _ in range(3):
            harness.release("A", harness.run("A", max_deliveries=2), outcome=outcome)
        assert harness.run("A", max_deliveries=2).delivery == 1

    def test_release_from_outside_needs_the_token_alone(self, harness: StoreUnderTest) -> None:
        """P16: the parent of a killed child knows no fence; it gives back its own claim and no other."""
        harness.submit("A")
        run = harness.run("A", max_deliveries=2)
        outside: dict[str, Any] = {"fence": None, "outcome": "interrupted"}
        assert harness.release("A", run, token="another", **outside) == Stale()
        assert harness.release("A", run, delay=LONG, **outside) == Settled()
        assert isinstance(harness.claim("A"), NotYet)

    def test_release_from_outside_counts_no_delivery(self, harness: StoreUnderTest) -> None:
        """T5.11: an interrupted run was not lost, and its holder's fence is old from then on."""
        harness.submit("A")
        run = harness.run("A", max_deliveries=2)
        harness.release("A", run, fence=None, outcome="interrupted")
        later = harness.run("A", token="later", max_deliveries=2)
        assert (later.delivery, later.attempt, later.fence > run.fence) == (1, 1, True)
        assert harness.release("A", run, fence=None, outcome="interrupted") == Stale()

    def test_lost_deliveries_are_counted_across_ids(self, harness: StoreUnderTest) -> None:
        """DESIGN 5.3: under the key, not in the message."""
        harness.run_and_lose("A")
        assert harness.run("B").delivery == 2


class Settling:
    """Ending a run: complete, release, bury, revoke, settle."""

    def test_complete_needs_fence_and_token(self, harness: StoreUnderTest) -> None:
        """P9: both are compared; an equal fence with another token is stale."""
        harness.submit("A")
        run = harness.run("A")
        assert harness.complete("A", run, token="other") == Stale()
        assert harness.complete("A", run, fence=run.fence - 1) == Stale()
        assert harness.state() == "running"
        assert harness.complete("A", run) == Settled()

    def test_stale_holder_writes_nothing(self, harness: StoreUnderTest) -> None:
        """P9, P11: every verb of a holder that was replaced is refused, and the new holder's outcome stands."""
        harness.submit("A", envelope=b"call")
        old = harness.run_and_lose("A", token="old")
        new = harness.run("A", token="new")
        assert harness.complete("A", old, token="old", outcome=b"old") == Stale()
        assert harness.release("A", old, token="old") == Stale()
        assert harness.bury("A", old, token="old") == Stale()
        assert harness.save("A", old, token="old") == Stale()
        assert harness.ledger() == {"A": b"call"}
        assert harness.store.letter("L1") is None
        assert harness.complete("A", new, token="new") == Settled()
        assert expect(Done, harness.claim("A")).outcome == b"out"

    @pytest.mark.parametrize("verb", ["complete", "release", "bury", "save"])
    def test_verbs_on_a_missing_record_are_stale(self, harness: StoreUnderTest, verb: str) -> None:
        """P9, T5.13: nothing is written for a key that nobody claimed."""
        assert getattr(harness, verb)("A", Run(fence=harness.store.now(), life=1, attempt=1, delivery=1)) == Stale()
        assert harness.state() == "none"
        assert harness.store.letter("L1") is None

    def test_complete_after_the_lease_is_accepted(self, harness: StoreUnderTest) -> None:
        """P20, T5.5: as long as no later claim was made."""
        harness.submit("A")
        run = harness.run("A", ttl=harness.tick)
        harness.elapse_alive(harness.tick * 1.2)
        assert harness.complete("A", run) == Settled()
        assert isinstance(harness.claim("A"), Done)

    def test_complete_after_free_is_accepted(self, harness: StoreUnderTest) -> None:
        """P20: the parent was wrong or late; no later claim was made."""
        harness.submit("A")
        assert harness.complete("A", harness.run_and_lose("A")) == Settled()

    def test_complete_after_release_is_stale(self, harness: StoreUnderTest) -> None:
        """P9: the right was given back."""
        harness.submit("A")
        run = harness.run("A")
        harness.release("A", run)
        assert harness.complete("A", run) == Stale()

    def test_higher_fence_is_accepted_as_proof_of_lost_writes(self, harness: StoreUnderTest) -> None:
        """P9, T5.17: the store failed over to a replica that had not seen the claim."""
        harness.submit("A")
        run = harness.run("A")
        assert harness.complete("A", run, fence=run.fence + 1000, token="unknown") == Settled(lost_writes=True)
        assert isinstance(harness.claim("A"), Done)

    def test_fence_grows_above_an_accepted_higher_one(self, harness: StoreUnderTest) -> None:
        """P9: a clock that is behind must not hand out a smaller one."""
        harness.submit("A")
        far = harness.run("A").fence + 3_600_000_000
        answer = harness.release("A", Run(far, 1, 1, 1), token="unknown")
        assert answer == Settled(lost_writes=True)
        assert harness.run("A").fence > far

    def test_complete_may_be_repeated(self, harness: StoreUnderTest) -> None:
        """T4: the answer may have been lost; nothing changes. A lean marker keeps no token, so it may say Stale."""
        harness.submit("A")
        run = harness.run("A")
        assert harness.complete("A", run) == Settled()
        assert harness.complete("A", run, outcome=b"other") in (Settled(), Stale())
        assert expect(Done, harness.claim("A")).outcome == b"out"

    def test_release_may_be_repeated(self, harness: StoreUnderTest) -> None:
        """T4: one attempt is counted, and the holder is told yes again (else it would not publish its retry)."""
        harness.submit("A")
        run = harness.run("A")
        assert harness.release("A", run) == Settled()
        assert harness.release("A", run) == Settled()
        assert harness.run("A").attempt == 2

    def test_retry_counts_an_attempt(self, harness: StoreUnderTest) -> None:
        """P15, T5.11: attempts count verdicts."""
        harness.submit("A")
        assert harness.release("A", harness.run("A"), outcome="retry") == Settled()
        run = harness.run("A")
        assert (run.attempt, run.snoozes) == (2, 0)

    def test_snooze_counts_a_snooze(self, harness: StoreUnderTest) -> None:
        """T5.11, T5.14: no attempt is spent, but snoozes have a limit."""
        harness.submit("A")
        harness.release("A", harness.run("A"), outcome="snooze")
        run = harness.run("A")
        assert (run.attempt, run.snoozes) == (1, 1)

    def test_interruption_counts_nothing(self, harness: StoreUnderTest) -> None:
        """P16, T5.11: a drain costs the job nothing."""
        harness.submit("A")
        harness.release("A", harness.run("A"), outcome="interrupted")
        run = harness.run("A")
        assert (run.attempt, run.delivery, run.snoozes) == (1, 1, 0)

    def test_bury_keeps_letter_and_key_in_one_step(self, harness: StoreUnderTest) -> None:
        """T5.12: the key is dead, the letter is there, the entry is gone."""
        harness.submit("A", envelope=b"call")
        assert harness.bury("A", harness.run("A")) == Settled()
        assert harness.state() == "dead"
        assert harness.store.letter("L1") == ("dead", b"letter one")
        assert harness.ledger() == {}

    def test_bury_repeated_is_one_letter(self, harness: StoreUnderTest) -> None:
        """T4: the same holder is told yes again."""
        harness.submit("A")
        run = harness.run("A")
        assert harness.bury("A", run) == Settled()
        assert harness.bury("A", run) == Settled()
        assert harness.store.letter_counts()["buried"] == 1
        assert len(harness.store.letters().letters) == 1

    def test_dead_key_is_free_after_the_letter_ttl(self, harness: StoreUnderTest) -> None:
        """T5.12: dead for ``letter_ttl``."""
        harness.submit("A")
        harness.bury("A", harness.run("A"), letter_ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.submit("B") == New(life=1)

    def test_revoked_waiting_job_never_runs(self, harness: StoreUnderTest) -> None:
        """P18: ends at once; the tombstone is in the store, not in a worker's memory."""
        harness.submit("A")
        harness.revoke("A")
        assert harness.claim("A") == Over("revoked")
        assert harness.state() == "revoked"

    @pytest.mark.parametrize("kind", ["own", "given", "derived", "slot", "declared"])
    def test_revoke_before_any_record_is_remembered(self, harness: StoreUnderTest, kind: str) -> None:
        """P18: an undeclared job waits without a record; its revoke must hold all the same."""
        job = Job("A", kind=kind, stamp=harness.store.now())  # type: ignore[arg-type]
        if kind != "declared":
            harness.submit("A", job=job, envelope=b"call")
        harness.revoke("A", job=job)
        assert harness.claim("A", job=job, first=True) == Over("revoked")
        assert harness.ledger() == {}

    def test_revoked_job_that_waits_for_a_retry_never_runs(self, harness: StoreUnderTest) -> None:
        """P18: waiting is waiting, however often it ran."""
        harness.submit("A")
        harness.release("A", harness.run("A"), delay=LONG)
        harness.revoke("A")
        assert harness.claim("A") == Over("revoked")

    def test_revoked_running_job_keeps_its_key(self, harness: StoreUnderTest) -> None:
        """P18: until its holder ends, nobody else runs."""
        harness.submit("A")
        harness.run("A")
        harness.revoke("A")
        assert isinstance(harness.claim("A", token="next"), Busy)

    def test_revoked_running_job_may_complete(self, harness: StoreUnderTest) -> None:
        """T5.9: done is done."""
        harness.submit("A")
        run = harness.run("A")
        harness.revoke("A")
        assert harness.complete("A", run) == Settled()
        assert isinstance(harness.claim("A"), Done)

    @pytest.mark.parametrize("outcome", ["retry", "snooze", "interrupted"])
    def test_released_revoked_job_ends(self, harness: StoreUnderTest, outcome: str) -> None:
        """T5.9: any other end becomes revoked, and its ledger entry goes (P1)."""
        harness.submit("A", envelope=b"call")
        run = harness.run("A")
        harness.revoke("A")
        assert harness.release("A", run, outcome=outcome) == Settled(revoked=True)
        assert harness.claim("A") == Over("revoked")
        assert harness.ledger() == {}

    def test_lost_revoked_job_ends(self, harness: StoreUnderTest) -> None:
        """P18, T5.9: the end of its lease makes it revoked, and its ledger entry goes."""
        harness.submit("A", envelope=b"call")
        run = harness.run("A")
        harness.revoke("A")
        harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        assert harness.claim("A", token="next") == Over("revoked")
        assert harness.ledger() == {}
        assert harness.complete("A", run) == Stale()

    def test_submission_over_a_lost_revoked_job_runs(self, harness: StoreUnderTest) -> None:
        """T3 (3): the holder is gone without a word; the new life starts with a new budget, under a larger fence."""
        harness.submit("A", envelope=b"call")
        run = harness.run("A")
        harness.revoke("A")
        life = expect(Existing, harness.submit("B", envelope=b"call two")).life
        harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        fresh = harness.run("B", life=life)
        assert (fresh.attempt, fresh.delivery) == (1, 1)
        assert fresh.fence > run.fence
        assert harness.ledger() == {"B": b"call two"}

    def test_revoke_of_another_id_leaves_the_job_alone(self, harness: StoreUnderTest) -> None:
        """T5.9: a joined submission is not the job."""
        harness.submit("A", envelope=b"call")
        harness.submit("B", envelope=b"with link", canvas=True)
        harness.revoke("B")
        assert harness.ledger() == {"A": b"call"}
        assert isinstance(harness.claim("A"), Run)

    def test_revoke_of_a_done_job_changes_nothing(self, harness: StoreUnderTest) -> None:
        """T5.9: it has ended."""
        harness.submit("A")
        harness.complete("A", harness.run("A"))
        harness.revoke("A")
        assert isinstance(harness.claim("A"), Done)

    @pytest.mark.parametrize("state", ["expired", "revoked", "skipped"])
    def test_settled_waiting_job_is_over(self, harness: StoreUnderTest, state: Any) -> None:
        """T4: ends the submission's entry and the job that waits under that id."""
        harness.submit("A", envelope=b"call")
        harness.settle("A", state)
        assert harness.claim("A") == Over(state)
        assert harness.ledger() == {}

    @pytest.mark.parametrize("state", ["expired", "revoked", "skipped"])
    def test_settled_undeclared_job_is_over(self, harness: StoreUnderTest, state: Any) -> None:
        """T4, P7: an undeclared job that was never claimed waits without a record, and ends all the same."""
        job = own("A", stamp=harness.store.now())
        harness.submit("A", job=job, envelope=b"call")
        harness.settle("A", state, job=job)
        assert harness.claim("A", job=job) == Over(state)
        assert harness.ledger() == {}

    @pytest.mark.parametrize("state", ["expired", "revoked", "skipped"])
    def test_settle_leaves_a_running_job_alone(self, harness: StoreUnderTest, state: Any) -> None:
        """T4, P1: changes the job only if it waits; its entry stays, or nobody would publish it again if its holder died."""
        harness.submit("A", envelope=b"call")
        run = harness.run("A")
        harness.settle("A", state)
        assert harness.ledger() == {"A": b"call"}
        assert harness.complete("A", run) == Settled()
        assert harness.ledger() == {}

    @pytest.mark.parametrize("state", ["expired", "skipped"])
    def test_settled_running_job_ends_when_its_holder_is_gone(self, harness: StoreUnderTest, state: Any) -> None:
        """P18: the message is gone with the expiry, so nobody else would end it, and the sweep would bury it again and again."""
        harness.submit("A", envelope=b"call")
        harness.run_and_lose("A")
        harness.settle("A", state)
        harness.elapse(harness.tick / 10)
        assert harness.store.resend(harness.job, task_id="A", quiet=harness.tick, most=0, record_ttl=LONG) == "ended"
        assert harness.claim("A") == Over("revoked")
        assert harness.ledger() == {}

    def test_settle_of_another_id_leaves_the_job_alone(self, harness: StoreUnderTest) -> None:
        """T4: only that submission's ledger entry goes."""
        harness.submit("A", envelope=b"call")
        harness.submit("B", envelope=b"with link", canvas=True)
        harness.settle("B", "expired")
        assert harness.ledger() == {"A": b"call"}
        assert isinstance(harness.claim("A"), Run)

    def test_tombstone_is_forgotten_after_its_ttl(self, harness: StoreUnderTest) -> None:
        """T5.9: tombstones live as long as markers, not for ever."""
        harness.submit("A")
        harness.store.revoke(harness.job, task_id="A", ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        assert harness.submit("B") == New(life=1)


class Saving:
    """Checkpoints and steps."""

    def test_saved_progress_is_given_to_the_next_run(self, harness: StoreUnderTest) -> None:
        """T9: checkpoint and steps, byte for byte."""
        harness.submit("A")
        run = harness.run("A")
        assert (run.checks, dict(run.saved)) == (0, {})
        assert harness.save("A", run, name="state", body=b"\x00half|\xff") == Settled()
        assert harness.save("A", run, name="step:mail", body=b"") == Settled()
        harness.release("A", run)
        assert dict(harness.run("A").saved) == {"state": b"\x00half|\xff", "step:mail": b""}

    def test_each_save_is_counted(self, harness: StoreUnderTest) -> None:
        """P14: derived child ids need the number of checkpoints and steps saved so far."""
        harness.submit("A")
        run = harness.run("A")
        for body in (b"one", b"two", b"three"):
            harness.save("A", run, body=body)
        harness.release("A", run)
        assert harness.run("A").checks == 3

    def test_new_checkpoint_resets_the_lost_deliveries(self, harness: StoreUnderTest) -> None:
        """T5.11: a job that goes forward is not poison."""
        harness.run_and_lose("A", max_deliveries=2)
        run = harness.run("A", max_deliveries=2)
        harness.save("A", run, body=b"further")
        harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        assert harness.run("A", max_deliveries=2).delivery == 2

    def test_unchanged_checkpoint_resets_nothing(self, harness: StoreUnderTest) -> None:
        """T5.11: a crash loop that saves the same state each time is poison."""
        for _ in range(2):
            harness.save("A", harness.run("A", max_deliveries=2), body=b"same")
            harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        assert isinstance(harness.claim("A", max_deliveries=2), Poisoned)

    def test_step_resets_nothing(self, harness: StoreUnderTest) -> None:
        """T5.11: only a changed checkpoint does."""
        harness.run_and_lose("A")
        harness.save("A", harness.run("A"), name="step:mail", body=b"sent")
        harness.store.free(harness.job, token="token of A", evidence=b"{}", keep=LONG)
        assert harness.run("A").delivery == 3

    def test_progress_goes_with_done(self, harness: StoreUnderTest) -> None:
        """T9: it lives until done or discard; a later life of the key starts afresh."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.complete("A", run, marker_ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        fresh = harness.run("B")
        assert (fresh.checks, dict(fresh.saved)) == (0, {})

    def test_progress_of_a_revoked_life_is_not_inherited(self, harness: StoreUnderTest) -> None:
        """T3: a new life inherits from a dead one only."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.release("A", run)
        harness.revoke("A")
        life = expect(New, harness.submit("B")).life
        fresh = harness.run("B", life=life)
        assert (fresh.checks, dict(fresh.saved)) == (0, {})

    def test_save_repeated_after_a_lost_answer_counts_once(self, harness: StoreUnderTest) -> None:
        """P14: the count is part of the ids of children; one too many would make new children of old ones."""
        harness.submit("A")
        run = harness.run("A")
        for _ in range(2):
            harness.save("A", run, number=1)
        harness.release("A", run)
        assert harness.run("A").checks == 1


class DeadLetters:
    """Keeping, reading, replaying and discarding letters."""

    def test_letter_without_claim_is_kept_once(self, harness: StoreUnderTest) -> None:
        """T4 keep_letter: twice is once, the first body stays."""
        harness.keep_letter("M1", letter=b"first")
        harness.keep_letter("M1", letter=b"second")
        assert harness.store.letter("M1") == ("dead", b"first")
        assert harness.store.letter_counts()["buried"] == 1

    def test_unknown_letter_is_none(self, harness: StoreUnderTest) -> None:
        """T4: nothing is made up."""
        assert harness.store.letter("none") is None

    def test_letters_come_newest_first_and_in_pages(self, harness: StoreUnderTest) -> None:
        """DESIGN 10: by time of burial; the cursor ends with ""."""
        for number in range(7):
            harness.keep_letter(f"M{number}", letter=b"body %d" % number)
            harness.elapse(harness.tick / 50)
        assert harness.letters(page=3) == [(f"M{number}", "dead", b"body %d" % number) for number in reversed(range(7))]

    def test_no_letters_is_one_empty_page(self, harness: StoreUnderTest) -> None:
        """DESIGN 10: an empty store answers, it does not fail."""
        page = harness.store.letters()
        assert (list(page.letters), page.cursor) == ([], "")
        counts = harness.store.letter_counts()
        assert {name: counts[name] for name in ("kept", "buried", "replayed", "discarded", "trimmed")} == dict.fromkeys(
            ("kept", "buried", "replayed", "discarded", "trimmed"), 0
        )

    def test_no_letter_falls_between_two_pages(self, harness: StoreUnderTest) -> None:
        """DESIGN 10: letters buried at the same moment share no cursor that skips one of them."""
        together(20, lambda number: harness.keep_letter(f"M{number}"))
        assert sorted(harness.letter_ids(page=3)) == sorted(f"M{number}" for number in range(20))

    def test_letters_of_some_labels_are_found_without_the_others(self, harness: StoreUnderTest) -> None:
        """Newest first and in pages; a label that nobody has finds nothing, and "" those that have none."""
        for number in range(9):
            harness.keep_letter(f"M{number}", label=("one", "two", "")[number % 3])
            harness.elapse(harness.tick / 50)
        assert harness.letter_ids(labels=["one"], page=2) == ["M6", "M3", "M0"]
        assert harness.letter_ids(labels=["two", "", "nobody's"], page=2) == ["M8", "M7", "M5", "M4", "M2", "M1"]
        assert harness.letter_ids(labels=[]) == harness.letter_ids(labels=["nobody's"]) == []
        assert {"one", "two"} <= set(harness.store.letter_labels() or ()) <= {"one", "two", ""}

    def test_no_letter_of_a_label_falls_between_two_pages(self, harness: StoreUnderTest) -> None:
        """Also of those that were buried at the same moment."""
        together(20, lambda number: harness.keep_letter(f"M{number}", label=f"label {number % 3}"))
        labels = ["label 0", "label 2"]
        expected = sorted(f"M{number}" for number in range(20) if number % 3 != 1)
        assert sorted(harness.letter_ids(labels=labels, page=3)) == expected

    def test_letter_changes_its_label_when_it_is_replayed_and_a_label_goes_with_its_last_letter(
        self, harness: StoreUnderTest
    ) -> None:
        """Else letters of years would leave more labels than anybody could look through."""
        harness.bury("A", harness.run("A"), label="dead")
        harness.replay("L1", "R", label="replaying")
        assert (harness.letter_ids(labels=["dead"]), harness.letter_ids(labels=["replaying"])) == ([], ["L1"])
        harness.replay("L1", "R", label="replayed")
        assert harness.letter_ids(labels=["replayed"]) == ["L1"]
        assert set(harness.store.letter_labels() or ()) - {""} == {"replayed"}
        assert harness.store.discard("L1", harness.job)
        assert set(harness.store.letter_labels() or ()) - {""} == set()

    def test_label_goes_with_letters_that_have_to_go(self, harness: StoreUnderTest) -> None:
        """Trimmed letters are in no index."""
        for number in range(3):
            harness.keep_letter(f"K{number}", job=harness.job, label=f"label {number}", letter_max=1)
        assert set(harness.store.letter_labels() or ()) - {""} == {"label 2"}
        assert harness.letter_ids(labels=["label 0", "label 1", "label 2"]) == ["K2"]

    def test_letters_are_found_from_a_moment_backwards(self, harness: StoreUnderTest) -> None:
        """With and without labels."""
        harness.keep_letter("old", label="one")
        harness.elapse(harness.tick)  # the store's clock is known to half a round trip, which may be long
        moment = harness.store.now() / 1e6
        harness.elapse(harness.tick)
        harness.keep_letter("new", label="one")
        assert harness.letter_ids(until=moment) == harness.letter_ids(until=moment, labels=["one"]) == ["old"]

    def test_several_letters_are_replayed_at_once_each_by_itself(self, harness: StoreUnderTest) -> None:
        """One that is gone keeps none of the others back, and the same again answers the same."""
        harness.keep_letter("M1")
        harness.keep_letter("M2")
        facts: Any = {"envelope": b"again", "body": b"marked", "fingerprint": "", "ttl": LONG, "label": "replaying"}
        wanted = [Reopening(letter_id=one, job=None, task_id=f"R-{one}", **facts) for one in ("M1", "none", "M2")]
        for _ in range(2):
            assert harness.store.replay_all(wanted) == [Replaying(1), Refused("gone"), Replaying(1)]
        assert harness.ledger() == {"R-M1": b"again", "R-M2": b"again"}
        assert harness.store.letter_counts()["replayed"] == 2
        assert harness.store.replay_all([]) == []

    def test_oldest_letters_are_trimmed_by_count(self, harness: StoreUnderTest) -> None:
        """DESIGN 10: bounded; the oldest go and are counted. One key, since a Cluster counts in each shard."""
        for number in range(1, 6):
            harness.die_again(number, letter_max=3)
        counts = harness.store.letter_counts()
        assert (counts["buried"], counts["kept"] + counts["trimmed"]) == (5, 5)
        assert 1 <= counts["kept"] <= 3
        assert harness.letter_ids() == [f"L{number}" for number in range(5, 5 - counts["kept"], -1)]

    def test_old_letters_are_trimmed_by_age(self, harness: StoreUnderTest) -> None:
        """DESIGN 10: beyond ``letter_ttl`` the next burial sweeps them out, counted."""
        harness.die_again(1, letter_ttl=harness.tick)
        harness.elapse(harness.tick * 1.2)
        harness.die_again(2, letter_ttl=harness.tick)
        counts = harness.store.letter_counts()
        assert (counts["kept"], counts["trimmed"]) == (1, 1)
        assert harness.store.letter("L1") is None

    def test_dead_job_whose_letter_is_gone_still_never_runs(self, harness: StoreUnderTest) -> None:
        """P7: `Dead` with an empty letter."""
        harness.submit("A")
        harness.bury("A", harness.run("A"), letter_max=0)
        assert harness.claim("A") == Dead(letter_id="L1", letter=b"")

    def test_replay_opens_a_new_life_under_a_new_id(self, harness: StoreUnderTest) -> None:
        """P21, T10: letter marked, key waiting, ledger entry written, in one step; new budget, kept progress."""
        harness.submit("A")
        harness.release("A", harness.run("A"))
        run = harness.run("A")
        harness.save("A", run)
        harness.bury("A", run)
        answer = harness.replay("L1", "R")
        assert answer == Replaying(life=2)
        assert harness.store.letter("L1") == ("replayed", b"letter, replayed")
        assert harness.ledger() == {"R": b"again"}
        fresh = harness.run("R", life=2)
        assert (fresh.attempt, fresh.delivery, dict(fresh.saved)) == (1, 1, {"state": b"half"})
        assert fresh.fence > run.fence
        assert harness.store.letter_counts()["replayed"] == 1

    def test_replay_ends_the_old_life(self, harness: StoreUnderTest) -> None:
        """T10: a late message or report of the old life touches nothing."""
        harness.submit("A")
        run = harness.run("A")
        harness.bury("A", run)
        harness.replay("L1", "R")
        assert harness.claim("A") == Over("ended")
        assert harness.bury("A", run) == Stale()
        harness.settle("A", "expired")
        assert isinstance(harness.claim("R", life=2), Run)

    def test_replay_again_under_the_same_id_goes_on(self, harness: StoreUnderTest) -> None:
        """P21: a replayer that was cut off before its publish loses nothing."""
        harness.submit("A")
        harness.dead("A")
        first = harness.replay("L1", "R")
        assert harness.replay("L1", "R") == first
        assert harness.store.letter_counts()["replayed"] == 1

    def test_letters_that_had_to_go_are_told(self, harness: StoreUnderTest) -> None:
        """G4: bounded, and never in silence."""
        for number in range(3):
            harness.keep_letter(f"K{number}", job=harness.job, letter_max=3)
        harness.submit("A")
        assert harness.bury("A", harness.run("A"), letter_max=2) == Settled(trimmed=2)
        assert [harness.keep_letter("K9", job=harness.job, letter_max=2) for _ in range(2)] == [1, 0]
        assert harness.store.letter_counts()["trimmed"] == 3

    def test_replay_again_under_the_same_id_replaces_the_body(self, harness: StoreUnderTest) -> None:
        """T10: so that the replayer can note that it has published; nothing else changes."""
        harness.submit("A")
        harness.dead("A")
        harness.replay("A", "R")
        letter_id = harness.store.letters().letters[0][0]
        facts: dict[str, Any] = {"task_id": "R", "envelope": b"call", "fingerprint": "", "ttl": LONG}
        assert isinstance(harness.store.replay(letter_id, harness.job, **facts, body=b"published"), Replaying)
        assert harness.store.letter(letter_id) == ("replayed", b"published")
        assert harness.store.letter_counts()["replayed"] == 1

    def test_replay_under_another_id_is_refused(self, harness: StoreUnderTest) -> None:
        """P21, T10: one letter, one replay; the answer names who did it."""
        harness.submit("A")
        harness.dead("A")
        harness.replay("L1", "R")
        assert harness.replay("L1", "S") == Refused("replayed", new_id="R")
        assert set(harness.ledger()) == {"R"}

    def test_ten_replays_of_one_letter_give_one(self, harness: StoreUnderTest) -> None:
        """P21: atomic per letter."""
        harness.submit("A")
        harness.dead("A")
        answers = together(10, lambda number: harness.replay("L1", f"R{number}"))
        assert len(kinds(answers, Replaying)) == 1
        assert {answer.reason for answer in kinds(answers, Refused)} == {"replayed"}
        assert len(harness.ledger()) == 1

    def test_replay_of_a_missing_letter_is_refused(self, harness: StoreUnderTest) -> None:
        """T10: ``gone``; no entry is written for it."""
        assert harness.replay("none", "R") == Refused("gone")
        assert harness.ledger() == {}
        assert harness.state() == "none"

    def test_replay_of_a_superseded_letter_is_refused(self, harness: StoreUnderTest) -> None:
        """T10: the key has a later life, or that life is done."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        assert expect(Refused, harness.replay("L1", "R")).reason == "superseded"
        harness.complete("B", harness.run("B", life=2))
        assert expect(Refused, harness.replay("L1", "R")).reason == "superseded"
        assert harness.store.letter("L1") == ("dead", b"letter one")

    def test_replay_of_an_earlier_life_s_letter_is_refused(self, harness: StoreUnderTest) -> None:
        """T10: the key is dead by a later letter; only that one may be replayed."""
        harness.submit("A")
        harness.dead("A")
        harness.submit("B")
        harness.bury("B", harness.run("B", life=2), letter_id="L2", letter=b"letter two")
        assert expect(Refused, harness.replay("L1", "R")).reason == "superseded"
        assert harness.replay("L2", "R") == Replaying(life=3)

    def test_replay_takes_a_new_fingerprint(self, harness: StoreUnderTest) -> None:
        """T10: an edited payload is the key's payload from now on."""
        harness.submit("A", fingerprint=APPLES)
        harness.dead("A", fingerprint=APPLES)
        harness.replay("L1", "R", fingerprint=PEARS)
        assert harness.submit("B", fingerprint=APPLES) == Mismatch(existing_id="R")
        assert isinstance(harness.claim("R", life=2, fingerprint=PEARS), Run)

    def test_replayed_job_can_die_and_be_replayed_again(self, harness: StoreUnderTest) -> None:
        """T10: each death is a letter of its own."""
        harness.submit("A")
        harness.dead("A")
        harness.replay("L1", "R")
        harness.bury("R", harness.run("R", life=2), letter_id="L2", letter=b"letter two")
        assert harness.ledger() == {}
        assert harness.replay("L2", "S") == Replaying(life=3)

    def test_replay_of_a_letter_without_key(self, harness: StoreUnderTest) -> None:
        """T10: the letter is marked and the ledger has the envelope; there is no key to open."""
        harness.keep_letter("M1")
        assert isinstance(
            harness.store.replay("M1", None, task_id="R", envelope=b"again", body=b"r", fingerprint="", ttl=LONG),
            Replaying,
        )
        assert harness.store.letter("M1") == ("replayed", b"r")
        assert harness.ledger() == {"R": b"again"}

    @pytest.mark.parametrize("state", ["expired", "skipped"])
    def test_letter_of_a_settled_job_can_be_replayed(self, harness: StoreUnderTest, state: Any) -> None:
        """T10, DESIGN 5.7: reasons like ``expired`` end without a claim; their key has no later life."""
        harness.submit("A")
        harness.keep_letter("A", job=harness.job)
        harness.settle("A", state)
        answer = expect(Replaying, harness.replay("A", "R"))
        assert harness.claim("A", life=1) == Over("ended")
        assert isinstance(harness.claim("R", life=answer.life), Run)

    def test_undeclared_job_dies_and_is_replayed_under_its_key(self, harness: StoreUnderTest) -> None:
        """T10: the key is the first task id, the new id is another."""
        job = own("A", stamp=harness.store.now())
        harness.submit("A", job=job, envelope=b"call")
        run = harness.run("A", job=job, first=True)
        assert harness.bury("A", run, job=job) == Settled()
        answer = expect(Replaying, harness.replay("L1", "R", job=job))
        assert harness.claim("A", job=job) == Over("ended")
        fresh = harness.run("R", job=job, life=answer.life)
        assert harness.complete("R", fresh, job=job) == Settled()
        assert harness.ledger() == {}
        assert isinstance(harness.claim("R", job=job, life=answer.life), Done)

    def test_discard_frees_the_key(self, harness: StoreUnderTest) -> None:
        """DESIGN 5.9: the letter, the key and its progress go."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.bury("A", run)
        assert harness.store.discard("L1", harness.job) is True
        assert harness.store.letter("L1") is None
        life = expect(New, harness.submit("B")).life
        assert dict(harness.run("B", life=life).saved) == {}
        counts = harness.store.letter_counts()
        assert (counts["kept"], counts["discarded"]) == (0, 1)

    def test_discard_twice_says_so(self, harness: StoreUnderTest) -> None:
        """T4: False when it was gone; counted once."""
        harness.keep_letter("M1")
        assert harness.store.discard("M1", None) is True
        assert harness.store.discard("M1", None) is False
        assert harness.store.letter_counts()["discarded"] == 1

    def test_discard_of_a_superseded_letter_leaves_the_later_life_alone(self, harness: StoreUnderTest) -> None:
        """T3: the key is not dead by this letter any more, and the progress is the later life's."""
        harness.submit("A")
        run = harness.run("A")
        harness.save("A", run)
        harness.bury("A", run)
        harness.submit("B")
        assert harness.store.discard("L1", harness.job) is True
        assert dict(harness.run("B", life=2).saved) == {"state": b"half"}


class Serving:
    """The server behind the verbs."""

    def test_now_is_in_microseconds_and_goes_forward(self, harness: StoreUnderTest) -> None:
        """T5.6: fences and stamps are made from it."""
        before = harness.store.now()
        harness.elapse(harness.tick)
        passed = harness.store.now() - before
        assert harness.tick * 0.9e6 <= passed < LONG * 1e6

    def test_time_that_was_asked_for_is_known_from_then_on(self, harness: StoreUnderTest) -> None:
        """Who may not wait for a server need not ask it."""
        before = harness.store.now()
        known = harness.store.known_now()
        assert known is not None
        assert before <= known <= harness.store.now()

    def test_inspect_names_the_job(self, harness: StoreUnderTest) -> None:
        """STYLE 16: a record in words, for people."""
        harness.submit("A")
        harness.release("A", harness.run("A"))
        run = harness.run("A")
        words = harness.store.inspect(harness.job)
        wanted = {
            "state": "running",
            "life": "1",
            "fence": str(run.fence),
            "attempt": "2",
            "delivery": "1",
            "snoozes": "0",
        }
        assert {name: words[name] for name in wanted} == wanted
        assert words["task_id"] == "A"
        clocks = 1e6  # of a Cluster's nodes, and the store's milliseconds
        assert 0 < int(words["at_ms"]) * 1000 - harness.store.now() <= LONG * 1e6 + clocks
        assert harness.store.free(harness.job, token=words["holder"], evidence=b"{}", keep=LONG)

    def test_inspect_of_nothing_is_empty(self, harness: StoreUnderTest) -> None:
        """STYLE 10: no record is not an empty record."""
        assert harness.store.inspect(harness.job) == {}

    @pytest.mark.parametrize(
        ("key", "task_id"),
        [
            ("a|b|c", "t|1"),
            ("späť ☃ {x}", "id ☃"),
            ("k" * 512, "0b9d3a57-5b0e-4c53-9c7d-0f9b2b8f1c11"),
            ("\n\x00=", "plain"),
        ],
    )
    def test_keys_and_ids_may_hold_any_character(self, harness: StoreUnderTest, key: str, task_id: str) -> None:
        """T4: no separator of a layout may leak out of it."""
        job = Job(key, kind="declared")
        harness.submit(task_id, job=job, envelope=b"call")
        run = harness.run(task_id, job=job)
        assert harness.ledger() == {task_id: b"call"}
        harness.complete(task_id, run, job=job)
        assert harness.claim(task_id, job=job) == Done(task_id=task_id, outcome=b"out")

    def test_close_may_be_called_twice(self, harness: StoreUnderTest) -> None:
        """STYLE 19: stop tolerates twice."""
        harness.store.close()
        harness.store.close()


class Recovering:
    """Deciding about submissions that vanished, and who of the fleet decides."""

    def resend(self, harness: StoreUnderTest, *, quiet: float = 0.0, most: int = 3) -> str:
        """Ask about the entry of task ``A``."""
        return harness.store.resend(harness.job, task_id="A", quiet=quiet, most=most, record_ttl=LONG)

    def test_vanished_submission_is_published_again_with_doubling_pauses(self, harness: StoreUnderTest) -> None:
        """T6: the second time no sooner than ``quiet`` after the first, the third no sooner than twice that."""
        harness.submit("A", envelope=b"call")
        quiet = harness.tick
        assert self.resend(harness, quiet=quiet) == "publish"
        assert self.resend(harness, quiet=quiet) == "no"
        harness.elapse(2.5 * quiet)
        assert self.resend(harness, quiet=quiet) == "publish"
        assert harness.ledger() == {"A": b"call"}

    def test_submission_published_often_enough_is_lost(self, harness: StoreUnderTest) -> None:
        """T5.14: bounded; what happens then is the caller's to do."""
        harness.submit("A", envelope=b"call")
        for _ in range(2):
            assert self.resend(harness, most=2) == "publish"
            harness.elapse(harness.tick / 10)
        assert self.resend(harness, most=2) == "lost"

    def test_last_message_has_its_time_before_it_is_lost(self, harness: StoreUnderTest) -> None:
        """T5.14: it may wait behind others; only when as long as before each of its predecessors has gone by."""
        harness.submit("A", envelope=b"call")
        quiet = harness.tick
        assert self.resend(harness, quiet=quiet, most=1) == "publish"
        assert self.resend(harness, quiet=quiet, most=1) == "no"
        harness.elapse(2.5 * quiet)
        assert self.resend(harness, quiet=quiet, most=1) == "lost"

    def test_two_sweepers_publish_once(self, harness: StoreUnderTest) -> None:
        """Each answer is noted in the same step."""
        harness.submit("A", envelope=b"call")
        answers = together(10, lambda _: self.resend(harness, quiet=LONG))
        assert sorted(answers) == ["no"] * 9 + ["publish"]

    def test_entry_that_ended_meanwhile_is_left_alone(self, harness: StoreUnderTest) -> None:
        """The sweep read it a moment ago."""
        harness.submit("A")
        assert self.resend(harness) == "no"

    def test_running_job_is_left_alone(self, harness: StoreUnderTest) -> None:
        """T6 (b): a live lease."""
        harness.submit("A", envelope=b"call")
        harness.run("A")
        assert self.resend(harness) == "no"

    def test_job_that_waits_for_its_retry_is_left_alone(self, harness: StoreUnderTest) -> None:
        """T6 (a): due, and quiet for a while."""
        harness.submit("A", envelope=b"call")
        harness.release("A", harness.run("A"), delay=LONG)
        assert self.resend(harness) == "no"

    def test_done_job_with_an_entry_is_published_again(self, harness: StoreUnderTest) -> None:
        """P1: its continuation may not have been sent; the copy finds Done and sends it."""
        harness.submit("A", envelope=b"call")
        harness.complete("A", harness.run("A"), entry_ends=False)
        assert self.resend(harness) == "publish"

    def test_entry_of_a_dead_job_ends(self, harness: StoreUnderTest) -> None:
        """Its letter is what is left of it."""
        harness.submit("A", envelope=b"call")
        harness.dead("A")
        harness.submit("A", envelope=b"call")
        assert self.resend(harness) in ("ended", "no")
        assert harness.ledger() == {}

    def test_revoked_job_whose_holder_is_gone_is_settled(self, harness: StoreUnderTest) -> None:
        """P18: settled by the sweep, never published."""
        harness.submit("A", envelope=b"call")
        harness.run_and_lose("A")
        harness.revoke("A")
        harness.elapse(harness.tick / 10)
        assert self.resend(harness) == "ended"
        assert harness.claim("A") == Over("revoked")
        assert harness.ledger() == {}

    def test_replaced_arguments_survive_a_resend(self, harness: StoreUnderTest) -> None:
        """The note about it is no part of the envelope."""
        harness.submit("A", fingerprint=APPLES, envelope=b"apples")
        harness.submit("B", fingerprint=PEARS, envelope=b"pears", replace=True)
        assert self.resend(harness) == "publish"
        assert harness.run("A", fingerprint=APPLES).envelope == b"pears"

    def lead(self, harness: StoreUnderTest, token: str, *, ttl: float = LONG) -> str:
        """Ask for the role."""
        return harness.store.lead("leader", token=token, ttl=ttl, pulse_ttl=LONG)

    def test_one_of_many_leads(self, harness: StoreUnderTest) -> None:
        """And goes on leading."""
        answers = together(10, lambda number: (self.lead(harness, f"worker {number}"), number))
        (leader,) = [number for answer, number in answers if answer != "no"]
        assert self.lead(harness, f"worker {leader}") != "no"

    def test_role_of_a_dead_leader_is_taken(self, harness: StoreUnderTest) -> None:
        """When its time is over."""
        self.lead(harness, "one", ttl=harness.tick)
        assert self.lead(harness, "two") == "no"
        harness.elapse(1.5 * harness.tick)
        assert self.lead(harness, "two") != "no"

    def test_roles_are_apart(self, harness: StoreUnderTest) -> None:
        """A leader and a standby."""
        self.lead(harness, "one")
        assert harness.store.lead("standby", token="two", ttl=LONG, pulse_ttl=LONG) != "no"

    def test_leader_waits_while_the_fleet_was_away(self, harness: StoreUnderTest) -> None:
        """Rule 16: an outage ends nobody's hold."""
        assert self.lead(harness, "one") == "wait"
        harness.beat(ttl=harness.tick)
        assert self.lead(harness, "one") == "wait"
        harness.elapse(1.5 * harness.tick)
        harness.beat()
        assert self.lead(harness, "one") == "yes"


class KeepingNotes:
    """Small records that a fleet shares."""

    def write(self, harness: StoreUnderTest, name: str, value: bytes | None, **changes: Any) -> int | None:
        """Write one note to the shelf ``tools``."""
        (version,) = harness.store.notes.write("tools", [Write(name=name, value=value, **{"ttl": LONG, **changes})])
        return version

    def written(self, harness: StoreUnderTest, name: str, value: bytes | None, **changes: Any) -> int:
        """Write one note, which must be done."""
        return expect(int, self.write(harness, name, value, **changes))

    def test_note_is_read_as_it_was_written(self, harness: StoreUnderTest) -> None:
        """Any bytes; names that are not there are left out."""
        version = self.written(harness, "saw", b"\x00|\xff\n|")
        assert harness.store.notes.read("tools", ["saw", "axe"]) == {"saw": Note("saw", b"\x00|\xff\n|", version)}
        assert harness.store.notes.read("toys", ["saw"]) == {}
        assert harness.store.notes.read("tools", []) == {}

    def test_note_changes_only_from_the_expected_version(self, harness: StoreUnderTest) -> None:
        """Compare and set: 0 is nothing, None anything."""
        first = self.written(harness, "saw", b"1", expected=0)
        assert self.write(harness, "saw", b"2", expected=0) is None
        second = self.written(harness, "saw", b"2", expected=first)
        assert self.write(harness, "saw", None, expected=first) is None
        assert self.written(harness, "saw", b"3") > second > first
        assert harness.store.notes.read("tools", ["saw"])["saw"].value == b"3"

    def test_version_grows_beyond_a_removed_note(self, harness: StoreUnderTest) -> None:
        """So that who still holds the old version cannot take the new note for it."""
        first = self.written(harness, "saw", b"1")
        gone = self.written(harness, "saw", None, expected=first)
        assert harness.store.notes.read("tools", ["saw"]) == {}
        assert self.written(harness, "saw", b"1", expected=0) > gone > first

    def test_note_ends_with_its_time(self, harness: StoreUnderTest) -> None:
        """And then nothing is there; one that is written again lives on."""
        for name in ("saw", "axe"):
            self.written(harness, name, b"", ttl=harness.tick)
        self.written(harness, "axe", b"longer")
        harness.elapse(1.5 * harness.tick)
        assert set(harness.store.notes.read("tools", ["saw", "axe"])) == {"axe"}
        assert set(every(harness.store.notes, "tools")) == {"axe"}
        assert self.write(harness, "saw", b"again", expected=0)

    def test_value_is_added_to_what_is_there_and_its_beginning_goes(self, harness: StoreUnderTest) -> None:
        """Bounded; a note that ended, or never was, begins with the value; ``expected`` holds here too."""
        first = self.written(harness, "saw", b"\x00abc", keep=6)
        assert self.written(harness, "saw", b"de\n", keep=6) > first
        assert harness.store.notes.read("tools", ["saw"])["saw"].value == b"abcde\n"
        assert self.write(harness, "saw", b"f", keep=6, expected=first) is None
        self.written(harness, "saw", b"longer than six", keep=6, ttl=harness.tick)
        assert harness.store.notes.read("tools", ["saw"])["saw"].value == b"an six"
        harness.elapse(1.5 * harness.tick)
        self.written(harness, "saw", b"new", keep=6)
        assert harness.store.notes.read("tools", ["saw"])["saw"].value == b"new"

    def test_ten_who_add_at_once_lose_nothing(self, harness: StoreUnderTest) -> None:
        """Atomic."""
        self.written(harness, "saw", b"", keep=100)
        together(10, lambda number: self.write(harness, "saw", b"%d" % number, keep=100))
        assert sorted(harness.store.notes.read("tools", ["saw"])["saw"].value) == sorted(b"0123456789")

    def test_ten_writers_of_one_version_are_one(self, harness: StoreUnderTest) -> None:
        """Atomic."""
        first = self.written(harness, "saw", b"")
        answers = together(10, lambda number: self.write(harness, "saw", b"%d" % number, expected=first))
        assert len([answer for answer in answers if answer]) == 1

    def test_writes_of_one_call_are_judged_apart_and_in_order(self, harness: StoreUnderTest) -> None:
        """One that does not hold stops none."""
        writes = [
            Write(name="saw", value=b"1", ttl=LONG, expected=0),
            Write(name="saw", value=b"2", ttl=LONG, expected=0),
            Write(name="axe", value=b"3", ttl=LONG),
        ]
        answers = harness.store.notes.write("tools", writes)
        assert [answer is None for answer in answers] == [False, True, False]
        assert {name: note.value for name, note in every(harness.store.notes, "tools").items()} == {
            "saw": b"1",
            "axe": b"3",
        }

    def test_many_notes_are_written_read_and_paged(self, harness: StoreUnderTest) -> None:
        """More than one round trip takes; all of them, and no more than about a page at a time."""
        names = [f"tool {number}" for number in range(2500)]
        answers = harness.store.notes.write(
            "tools", [Write(name=name, value=name.encode(), ttl=LONG) for name in names]
        )
        assert len({answer for answer in answers if answer}) == len(names)
        found = harness.store.notes.read("tools", [*names, "none"])
        assert {name: note.value for name, note in found.items()} == {name: name.encode() for name in names}
        assert every(harness.store.notes, "tools") == found
        assert len(harness.store.notes.page("tools", limit=100).notes) < 1000


class StoreContract(
    Submitting, Claiming, HoldingLeases, Settling, Saving, DeadLetters, Serving, Recovering, KeepingNotes
):
    """All of it."""
