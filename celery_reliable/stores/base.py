"""The store: what every back end must do, and the values it answers with.

A verb is atomic, judged by the server's clock, and answers with a small value. Durations are in seconds. Clients never
compare their own clock with a stored time. All verbs raise `StoreUnavailable` when the server cannot be reached
(whether the verb took effect is then unknown; every verb may be repeated), `StoreFull` when `submit` meets the memory
limit, and `StoreError` for everything else.

The record of a key moves like this::

    (none) ─submit─► waiting ─claim─► running ─complete─► done
                        ▲                │ ├─release(retry|snooze|interrupted)─► waiting
                        │                │ ├─bury─► dead ─submit by another id / replay─► waiting (next life)
                        └──lease over────┘ └─revoke mark + end─► revoked
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from celery_reliable.stores.notes import Notes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from celery_reliable.stores.outbox import Outbox

Kind = Literal["own", "given", "derived", "slot", "declared"]
"""Where a key comes from; it decides the life of the marker and where the record lies.

``own``: a task id made for this submission. ``given``: a task id that came with the call (chains, chords, explicit
ids). ``derived``: made from a parent's key or a scope. ``slot``: made by beat. ``declared``: the project's own key.
"""

ReleaseOutcome = Literal["retry", "snooze", "interrupted"]
SettleState = Literal["expired", "revoked", "skipped", "sent"]
ResendAnswer = Literal["no", "publish", "lost", "ended"]
LeadAnswer = Literal["no", "wait", "yes"]


UNRUN = ("expired", "skipped", "withdrawn")
"""Why a submission is over that ended without a run: as ``reason`` in what `Store.inspect` says of it."""
ALIVE = ("waiting", "running")
"""What `Store.inspect` says of a job that has not ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """One idempotency key and what is needed to find its record.

    ``stamp`` is the time of the first submission in microseconds (0 when unknown). Keys are hashed: a record is found
    by its key, the key cannot be read from the record.
    """

    key: str
    kind: Kind = "own"
    stamp: int = 0
    digest: bytes = field(default=b"", compare=False)

    def __post_init__(self) -> None:
        """Hash the key once: 16 bytes."""
        if not self.digest:
            object.__setattr__(self, "digest", hashlib.blake2b(self.key.encode(), digest_size=16).digest())


# --- answers of submit


@dataclass(frozen=True, slots=True)
class New:
    """A new life began. ``life`` goes into the message."""

    life: int


@dataclass(frozen=True, slots=True)
class Existing:
    """The key is alive, done, or was ended under this very id.

    ``task_id`` holds the key. ``publish`` says what the producer has to send: ``no`` nothing; ``same`` the message
    under the existing id (it may be the only copy); ``own`` the message under its own id (it carries a continuation,
    or the job is marked revoked; then ``life`` is the one that follows). ``outcome`` is the kept outcome of a done job,
    if any. ``replaced``: the waiting job took the new arguments.
    """

    task_id: str
    state: Literal["waiting", "running", "done", "dead", "revoked", "over"]
    publish: Literal["no", "same", "own"]
    life: int
    outcome: bytes | None = None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key belongs to a submission with another fingerprint."""

    existing_id: str


# --- answers of claim


@dataclass(frozen=True, slots=True)
class Run:
    """The right to run, under a lease.

    ``fence`` is larger than any before it for this key. ``attempt`` counts verdicts + 1, ``delivery`` counts claims
    that ended without one + 1. ``checks`` is the number of checkpoints and steps saved so far, ``saved`` their content
    (``state`` for the checkpoint, ``step:NAME`` for steps). ``envelope`` is given when newer arguments replaced those
    in the message (``on_conflict="replace"``).
    """

    fence: int
    life: int
    attempt: int
    delivery: int
    snoozes: int = 0
    checks: int = 0
    saved: Mapping[str, bytes] = field(default_factory=dict)
    envelope: bytes | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done: report ``outcome`` (b"" when none was kept)."""

    task_id: str
    outcome: bytes


@dataclass(frozen=True, slots=True)
class Dead:
    """This life of the job is a dead letter: report its failure again, do not run. ``letter`` may be gone (b"")."""

    letter_id: str
    letter: bytes


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else holds the lease, or a grace after an outage runs. Claim again after ``expires_in`` seconds."""

    expires_in: float


@dataclass(frozen=True, slots=True)
class NotYet:
    """The job is not due. Claim again after ``due_in`` seconds."""

    due_in: float


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Claimed ``max_deliveries`` times without a verdict: this claim may only bury. ``evidence`` are JSON texts."""

    fence: int
    life: int
    attempt: int
    delivery: int
    evidence: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Over:
    """This message's life has ended: ack it, report it, never run it.

    ``late``: no record, and the message is older than the marker's life. ``ended``: a later life exists.
    """

    state: Literal["ended", "revoked", "expired", "skipped", "withdrawn", "late"]


