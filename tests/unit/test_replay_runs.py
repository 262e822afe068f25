"""Managed replays: paced, tried on a few, stopped when they fail, resumed by anybody; and silenced groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_reliable.dead_letters import DeadLetter, DeadLetters, Filter, Worker
from celery_reliable.dead_letters.outgoing import Change, edited
from celery_reliable.dead_letters.runs import ALIVE, Plan, Replayed, Run, Runner, Runs
from celery_reliable.dead_letters.silences import Silence, Silences, is_silent
from celery_reliable.errors import ReliableError, ReplayRefused
from celery_reliable.events import Events
from celery_reliable.payloads import Envelope
from celery_reliable.stores.base import Job
from celery_reliable.stores.base import Run as Ran
from celery_reliable.stores.memory import MemoryStore

LONG = 1e6


class Killed(BaseException):
    """The operator's process is gone."""


class Shop:
    """A store full of letters, a clock that sleeping moves, and workers that take what is replayed while one sleeps."""

    def __init__(self, orders: int, *, dies_again: Callable[[int], bool] = lambda _: False) -> None:
        """Keep letters of ``orders`` jobs."""
        self.time = 1000.0
        self.store = MemoryStore(clock=lambda: self.time)
        self.dies_again = dies_again
        self.sent: list[Envelope] = []
        self.taken = 0
        self.slow = False
        self.objections: dict[str, str] = {}
        for number in range(orders):
            self.bury(number)
        self.time += 10

    def bury(self, number: int, **changes: Any) -> DeadLetter:
        """Let a job die."""
        job = Job(f"order:{number}", "declared", int(self.time * 1e6))
        self.store.submit(job, task_id=f"t{number}", ttl=LONG)
        return self.fail(job, f"t{number}", life=1, args=[number], **changes)

    def fail(self, job: Job, task_id: str, *, life: int, args: list[Any], **changes: Any) -> DeadLetter:
        """Claim and bury."""
        claim: Any = self.store.claim(
            job, task_id=task_id, life=0, token=task_id, ttl=LONG, max_deliveries=5, record_ttl=LONG
        )
        options = {"queue": "old", "routing_key": "old", "exchange": "", **changes.pop("options", {})}
        call = Envelope("shop.charge", task_id, json.dumps([args, {}, {}]), options=options)
        facts = {
            "reason": "exhausted",
            "envelope": call,
            "now": self.time,
            "job": job,
            "life": claim.life,
            "attempts": 1,
        }
        letter = DeadLetter.of(ValueError("no"), **{**facts, **changes})
        self.store.bury(
            job, task_id=task_id, fence=claim.fence, token=task_id, letter_id=letter.id, letter=letter.to_bytes(),
            letter_ttl=LONG, letter_max=1000,
        )  # fmt: skip
        return letter

    def letters(self, **changes: Any) -> DeadLetters:
        """Return the dead letters as an operator has them."""
        given = {"publish": self.sent.append, "objection": lambda call: self.objections.get(call.task, "")}
        return DeadLetters(self.store, events=Events(), **{**given, **changes})

    def sleep(self, seconds: float) -> None:
        """Let time pass; workers run what was sent."""
        self.time += seconds
        while not self.slow and self.taken < len(self.sent):
            self._run(self.sent[self.taken])
            self.taken += 1

    def _run(self, call: Envelope) -> None:
        [number, *_] = json.loads(call.body)[0]
        header = call.options["headers"]["reliable"] if "headers" in call.options else {}
        job = Job(f"order:{number}", "declared", header.get("s", 0))
        if self.dies_again(number):
            self.fail(job, call.task_id, life=2, args=[number])
            return
        claim: Any = self.store.claim(
            job, task_id=call.task_id, life=0, token="w", ttl=LONG, max_deliveries=5, record_ttl=LONG
        )
        self.store.complete(job, task_id=call.task_id, fence=claim.fence, token="w", outcome=None, marker_ttl=LONG)

    def is_run(self, number: int, call: Envelope) -> bool:
        """Give a message to a worker; tell whether its claim lets it run."""
        job = Job(f"order:{number}", "declared", call.options["headers"]["reliable"].get("s", 0))
        answer = self.store.claim(
            job, task_id=call.task_id, life=0, token=call.task_id, ttl=LONG, max_deliveries=5, record_ttl=LONG
        )
        return isinstance(answer, Ran)

    def runner(self, *, who: str = "ann", told: Any = lambda _run, _step: None, **changes: Any) -> Runner:
        """Return an operator at work."""
        return Runner(
            self.store, self.letters(**changes), who=who, told=told, clock=lambda: self.time, sleep=self.sleep
        )

    def begin(self, **changes: Any) -> Run:
        """Begin a run."""
        plan = Plan(**{"wanted": Filter(), **changes})
        return Runs(self.store).begin(plan, who="ann", total=self.runner().count(plan))

    def orders(self) -> list[int]:
        """Return which orders were sent, in order."""
        return [json.loads(call.body)[0][0] for call in self.sent]


