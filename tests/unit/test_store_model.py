"""Drive the memory store through random lives of one key, and hold what PROTOCOL.md promises against each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from celery_reliable.stores.base import (
    Busy,
    ClaimAnswer,
    Dead,
    Done,
    Existing,
    Job,
    New,
    Poisoned,
    Replaying,
    Run,
    SettleAnswer,
    Settled,
    Stale,
)
from celery_reliable.stores.memory import MemoryStore

TTL = 10.0
FOREVER = 1e9
MAX_DELIVERIES = 3
JOB = Job("order:1", kind="declared")


@dataclass(frozen=True)
class Message:
    """What a producer published."""

    task_id: str
    life: int


@dataclass(frozen=True)
class Claim:
    """What a worker holds, or believes to hold."""

    message: Message
    fence: int
    token: str
    may_only_bury: bool


@dataclass
class Told:
    """What the machine concludes from the answers alone."""

    life: int = 0
    attempts: int = 0
    lost: int = 0
    holder: Claim | None = None
    freed: bool = False
    leased_until: float = 0.0
    revoked: bool = False
    ended: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    outcomes: dict[int, int] = field(default_factory=dict)

    def begin(self, *, life: int) -> None:
        """Start counting afresh, if that life is not the one counted so far."""
        if life != self.life:
            self.life, self.attempts, self.lost, self.holder, self.revoked = life, 0, 0, None, False


class LivesOfOneKey(RuleBasedStateMachine):
    """Producers, workers, keepers and operators, in any order, with messages delivered any number of times."""

    messages = Bundle("messages")
    claims = Bundle("claims")
    letters = Bundle("letters")

    @initialize()
    def open(self) -> None:
        """Begin with an empty store."""
        self.seconds = 1_800_000_000.0
        self.store = MemoryStore(clock=lambda: self.seconds)
        self.told = Told()
        self.number = 0
        self.last_fence = 0

    def fresh(self, prefix: str) -> str:
        """Return a name that was never used."""
        self.number += 1
        return f"{prefix}{self.number}"

    # --- time

    @rule(seconds=strategies.sampled_from([1.0, TTL * 0.6, TTL * 1.1, TTL * 3]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    @rule()
    def beat(self) -> None:
        """The fleet is heard, though it holds nothing of this key."""
        self.store.renew([], pulse_ttl=TTL)

    # --- producers

    @rule(target=messages, canvas=strategies.booleans())
    def submit(self, *, canvas: bool) -> object:
        """Submit under a new id and publish what the store says."""
        task_id = self.fresh("T")
        answer = self.store.submit(JOB, task_id=task_id, envelope=task_id.encode(), canvas=canvas, ttl=FOREVER)
        return self.publish(task_id, answer)

    @rule(target=messages, message=messages)
    def submit_again(self, message: Message) -> object:
        """Submit under an id that was used before."""
        task_id = message.task_id
        answer = self.store.submit(JOB, task_id=task_id, envelope=task_id.encode(), ttl=FOREVER)
        return self.publish(task_id, answer)

    def publish(self, task_id: str, answer: object) -> object:
        """Return the message that the answer asks for, if any."""
        if isinstance(answer, New):
            assert answer.life not in self.told.ended, "a life number was given out twice"
            assert self.state() == "waiting"
            return Message(task_id, answer.life)
        assert isinstance(answer, Existing)
        if answer.publish != "own" and answer.task_id != task_id:
            self.told.joined.add(answer.life)
        if answer.publish == "no":
            return multiple()
        assert answer.publish == "own" or answer.state in {"waiting", "running"}
        return Message(task_id if answer.publish == "own" else answer.task_id, answer.life)

    @rule(message=messages)
    def withdraw(self, message: Message) -> None:
        """A producer whose publish failed takes its submission back, late perhaps."""
        holder = self.store.inspect(JOB).get("task_id") == message.task_id
        life = int(self.store.inspect(JOB).get("life", "0"))
        before = self.state()
        withdrawn = self.store.withdraw(JOB, task_id=message.task_id)
        if not holder:
            self.told.settled.add(message.task_id)
        if withdrawn and holder and before == "waiting":
            assert life not in self.told.joined, "a job was withdrawn from those who joined it"
            self.told.ended.add(life)
            self.told.withdrawn.add(life)
        if before == "running" and holder:
            assert not withdrawn
            assert self.state() == "running"

    # --- workers

    @rule(target=claims, message=messages)
    def claim(self, message: Message) -> object:
        """A copy of a message is delivered."""
        token = self.fresh("token")
        answer = self.store.claim(
            JOB,
            task_id=message.task_id,
            life=message.life,
            token=token,
            ttl=TTL,
            max_deliveries=MAX_DELIVERIES,
            record_ttl=FOREVER,
        )
        if not isinstance(answer, Run | Poisoned):
            self.check_refusal(message, answer)
            return multiple()
        self.check_run(message, answer)
        claim = Claim(message, answer.fence, token, may_only_bury=isinstance(answer, Poisoned))
        self.told.holder, self.told.leased_until, self.told.freed = claim, self.seconds + TTL, False
        return claim

    def check_run(self, message: Message, answer: Run | Poisoned) -> None:
        """A right to run is given to one at a time, under a new fence, with true counts."""
        told = self.told
        assert told.holder is None or self.seconds >= told.leased_until, "two hold the key at once"
        assert answer.fence > self.last_fence
        assert answer.life not in told.ended, "a message of an ended life runs"
        assert not (told.revoked and answer.life == told.life), "a revoked job runs"
        assert answer.life == message.life or message.life in told.withdrawn, "a message runs in a life not its own"
        told.lost += told.holder is not None
        told.begin(life=answer.life)
        self.last_fence = answer.fence
        assert answer.attempt == told.attempts + 1
        if isinstance(answer, Run):
            assert answer.delivery == told.lost + 1
        assert isinstance(answer, Poisoned) == (told.lost >= MAX_DELIVERIES)

    def check_refusal(self, message: Message, answer: ClaimAnswer) -> None:
        """A refusal has a reason that the answers so far explain."""
        if isinstance(answer, Busy):
            assert self.told.holder is not None
            assert 0 < answer.expires_in <= TTL
        if isinstance(answer, Done):
            assert self.told.outcomes
        if isinstance(answer, Dead):
            assert self.state() == "dead"
        if self.told.revoked and self.told.holder is not None and self.state() == "revoked":
            assert self.seconds >= self.told.leased_until, "a live holder was ended by a revoke"
            self.end_life()

    def may_write(self, claim: Claim) -> bool:
        """Say whether the store must accept what this claim writes."""
        return claim == self.told.holder and not claim.may_only_bury

    @rule(claim=claims)
    def keep(self, claim: Claim) -> None:
        """A keeper renews, too late perhaps."""
        lost = self.store.renew([(JOB, claim.token, TTL)], pulse_ttl=TTL)
        if claim == self.told.holder and not self.told.freed:
            assert lost == []
            self.told.leased_until = self.seconds + TTL
        else:
            assert lost == [JOB.key]

    @rule(claim=claims)
    def complete(self, claim: Claim) -> None:
        """A worker completes, too late or twice perhaps."""
        answer = self.store.complete(
            JOB,
            task_id=claim.message.task_id,
            fence=claim.fence,
            token=claim.token,
            outcome=claim.token.encode(),
            marker_ttl=FOREVER,
        )
        if self.told.outcomes.get(self.told.life) == claim.fence:
            assert answer == Settled()
            return
        self.expect_write(claim, answer, allowed=self.may_write(claim))
        if answer == Settled():
            assert self.told.life not in self.told.outcomes, "two outcomes were committed for one life"
            self.told.outcomes[self.told.life] = claim.fence
            self.end_life()

    @rule(
        claim=consumes(claims),
        outcome=strategies.sampled_from(["retry", "snooze", "interrupted"]),
        delay=strategies.sampled_from([0.0, TTL]),
    )
    def release(self, claim: Claim, outcome: Literal["retry", "snooze", "interrupted"], delay: float) -> None:
        """A worker gives the right back; consumed, since a repeated release is told yes again by design."""
        answer = self.store.release(
            JOB, fence=claim.fence, token=claim.token, outcome=outcome, delay=delay, record_ttl=FOREVER
        )
        self.expect_write(claim, answer, allowed=self.may_write(claim))
        if isinstance(answer, Stale):
            return
        assert answer == Settled(revoked=self.told.revoked)
        self.told.attempts += outcome == "retry"
        self.told.holder = None
        if self.told.revoked:
            self.end_life()

    @rule(claim=claims, body=strategies.sampled_from([b"one", b"two"]))
    def save(self, claim: Claim, body: bytes) -> None:
        """A worker saves a step, which resets no count."""
        answer = self.store.save(JOB, fence=claim.fence, token=claim.token, name="step:mail", body=body, ttl=FOREVER)
        self.expect_write(claim, answer, allowed=self.may_write(claim))

    @rule(target=letters, claim=consumes(claims))
    def bury(self, claim: Claim) -> object:
        """A worker gives the job up."""
        letter_id = f"letter of {claim.token}"
        answer = self.store.bury(
            JOB,
            task_id=claim.message.task_id,
            fence=claim.fence,
            token=claim.token,
            letter_id=letter_id,
            letter=b"letter",
            letter_ttl=FOREVER,
            letter_max=1000,
        )
        self.expect_write(claim, answer, allowed=claim == self.told.holder)
        if isinstance(answer, Stale):
            assert self.store.letter(letter_id) is None
            return multiple()
        self.end_life()
        return letter_id

    @rule(claim=claims)
    def free(self, claim: Claim) -> None:
        """A parent saw the child of this claim die."""
        freed = self.store.free(JOB, token=claim.token, evidence=b"{}", keep=FOREVER)
        assert freed == (claim == self.told.holder)
        if freed:
            self.told.leased_until, self.told.freed = self.seconds, True

    def expect_write(self, claim: Claim, answer: SettleAnswer, *, allowed: bool) -> None:
        """Only the newest claim writes."""
        assert isinstance(answer, Settled if allowed else Stale), f"{claim} was told {answer}"

    def end_life(self) -> None:
        """Note that the present life is over."""
        self.told.ended.add(self.told.life)
        self.told.holder = None

    # --- operators

    @rule(message=messages)
    def revoke(self, message: Message) -> None:
        """Revoke a task id."""
        before = self.store.inspect(JOB)
        if before.get("task_id") != message.task_id:
            self.told.settled.add(message.task_id)
        self.store.revoke(JOB, task_id=message.task_id, ttl=FOREVER)
        if before.get("task_id") != message.task_id:
            assert self.store.inspect(JOB) == before or not before
        elif before["state"] == "waiting":
            assert self.state() == "revoked"
            self.told.ended.add(int(before["life"]))
        elif before["state"] == "running":
            self.told.revoked = True

    @rule(message=messages)
    def expire(self, message: Message) -> None:
        """A worker finds that the message has expired."""
        before = self.store.inspect(JOB)
        if before.get("task_id") != message.task_id:
            self.told.settled.add(message.task_id)
        self.store.settle(JOB, task_id=message.task_id, state="expired", ttl=FOREVER)
        if before.get("task_id") == message.task_id and before["state"] == "waiting":
            self.told.ended.add(int(before["life"]))
        elif before.get("task_id") == message.task_id and before["state"] == "running":
            self.told.revoked = True  # as by a revoke: whoever finds its holder gone ends it

    @rule(target=messages, letter_id=letters)
    def replay(self, letter_id: str) -> object:
        """Replay a letter, replayed already perhaps."""
        status_before = self.store.letter(letter_id)
        task_id = self.fresh("R")
        answer = self.store.replay(
            letter_id, JOB, task_id=task_id, envelope=task_id.encode(), body=b"again", fingerprint="", ttl=FOREVER
        )
        if not isinstance(answer, Replaying):
            return multiple()
        assert status_before == ("dead", b"letter"), "a letter was replayed twice"
        assert answer.life not in self.told.ended
        return Message(task_id, answer.life)

    # --- what holds after every step

    def state(self) -> str:
        """Return the state of the key in words."""
        return self.store.inspect(JOB).get("state", "none")

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def open_jobs_stand_in_the_ledger(self) -> None:
        """P1: as long as a job is not at its end, its entry is there to publish it again.

        Not for an id that was settled while another held the key: its entry went, and nothing but its worker's own
        memory keeps its message from opening the next life.
        """
        record = self.store.inspect(JOB)
        if record.get("state") in {"waiting", "running"} and record["task_id"] not in self.told.settled:
            assert record["task_id"] in dict(self.store.ledger())

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def holder_is_known(self) -> None:
        """P9: the record runs exactly as long as somebody may write."""
        assert (self.state() == "running") == (self.told.holder is not None)


LivesOfOneKey.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLivesOfOneKey = LivesOfOneKey.TestCase