# --- answers of the settling verbs


@dataclass(frozen=True, slots=True)
class Settled:
    """The write was accepted.

    ``revoked``: the job was marked revoked while it ran and has ended as revoked (release only). ``lost_writes``: the
    fence was above the record's, which proves that the store lost writes in a fail-over. ``trimmed``: so many old
    letters had to go (bury only).
    """

    revoked: bool = False
    lost_writes: bool = False
    trimmed: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """Refused: the record has another fence or token, or is gone."""


# --- dead letters


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Raw letters, newest first, as (id, status, body). ``cursor`` is "" at the end."""

    letters: Sequence[tuple[str, str, bytes]]
    cursor: str


@dataclass(frozen=True, slots=True)
class Replaying:
    """The letter is marked, its key waits under the new id, the ledger has the envelope: now publish."""

    life: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not replayed or discarded: ``gone``, ``replayed`` (under ``new_id``) or ``superseded`` by a later life."""

    reason: Literal["gone", "replayed", "superseded"]
    new_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopening:
    """What `Store.replay` is to do with one letter: see there."""

    letter_id: str
    job: Job | None
    task_id: str
    envelope: bytes
    body: bytes
    fingerprint: str
    ttl: float
    label: str = ""


SubmitAnswer = New | Existing | Mismatch
ClaimAnswer = Run | Done | Dead | Busy | NotYet | Poisoned | Mismatch | Over
SettleAnswer = Settled | Stale


class _Submission(TypedDict):
    task_id: str
    ttl: float


class Submission(_Submission, total=False):
    """What a store is told of a submission, as keywords of its verb; `Store.submit` says what each is for.

    Left out they are: no fingerprint, no envelope, False, and 0 seconds; ``swept`` alone is True then.
    """

    fingerprint: str
    envelope: bytes | None
    canvas: bool
    replace: bool
    swept: bool
    delay: float
    delay_max: float


class BeginSubmit(Protocol):
    """A `Store.submit` in two steps, so that its caller can do other work while the server does its own.

    The call sends the submission, as far as that goes without waiting, and raises nothing. What it returns is called
    once, waits, and answers or raises as `Store.submit` does. Who never calls it does not know what became of the submission.
    """

    def __call__(self, job: Job, **submission: Unpack[Submission]) -> Callable[[], SubmitAnswer]:
        """Begin."""
        ...