class TestPace:
    """How fast, and how far."""

    def test_letters_are_sent_at_the_rate(self) -> None:
        """Ten a second: twenty letters take two seconds, not less."""
        shop = Shop(21)
        began = shop.time
        ended = shop.runner().work(shop.begin(rate=10.0))
        assert (ended.state, ended.replayed, ended.total) == ("done", 21, 21)
        assert shop.time - began == pytest.approx(2.0, abs=0.2)

    def test_limit_ends_it(self) -> None:
        """The newest come first."""
        shop = Shop(5)
        assert shop.runner().work(shop.begin(limit=2)).replayed == 2
        assert len(shop.sent) == 2

    def test_what_dies_while_it_runs_is_not_taken_in(self) -> None:
        """Else a call that cannot succeed would go round for ever."""
        shop = Shop(10, dies_again=lambda _: True)
        ended = shop.runner().work(shop.begin(rate=2.0, max_failures=1.0))
        assert (ended.replayed, len(shop.sent)) == (10, 10)
        assert shop.runner().work(ended).replayed == 10  # also when it is worked on again


class TestCanary:
    """A few first."""

    def test_failing_canaries_stop_it(self) -> None:
        """Nothing beyond them is sent, and the record says why."""
        shop = Shop(50, dies_again=lambda _: True)
        ended = shop.runner().work(shop.begin(canary=5))
        assert (ended.state, ended.replayed, ended.failed) == ("stopped", 5, 5)
        assert "5 of 5 died again" in ended.why
        assert Runs(shop.store).find(ended.id) == ended

    def test_good_canaries_let_the_rest_follow(self) -> None:
        """After they have ended, not before."""
        shop = Shop(50)
        sent_when: list[int] = []

        def note(_run: Run, step: Replayed | None) -> None:
            if step is not None:
                sent_when.append(shop.taken)

        ended = shop.runner(told=note).work(shop.begin(canary=5))
        assert (ended.state, ended.replayed) == ("done", 50)
        assert sent_when[5] >= 5

    def test_canaries_that_do_not_end_stop_it(self) -> None:
        """Nobody knows, so nothing goes on; it may be resumed."""
        shop = Shop(50)
        shop.slow = True
        ended = shop.runner().work(shop.begin(canary=5, canary_timeout=30.0))
        assert (ended.state, ended.replayed) == ("stopped", 5)
        assert "have not ended" in ended.why
        shop.slow = False
        assert shop.runner().work(ended).replayed == 50

    def test_too_many_failures_stop_it_later(self) -> None:
        """The first thirty do well, then everything fails."""
        shop = Shop(100, dies_again=lambda number: number < 70)
        ended = shop.runner().work(shop.begin(rate=20.0, max_failures=0.05))
        assert ended.state == "stopped"
        assert ended.replayed < 100
        assert ended.failed > 0.05 * (ended.failed + ended.succeeded)


class TestOperators:
    """Pause, resume, cancel, death."""

    def test_dead_operators_run_is_resumed_and_every_letter_goes_once(self) -> None:
        """Killed between two letters; the next one goes on with the rest."""
        shop = Shop(20)
        run = shop.begin()

        def kill(run: Run, _step: Replayed | None) -> None:
            if run.done == 7:
                raise Killed

        with pytest.raises(Killed):
            shop.runner(told=kill).work(run)
        shop.time += ALIVE + 1
        [left] = Runs(shop.store).all()
        assert left.is_left(now=shop.time)
        assert shop.runner(who="bob").work(left).state == "done"
        assert sorted(shop.orders()) == list(range(20))

    @pytest.mark.parametrize("sent", [0, 3, 10])
    def test_operator_killed_in_the_middle_of_a_publish_loses_and_doubles_nothing(self, sent: int) -> None:
        """Ten letters go at once; some of them were published, none is marked as published. The next one finishes them."""
        shop = Shop(10)
        run = shop.begin()

        def die(calls: Sequence[Envelope]) -> None:
            shop.sent.extend(calls[:sent])
            raise Killed

        with pytest.raises(Killed):
            shop.runner(publish_all=die).work(run)
        assert {letter.status for letter in shop.letters().search()} == {"replaying"}
        shop.time += ALIVE + 1
        assert shop.runner(who="bob").work(run).replayed == 10
        ran = [number for number, call in zip(shop.orders(), shop.sent, strict=True) if shop.is_run(number, call)]
        assert sorted(ran) == list(range(10))
        assert {letter.status for letter in shop.letters().search()} == {"replayed"}

    def test_letter_that_cannot_be_published_keeps_the_others_of_its_batch_not_back(self) -> None:
        """They go one by one then, and the run says which it was."""
        shop = Shop(5)

        def refuse(call: Envelope) -> None:
            if json.loads(call.body)[0] == [3]:
                raise ReliableError("task shop.charge as t3 cannot be published")
            shop.sent.append(call)

        with pytest.raises(ReliableError, match="t3"):
            shop.runner(publish=refuse).work(shop.begin())
        assert sorted(set(shop.orders())) == [0, 1, 2, 4]
        assert sorted(letter.status for letter in shop.letters().search()) == [*["replayed"] * 4, "replaying"]

    def test_paused_run_waits_and_goes_on(self) -> None:
        """Told from elsewhere, within a second."""
        shop = Shop(20)
        run, runs, states = shop.begin(rate=2.0), Runs(shop.store), []

        def watch(run: Run, step: Replayed | None) -> None:
            states.append(run.state)
            if run.done == 5 and step is not None:
                runs.wish(run.id, "pause")
            if step is None and states.count("paused") == 10:
                runs.wish(run.id, "run")

        assert shop.runner(told=watch).work(run).replayed == 20
        assert states.count("paused") == 10

    def test_cancelled_run_ends(self) -> None:
        """What was sent stays sent."""
        shop = Shop(50)
        run, runs = shop.begin(rate=5.0), Runs(shop.store)

        def cancel(run: Run, _step: Replayed | None) -> None:
            if run.done == 10:
                runs.wish(run.id, "cancel")

        ended = shop.runner(told=cancel).work(run)
        assert ended.state == "cancelled"
        assert 10 <= ended.replayed <= 16
        assert ended.is_over

    def test_of_two_who_work_on_one_run_the_first_stops(self) -> None:
        """It was thought dead, and frozen only."""
        shop = Shop(20)
        run = shop.begin(rate=1.0)

        def overtaken(run: Run, _step: Replayed | None) -> None:
            if run.done == 5:
                shop.runner(who="bob").work(replace(run))

        with pytest.raises(ReplayRefused, match="somebody else"):
            shop.runner(told=overtaken).work(run)
        assert sorted(shop.orders()) == list(range(20))

    def test_record_is_read_as_it_was_written(self) -> None:
        """With filter and change; the audit trail names who, when and what."""
        shop = Shop(3)
        plan = Plan(wanted=Filter(task="shop.*", ids=("a", "b")), change=Change(queue="q"), rate=5.0, canary=2)
        run = Runs(shop.store).begin(plan, who="ann", total=3)
        assert Runs(shop.store).all() == [run]
        shop.runner().work(shop.begin())
        for letter in shop.letters().search():
            assert letter.replays[-1].who == "ann"
            assert letter.replays[-1].run in {one.id for one in Runs(shop.store).all()}