class Store(Protocol):
    """What the rest of celery_reliable needs from a back end. One contract suite pins all of it for every back end."""

    @property
    def notes(self) -> Notes:
        """Small records that the fleet shares."""
        ...

    @property
    def outbox(self) -> Outbox | None:
        """Submissions that wait in the caller's own transaction; None for a store that is no database."""
        ...

    # --- submit

    def submit(self, job: Job, **submission: Unpack[Submission]) -> SubmitAnswer:
        """Accept a submission; keep ``envelope`` (if given) in the ledger under ``task_id`` until its end.

        For every kind but ``declared`` only the ledger entry is written, without a look at the record, and the answer
        is ``New(1)``: their ids are unique or their claim tells a repetition.

        For ``declared`` keys: no record, or a dead, expired or revoked one met by *another* task id, or a withdrawn one
        met by any: `New`, a new life (number + 1) with a new budget that keeps checkpoint and steps of a dead life. Else `Existing` or
        `Mismatch` (both fingerprints given and different). ``publish`` of `Existing` is: ``same`` for the same id
        again unless it runs under a live lease or has ended; ``own`` with a ledger entry of its own if ``canvas``, or
        if the job is marked revoked; ``same`` for another id when no ledger entry stands behind the job and it was
        either never claimed with its publish unconfirmed, or its lease is over, or nothing was published for 10
        minutes (doubling); else ``no``. ``replace``: while never claimed, the record takes the new fingerprint and
        envelope under the existing id, and claim hands them out; after it the answer is a plain `Existing`. The ledger
        keeps the first envelope, too. ``swept``: somebody publishes again what the ledger has and the broker lost; if not,
        no entry stands behind a job. ``delay``: a new life is due in so many seconds, and each replacement by another id
        begins them anew, up to ``delay_max`` seconds after the first; claim answers `NotYet` until then.
        ``ttl``: life of the waiting record. Raises `StoreFull` at the memory limit.
        """
        ...

    @property
    def begin_submit(self) -> BeginSubmit | None:
        """`submit` in two steps; None for a store that does no work of its own meanwhile."""
        ...

    def published(self, job: Job, *, task_id: str) -> None:
        """Note that the broker confirmed the publish of the waiting job ``task_id``."""
        ...

    def withdraw(self, job: Job, *, task_id: str) -> bool:
        """Take back a submission whose publish failed. True when nothing of it will run.

        A never-claimed record of ``task_id`` becomes a tombstone (a new life falls back to its dead one) and the
        ledger entry goes. False when somebody has claimed it, or another submission has joined it.
        """
        ...

    # --- claim and settle

    def claim(
        self,
        job: Job,
        *,
        task_id: str,
        life: int,
        fingerprint: str = "",
        token: str,
        ttl: float,
        max_deliveries: int,
        record_ttl: float,
        late_after: float = 0.0,
        first: bool = False,
    ) -> ClaimAnswer:
        """Ask for the right to run. Never re-entrant: the same token is `Busy` too.

        ``life`` 0 = the message carries none (sent from elsewhere). ``late_after`` > 0: a message without record and
        without ledger entry whose ``job.stamp`` is older than this many seconds is ``Over("late")``. ``first``: the
        caller knows no earlier delivery of this message; a hint that lets a back end try its cheapest path first and
        changes no answer. ``record_ttl`` is the life of the record while not done.

        A lease that is over is taken, with ``delivery`` + 1, unless a *grace* runs: when the pulse (see `renew`) is
        older than half of ``ttl``, nobody's lease ends for one more ``ttl``. A lease ended by `free` is taken at once.
        """
        ...

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """Extend leases, given as (job, token, ttl), in one round trip, and beat the fleet's pulse. Returns lost keys.

        Call it also with nothing to renew. A pulse that arrives later than ``pulse_ttl`` / 2 after the last one begins
        a grace of ``pulse_ttl``. A key whose record is gone, or has another token, is lost.
        """
        ...

    def complete(
        self,
        job: Job,
        *,
        task_id: str,
        fence: int,
        token: str,
        outcome: bytes | None,
        marker_ttl: float,
        entry_ends: bool = True,
    ) -> SettleAnswer:
        """Write the done marker (life ``marker_ttl`` from now) with ``outcome`` (None: none is kept).

        Accepted as long as no later claim was made, also when the lease is over. A fence above the record's is
        accepted (`Settled.lost_writes`). A missing record is `Stale`. A repetition after a lost answer may be told
        `Stale`, when the marker keeps no token: the message goes back and its next delivery finds `Done`. Checkpoint
        and steps go. ``entry_ends``: the
        ledger entry goes too; False when a continuation has still to be sent (then `settle` with ``sent``).
        """
        ...

    def release(
        self, job: Job, *, fence: int | None, token: str, outcome: ReleaseOutcome, delay: float, record_ttl: float
    ) -> SettleAnswer:
        """Give the right back; due again in ``delay`` seconds.

        ``retry`` counts an attempt, ``snooze`` a snooze, ``interrupted`` nothing. A job marked revoked ends instead.
        ``fence`` None: from outside, by a worker that stops and knows only the token of the claim its child made.
        """
        ...

    def bury(
        self,
        job: Job,
        *,
        task_id: str,
        fence: int,
        token: str,
        letter_id: str,
        letter: bytes,
        letter_ttl: float,
        letter_max: int,
        label: str = "",
    ) -> SettleAnswer:
        """Make the key dead and keep its letter, in one step. Repeating it is one letter.

        ``label`` says what the letter is sought by (see `letters`).

        The key is dead for ``letter_ttl``; checkpoint and steps are kept as long. Above ``letter_max`` letters, and
        beyond ``letter_ttl``, the oldest go and are counted in `letter_counts`.
        """
        ...

    def free(self, job: Job, *, token: str, evidence: bytes, keep: float) -> bool:
        """End a lease from outside, for a child seen to die; its evidence (JSON) is handed to a later `Poisoned`."""
        ...

    def settle(self, job: Job, *, task_id: str, state: SettleState, ttl: float) -> None:
        """End that submission's ledger entry; ``sent``: nothing else. A job waiting under that id ends as ``state``.

        A job that runs under it keeps its entry, and is marked as by `revoke`: it may still complete; if its holder is gone it ends.
        """
        ...

    def revoke(self, job: Job, *, task_id: str, ttl: float) -> None:
        """Revoke: a waiting job ends at once, a running one when its holder ends (it may still complete)."""
        ...

    # --- checkpoints and steps

    def save(
        self, job: Job, *, fence: int, token: str, name: str, body: bytes, ttl: float, number: int = 0
    ) -> SettleAnswer:
        """Keep ``body`` under ``name`` (``state`` or ``step:NAME``); a stale holder is refused.

        `Run.checks` becomes ``number`` (0: one more), so that a repetition after a lost answer counts once. A changed ``state`` sets the count of deliveries back.
        """
        ...

    # --- dead letters

    def keep_letter(
        self,
        letter_id: str,
        *,
        job: Job | None = None,
        letter: bytes,
        letter_ttl: float,
        letter_max: int,
        label: str = "",
    ) -> int:
        """Keep a letter that has no claim (undecodable, late, ...). Twice is once.

        ``job``: the key it names, if any. Returns how many old letters had to go. On a Cluster ``letter_max`` bounds
        each of the 64 shards.
        """
        ...

    def letter(self, letter_id: str) -> tuple[str, bytes] | None:
        """Return (status, body) of one letter; status is ``dead`` or ``replayed``."""
        ...

    def letters(
        self, cursor: str = "", *, limit: int = 500, labels: Collection[str] | None = None, until: float | None = None
    ) -> LetterPage:
        """Return one page of letters, newest first. Start with ""; stop when the answer's cursor is "".

        ``labels``: only letters that have one of these; it costs the same however many others there are, and the cursor
        serves for the same labels only. ``until``: begin with those buried at that moment (unix seconds).
        """
        ...

    def letter_labels(self) -> Sequence[str] | None:
        """Return the labels that letters have now, in no order; None when there are too many to look through.

        A store may keep letters under "" instead, when it has as many labels as it bears: look for them there, too.
        """
        ...

    def letter_counts(self) -> Mapping[str, int]:
        """Return ``kept``, and since ever ``buried``, ``replayed``, ``discarded``, ``trimmed``."""
        ...

    def replay(
        self,
        letter_id: str,
        job: Job | None,
        *,
        task_id: str,
        envelope: bytes,
        body: bytes,
        fingerprint: str,
        ttl: float,
        label: str = "",
    ) -> Replaying | Refused:
        """Mark the letter replayed (body and label become these) and make its key wait for ``task_id``, in one step.

        The ledger entry is written whatever the ledger setting. Refused when the letter is gone, was replayed, or its
        key has a later life or is done; a submission that expired, was skipped or withdrawn is no later life. The same ``task_id`` again replaces the letter's body, changes nothing else and
        answers `Replaying` again, so that a replayer that was cut off can go on. ``job`` None: a letter without a key.
        """
        ...

    def replay_all(self, reopenings: Sequence[Reopening]) -> list[Replaying | Refused]:
        """Do what `replay` does to each of several letters, each atomic by itself, where it can be in one round trip."""
        ...

    def discard(self, letter_id: str, job: Job | None) -> bool:
        """Drop one letter, and its key, checkpoint and steps if the key is still dead by it. False when it was gone."""
        ...

    # --- ledger

    def entry(self, job: Job, *, task_id: str) -> bytes | None:
        """Return the envelope that the ledger keeps of one submission, None when it keeps none (any more)."""
        ...

    def ledger(self, *, limit: int = 1000) -> Iterator[tuple[str, bytes]]:
        """Iterate over the ledger's (task id, envelope), in no order, in pages of about ``limit``."""
        ...

    def resend(self, job: Job, *, task_id: str, quiet: float, most: int, record_ttl: float) -> ResendAnswer:
        """Decide about a ledger entry whose message is nowhere to be seen, and note the decision.

        ``no``: nothing to do, or not yet: the entry is gone, its job runs under a live lease, is not due for ``quiet``
        seconds, or was published again less than ``quiet`` seconds ago (doubling each time). ``publish``: publish it
        again, under its own id; also when its job is done, since what follows it may not have been sent. ``lost``: that
        was done ``most`` times, and the last one had its time too. ``ended``: its job has ended otherwise, or was revoked and its holder is gone; the entry
        went.
        """
        ...

    # --- the fleet

    def lead(self, role: str, *, token: str, ttl: float, pulse_ttl: float) -> LeadAnswer:
        """Take a role that one worker of the fleet may have, or keep it for ``ttl`` more seconds.

        ``no``: somebody else has it. ``wait``: it is ours, but the fleet's renewals were away (see `renew`): nobody's
        lease may be taken and no held message restored. ``yes``: ours, and the fleet is well.
        """
        ...

    # --- the server

    def now(self) -> int:
        """Return the server's time in microseconds, from a measured offset at most a minute old."""
        ...

    def known_now(self) -> int | None:
        """Return the server's time as `now` would, but never ask the server: None while nothing was measured."""
        ...

    def inspect(self, job: Job) -> Mapping[str, str]:
        """Return the record in words, for people: ``state life fence attempt delivery snoozes task_id ...``; {} = none.

        While it runs ``holder`` is the token of the claim, and ``at_ms`` the end of its lease on the server's clock.
        """
        ...

    def findings(self) -> list[str]:
        """Return what is wrong with the server's configuration, one sentence each (eviction, version, persistence)."""
        ...

    def newer_layout(self) -> str:
        """Say that newer code has written here what this code would misread; "" if not, and when the store is away.

        A worker asks once, before it starts, and does not start on such a store.
        """
        ...

    def close(self) -> None:
        """Close connections. May be called twice, and by a process that never used them."""
        ...