class TestDryRun:
    """What would happen."""

    def reasons(self, shop: Shop, **changes: Any) -> list[str]:
        """Return why letters would be refused, "" for those that would go."""
        plan = Plan(**{"wanted": Filter(), **changes})
        return [step.refused.reason if step.refused else "" for step in shop.runner().plan(plan)]

    def test_nothing_is_sent_or_changed(self) -> None:
        """All letters stay dead."""
        shop = Shop(3)
        assert self.reasons(shop) == ["", "", ""]
        assert shop.sent == []
        assert {letter.status for letter in shop.letters().search()} == {"dead"}

    def test_key_that_is_done_meanwhile_is_told(self) -> None:
        """It was submitted again, and succeeded."""
        shop = Shop(2)
        shop.store.submit(Job("order:0", "declared"), task_id="again", ttl=LONG)
        assert sorted(self.reasons(shop)) == ["", "superseded"]

    def test_task_that_is_unknown_here_is_told_and_a_rename_helps(self) -> None:
        """The objection is about the call as it would be sent."""
        shop = Shop(1)
        shop.objections = {"shop.charge": "no such task"}
        assert self.reasons(shop) == ["no_task"]
        assert self.reasons(shop, change=Change(task="shop.charge_order")) == [""]

    def test_call_that_goes_round_is_refused_unless_forced(self) -> None:
        """Three replays are enough to see that it does not help."""
        shop = Shop(0)
        shop.bury(1, options={"headers": {"reliable_replays": 3}})
        assert self.reasons(shop) == ["looping"]
        assert self.reasons(shop, force=True) == [""]
        assert shop.runner().work(shop.begin()).refused == {"looping": 1}


class TestChange:
    """Elsewhere, and otherwise."""

    def test_redirected_call_goes_to_the_new_queue_alone(self) -> None:
        """Its old address goes; the original stays with the letter, and both are linked."""
        shop = Shop(1)
        shop.runner().work(shop.begin(change=Change(queue="new", task="shop.charge_order")))
        [call], [letter] = shop.sent, list(shop.letters().search())
        assert (call.task, call.options["queue"]) == ("shop.charge_order", "new")
        assert not {"routing_key", "exchange"} & call.options.keys()
        assert letter.original is not None
        assert (letter.original.task, letter.original.options["queue"]) == ("shop.charge", "old")
        assert (letter.replays[-1].new_id, letter.replays[-1].edited) == (call.task_id, True)

    def test_second_change_keeps_the_first_original(self) -> None:
        """What was submitted, not what somebody made of it."""
        letter, _ = edited(Shop(0).bury(1), Change(queue="one"))
        again, call = edited(letter, Change(args=[2]))
        assert call.options["queue"] == "one"
        assert again.original is not None
        assert again.original.options["queue"] == "old"


class TestSilence:
    """Groups that are known."""

    def letter(self, release: str) -> DeadLetter:
        """A letter of a release."""
        return Shop(0).bury(1, worker=Worker(release=release))

    @pytest.mark.parametrize(
        ("until", "release", "silent"),
        [
            ("", "1.0", True),
            ("1.10", "1.9", True),
            ("1.10", "1.10", False),
            ("1.10", "1.11.2", False),
            ("1.10", "", True),
            ("2.0", "2.0rc1", False),
        ],
    )
    def test_group_is_silent_until_a_release(self, until: str, release: str, *, silent: bool) -> None:
        """Numbers compare as numbers."""
        letter = self.letter(release)
        silences = Silences(MemoryStore().notes)
        silences.add(Silence(letter.error_fingerprint, "ann", 1.0, until))
        assert is_silent(letter, silences.all()) is silent
        silences.remove(letter.error_fingerprint)
        assert not is_silent(letter, silences.all())

    def test_group_names_its_releases(self) -> None:
        """Each once."""
        shop = Shop(0)
        for number, release in enumerate(("1.1", "1.0", "1.1", "")):
            shop.bury(number, worker=Worker(release=release))
        [group] = shop.letters().groups()
        assert (group.count, group.releases) == (4, ("1.0", "1.1"))
