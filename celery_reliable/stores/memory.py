"""Keep jobs, dead letters and the ledger in the memory of one process.

The same contract as the Redis store, in plain Python: for unit tests, eager mode and ``memory://``. Nothing is shared
with another process, and nothing outlives this one.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from celery_reliable.stores.base import (
    Busy,
    ClaimAnswer,
    Dead,
    Done,
    Existing,
    Job,
    LeadAnswer,
    LetterPage,
    Mismatch,
    New,
    NotYet,
    Over,
    Poisoned,
    Refused,
    ReleaseOutcome,
    Replaying,
    ResendAnswer,
    Run,
    SettleAnswer,
    Settled,
    SettleState,
    Stale,
    SubmitAnswer,
)
from celery_reliable.stores.notes import MemoryNotes

_TOMBSTONE_TTL = 86400.0  # seconds: withdraw names no ttl; no copy of an unclaimed message is expected after a day
_REPUBLISH_AFTER = 600.0  # seconds without a publish, doubling, after which a job without ledger entry is sent again
_EVIDENCE_KEPT = 10  # newest texts: enough to see a pattern, bounded

_EndReason = Literal["revoked", "expired", "skipped", "withdrawn"]
_NOTHING: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of one key. ``life`` 0: ended before anything was known of its life."""

    state: Literal["waiting", "running", "done", "dead", "over"]
    task_id: str
    life: int
    ends: float
    fingerprint: str = ""
    withdrawn_stamp: int = 0
    spent_life: int = 0  # the highest life ever given out, when a withdrawal fell back to an older one
    due_at: float = -math.inf
    claimed: bool = False
    confirmed: bool = False
    joined: bool = False  # others were told that this job is theirs too
    published_at: float = -math.inf
    republish_after: float = _REPUBLISH_AFTER
    envelope: bytes | None = None
    fence: int = 0
    token: str = ""
    lease_until: float = -math.inf
    freed: bool = False
    poisoned: bool = False
    revoke_ttl: float | None = None  # given: marked revoked while running; the life of the tombstone to come
    attempts: int = 0
    lost: int = 0
    snoozes: int = 0
    checks: int = 0
    saved: Mapping[str, bytes] = field(default_factory=lambda: _NOTHING)
    evidence: tuple[bytes, ...] = ()
    outcome: bytes = b""
    letter_id: str = ""
    reason: _EndReason = "withdrawn"
    fallback: _Record | None = None

    def leased(self, *, now: float) -> bool:
        """Say whether a live lease protects it."""
        return self.state == "running" and not self.freed and self.lease_until > now

    @property
    def ended(self) -> bool:
        """Say whether this life has ended, well or not."""
        return self.state in {"done", "dead", "over"}

    def contradicts(self, fingerprint: str) -> bool:
        """Say whether both fingerprints are given and different."""
        return bool(fingerprint and self.fingerprint) and fingerprint != self.fingerprint

    def has_ended_for(self, *, task_id: str, life: int) -> bool:
        """Say whether a message belongs to the life that ended here, rather than to one that begins."""
        if life == 0 or self.life == 0:
            return task_id == self.task_id
        return self.state == "dead" or life <= self.life

    def next_life(self, *, task_id: str, fingerprint: str, life: int, ends: float) -> _Record:
        """Return the first record of the life after this one; only a dead life leaves its progress behind."""
        dead = self.state == "dead"
        return _Record(
            state="waiting",
            task_id=task_id,
            life=max(life, self.life + 1, self.spent_life + 1),
            ends=ends,
            fingerprint=fingerprint,
            fence=self.fence,
            checks=self.checks if dead else 0,
            saved=self.saved if dead else _NOTHING,
            fallback=self if dead else None,
        )


@dataclass(frozen=True, slots=True)
class _Pulse:
    """When the fleet was last heard, and from when until when no ended lease may be taken."""

    last: float = -math.inf
    gap_from: float = -math.inf
    gap_until: float = -math.inf

    def beat(self, *, now: float, ttl: float) -> _Pulse:
        """Hear the fleet; after a silence of half a ttl a grace begins."""
        if now - self.last > ttl / 2:
            return _Pulse(last=now, gap_from=now, gap_until=now + ttl)
        return replace(self, last=now)

    def meet_ended_lease(self, *, now: float, ttl: float) -> _Pulse:
        """Begin a grace when the fleet is silent and this silence has had none yet."""
        silent = now - self.last > ttl / 2
        if silent and now >= self.gap_until and self.gap_from <= self.last:
            return replace(self, gap_from=now, gap_until=now + ttl)
        return self


@dataclass(frozen=True, slots=True)
class _Letter:
    """One dead letter. ``number`` orders by burial; ``life`` is 0 for one that was kept without a claim."""

    number: int
    body: bytes
    ends: float
    life: int = 0
    status: Literal["dead", "replayed"] = "dead"
    new_id: str = ""
    new_life: int = 0


@dataclass(slots=True)
class _Letters:
    """All dead letters, oldest first, bounded by count and age."""

    kept: dict[str, _Letter] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("buried", "replayed", "discarded", "trimmed"), 0)
    )

    def put(self, letter_id: str, *, body: bytes, now: float, ttl: float, limit: int, life: int = 0) -> int:
        """Keep a letter once; return how many old ones had to go."""
        before = self.counts["trimmed"]
        self.forget_old(now=now)
        if letter_id in self.kept:
            return 0
        self.counts["buried"] += 1
        self.kept[letter_id] = _Letter(number=self.counts["buried"], body=body, ends=now + ttl, life=life)
        self._drop(list(self.kept)[: max(0, len(self.kept) - limit)])
        return self.counts["trimmed"] - before

    def forget_old(self, *, now: float) -> None:
        """Drop what is beyond its age."""
        self._drop([letter_id for letter_id, letter in self.kept.items() if letter.ends <= now])

    def _drop(self, letter_ids: list[str]) -> None:
        for letter_id in letter_ids:
            del self.kept[letter_id]
        self.counts["trimmed"] += len(letter_ids)

    def find(self, letter_id: str, *, now: float) -> _Letter | None:
        """Return one letter, unless it is gone."""
        self.forget_old(now=now)
        return self.kept.get(letter_id)

    def mark_replayed(self, letter_id: str, *, body: bytes, new_id: str, new_life: int) -> None:
        """Note under which id and life the letter's job goes on."""
        letter = self.kept[letter_id]
        self.kept[letter_id] = replace(letter, status="replayed", body=body, new_id=new_id, new_life=new_life)
        self.counts["replayed"] += 1

    def discard(self, letter_id: str) -> None:
        """Drop one letter by hand."""
        del self.kept[letter_id]
        self.counts["discarded"] += 1

    def page(self, cursor: str, *, limit: int) -> LetterPage:
        """Return letters older than the cursor, newest first."""
        below = int(cursor) if cursor else math.inf
        older = [(letter_id, letter) for letter_id, letter in reversed(self.kept.items()) if letter.number < below]
        page = older[:limit]
        rows = [(letter_id, letter.status, letter.body) for letter_id, letter in page]
        return LetterPage(letters=rows, cursor=str(page[-1][1].number) if len(older) > limit else "")


class MemoryStore:
    """The store of one process. Every verb is atomic under one lock and judged by one clock.

    ``clock`` returns seconds since the epoch and stands for the server's clock.

    .. versionadded:: 0.1
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Begin empty."""
        self.notes = MemoryNotes(clock=clock)
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[bytes, _Record] = {}
        self._entries: dict[str, bytes] = {}
        self._letters = _Letters()
        self._pulse = _Pulse()
        self._resent: dict[str, tuple[int, float]] = {}
        self._roles: dict[str, tuple[str, float]] = {}

    # --- submit

    def submit(
        self,
        job: Job,
        *,
        task_id: str,
        fingerprint: str = "",
        envelope: bytes | None = None,
        canvas: bool = False,
        replace: bool = False,
        ttl: float,
    ) -> SubmitAnswer:
        """Accept a submission, or say which job holds the key."""
        with self._lock:
            if job.kind != "declared":
                self._note(task_id, envelope)
                return New(life=1)
            now = self._clock()
            record = self._find(job, now=now)
            if record is None or _may_begin(record, task_id=task_id):
                return self._begin(
                    job, record, now=now, task_id=task_id, fingerprint=fingerprint, envelope=envelope, ttl=ttl
                )
            replaced = replace and not (record.claimed or record.ended)
            if replace:
                record = self._replace(job, record, fingerprint=fingerprint, envelope=envelope)
            elif record.contradicts(fingerprint):
                return Mismatch(existing_id=record.task_id)
            found = self._join(job, record, now=now, task_id=task_id, envelope=envelope, canvas=canvas)
            return dataclasses.replace(found, replaced=True) if replaced else found

    def _begin(
        self,
        job: Job,
        record: _Record | None,
        *,
        now: float,
        task_id: str,
        fingerprint: str,
        envelope: bytes | None,
        ttl: float,
    ) -> New:
        first = record or _Record(state="over", task_id="", life=0, ends=now)
        fresh = first.next_life(task_id=task_id, fingerprint=fingerprint, life=1, ends=now + ttl)
        self._records[job.digest] = replace(fresh, published_at=now)
        self._note(task_id, envelope)
        return New(life=fresh.life)

    def _replace(self, job: Job, record: _Record, *, fingerprint: str, envelope: bytes | None) -> _Record:
        """Let the newest arguments win until the first claim."""
        if record.claimed or record.ended:
            return record
        return self._keep(job, replace(record, fingerprint=fingerprint, envelope=envelope))

    def _join(
        self, job: Job, record: _Record, *, now: float, task_id: str, envelope: bytes | None, canvas: bool
    ) -> Existing:
        publish = _publish(record, task_id=task_id, canvas=canvas, now=now, backed=record.task_id in self._entries)
        if publish == "same":
            record = self._keep(job, _sent_again(record, now=now))
        if publish != "own" and task_id != record.task_id:
            record = self._keep(job, replace(record, joined=True))
        if publish == "own" or (publish == "same" and task_id == record.task_id):
            self._note(task_id, envelope)
        later = publish == "own" and record.revoke_ttl is not None
        return Existing(
            task_id=record.task_id,
            state=_state_for_people(record),
            publish=publish,
            life=record.life + 1 if later else record.life,
            outcome=record.outcome if record.state == "done" else None,
        )

    def published(self, job: Job, *, task_id: str) -> None:
        """Note that the broker has the message of the waiting job ``task_id``."""
        with self._lock:
            record = self._find(job, now=self._clock())
            if record is not None and record.task_id == task_id:
                self._keep(job, replace(record, confirmed=True))

    def withdraw(self, job: Job, *, task_id: str) -> bool:
        """Take back a submission whose publish failed. True when nothing of it will run."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            if record is None:
                tombstone = _Record(
                    state="over", task_id=task_id, life=0, ends=now + _TOMBSTONE_TTL, withdrawn_stamp=job.stamp
                )
                self._end(job, tombstone, task_id=task_id)
            elif record.task_id != task_id or record.state == "over":
                self._entries.pop(task_id, None)
            elif record.claimed or record.ended or record.joined:
                return False
            else:
                self._end(job, _withdrawn(record, now=now, stamp=job.stamp), task_id=task_id)
            return True

    # --- claim

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
        """Ask for the right to run."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            if record is None and self._is_late(job, task_id=task_id, now=now, late_after=late_after):
                return Over("late")
            held_for = self._held_for(record, now=now, ttl=ttl)
            record = self._end_if_marked(job, record, held_for=held_for, now=now)
            refusal = self._refusal(
                record,
                task_id=task_id,
                life=life,
                fingerprint=fingerprint,
                stamp=job.stamp,
                held_for=held_for,
                now=now,
            )
            if refusal is not None:
                return refusal
            ready = _ready(record, task_id=task_id, life=life, fingerprint=fingerprint, now=now)
            return self._start(
                job, ready, token=token, ttl=ttl, max_deliveries=max_deliveries, record_ttl=record_ttl, now=now
            )

    def _is_late(self, job: Job, *, task_id: str, now: float, late_after: float) -> bool:
        known_age = job.stamp > 0 and late_after > 0
        return known_age and now - job.stamp / 1e6 > late_after and task_id not in self._entries

    def _held_for(self, record: _Record | None, *, now: float, ttl: float) -> float:
        """Return for how many seconds nobody may take the key; an ended lease may begin a grace."""
        if record is None or record.state != "running" or record.freed:
            return 0.0
        if record.lease_until > now:
            return record.lease_until - now
        self._pulse = self._pulse.meet_ended_lease(now=now, ttl=ttl)
        return max(0.0, self._pulse.gap_until - now)

    def _end_if_marked(self, job: Job, record: _Record | None, *, held_for: float, now: float) -> _Record | None:
        """End a job that was revoked while it ran and whose holder is gone."""
        if record is None or record.state != "running" or record.revoke_ttl is None or held_for > 0:
            return record
        return self._end(job, _over(record, reason="revoked", ends=now + record.revoke_ttl), task_id=record.task_id)

    def _refusal(
        self,
        record: _Record | None,
        *,
        task_id: str,
        life: int,
        fingerprint: str,
        stamp: int,
        held_for: float,
        now: float,
    ) -> ClaimAnswer | None:
        """Return why the message may not run now, or None."""
        if record is None:
            return None
        if 0 < life < record.life:
            return Over("ended")
        if record.state in {"dead", "over"}:
            return self._refusal_of_ended(record, task_id=task_id, life=life, stamp=stamp)
        # a replaced record has the fingerprint of arguments that its own message does not carry
        if record.envelope is None and record.contradicts(fingerprint):
            return Mismatch(existing_id=record.task_id)
        if record.state == "done":
            return Done(task_id=record.task_id, outcome=record.outcome)
        return _wait(record, held_for=held_for, now=now)

    def _refusal_of_ended(self, record: _Record, *, task_id: str, life: int, stamp: int) -> ClaimAnswer | None:
        # a later try of the same submission has another stamp; its entry is there, the withdrawn one's went
        withdrawn = record.state == "over" and record.reason == "withdrawn"
        submitted_again = withdrawn and (task_id in self._entries or stamp != record.withdrawn_stamp)
        if submitted_again or not record.has_ended_for(task_id=task_id, life=life):
            return None
        if record.state == "over":
            return Over(record.reason)
        letter = self._letters.find(record.letter_id, now=self._clock())
        return Dead(letter_id=record.letter_id, letter=letter.body if letter is not None else b"")

    def _start(
        self,
        job: Job,
        record: _Record,
        *,
        token: str,
        ttl: float,
        max_deliveries: int,
        record_ttl: float,
        now: float,
    ) -> Run | Poisoned:
        """Give the right to run, or only to bury, under a new fence."""
        lost = record.lost + (1 if record.state == "running" else 0)
        record = self._keep(
            job,
            replace(
                record,
                state="running",
                claimed=True,
                fallback=None,
                lost=lost,
                poisoned=lost >= max_deliveries,
                fence=max(record.fence + 1, int(now * 1e6)),
                token=token,
                freed=False,
                lease_until=now + ttl,
                due_at=-math.inf,
                ends=now + max(ttl, record_ttl),
            ),
        )
        return _poisoned(record) if record.poisoned else _run(record)

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """Extend leases and beat the fleet's pulse; return the keys that are lost."""
        with self._lock:
            now = self._clock()
            self._pulse = self._pulse.beat(now=now, ttl=pulse_ttl)
            return [job.key for job, token, ttl in claims if not self._extend(job, token=token, ttl=ttl, now=now)]

    def _extend(self, job: Job, *, token: str, ttl: float, now: float) -> bool:
        record = self._find(job, now=now)
        if record is None or record.state != "running" or record.token != token or record.freed:
            return False
        self._keep(job, replace(record, lease_until=now + ttl, ends=max(record.ends, now + ttl)))
        return True

    # --- settle

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
        """Write the done marker."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            answer = _judge(record, fence=fence, token=token, repeats="done")
            if record is None or isinstance(answer, Stale):
                return Stale()
            if entry_ends:
                self._entries.pop(task_id, None)
            if record.state != "done" or answer.lost_writes:
                self._keep(job, _done(record, fence=fence, token=token, outcome=outcome or b"", ends=now + marker_ttl))
            return answer

    def release(
        self, job: Job, *, fence: int | None, token: str, outcome: ReleaseOutcome, delay: float, record_ttl: float
    ) -> SettleAnswer:
        """Give the right back; due again in ``delay`` seconds."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            if fence is None:
                fence = record.fence if record else 0
            answer = _judge(record, fence=fence, token=token, repeats="waiting")
            if record is None or isinstance(answer, Stale):
                return Stale()
            if record.state == "waiting" and not answer.lost_writes:
                return answer
            if record.revoke_ttl is not None:
                self._end(job, _over(record, reason="revoked", ends=now + record.revoke_ttl), task_id=record.task_id)
                return replace(answer, revoked=True)
            self._keep(
                job,
                replace(
                    record,
                    state="waiting",
                    attempts=record.attempts + (outcome == "retry"),
                    snoozes=record.snoozes + (outcome == "snooze"),
                    fence=fence,
                    token=token,
                    due_at=now + delay,
                    published_at=now + delay,
                    ends=now + max(delay, record_ttl),
                ),
            )
            return answer

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
    ) -> SettleAnswer:
        """Make the key dead and keep its letter, in one step."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            answer = _judge(record, fence=fence, token=token, repeats="dead", may_only_bury=True)
            if record is None or isinstance(answer, Stale):
                return Stale()
            self._entries.pop(task_id, None)
            if record.state == "dead" and not answer.lost_writes:
                return answer
            trimmed = self._letters.put(
                letter_id, body=letter, now=now, ttl=letter_ttl, limit=letter_max, life=record.life
            )
            dead = replace(record, state="dead", fence=fence, token=token, letter_id=letter_id, ends=now + letter_ttl)
            self._keep(job, replace(dead, revoke_ttl=None, fallback=None))
            return replace(answer, trimmed=trimmed)

    def free(self, job: Job, *, token: str, evidence: bytes, keep: float) -> bool:
        """End a lease from outside, for a child seen to die."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            if record is None or record.state != "running" or record.token != token:
                return False
            if not record.freed:
                texts = (*record.evidence, evidence)[-_EVIDENCE_KEPT:]
                self._keep(job, replace(record, freed=True, evidence=texts, ends=max(record.ends, now + keep)))
            return True

    def settle(self, job: Job, *, task_id: str, state: SettleState, ttl: float) -> None:
        """End a submission's ledger entry; a job that waits under that id ends as ``state``."""
        with self._lock:
            if state == "sent":
                self._entries.pop(task_id, None)
                return
            now = self._clock()
            record = self._find(job, now=now)
            if record is None:
                self._end(job, _tombstone(task_id, reason=state, ends=now + ttl), task_id=task_id)
            elif record.task_id != task_id or record.ended:
                self._entries.pop(task_id, None)
            elif record.state == "waiting":
                self._end(job, _over(record, reason=state, ends=now + ttl), task_id=task_id)

    def revoke(self, job: Job, *, task_id: str, ttl: float) -> None:
        """Revoke: a waiting job ends at once, a running one when its holder ends."""
        with self._lock:
            record = self._find(job, now=self._clock())
            mine = record is not None and record.task_id == task_id
            if record is None or not mine or record.state == "waiting":
                self.settle(job, task_id=task_id, state="revoked", ttl=ttl)
            elif record.state == "running":
                self._keep(job, replace(record, revoke_ttl=ttl))

    # --- checkpoints and steps

    def save(
        self, job: Job, *, fence: int, token: str, name: str, body: bytes, ttl: float, number: int = 0
    ) -> SettleAnswer:
        """Keep ``body`` under ``name``; a stale holder is refused."""
        with self._lock:
            now = self._clock()
            record = self._find(job, now=now)
            answer = _judge(record, fence=fence, token=token)
            if record is None or isinstance(answer, Stale):
                return Stale()
            went_on = name == "state" and record.saved.get(name) != body
            self._keep(
                job,
                replace(
                    record,
                    saved=MappingProxyType({**record.saved, name: body}),
                    checks=number or record.checks + 1,
                    lost=0 if went_on else record.lost,
                    ends=max(record.ends, now + ttl),
                ),
            )
            return answer

    # --- dead letters

    def keep_letter(
        self, letter_id: str, *, job: Job | None = None, letter: bytes, letter_ttl: float, letter_max: int
    ) -> int:
        """Keep a letter that has no claim. Twice is once."""
        with self._lock:
            return self._letters.put(letter_id, body=letter, now=self._clock(), ttl=letter_ttl, limit=letter_max)

    def letter(self, letter_id: str) -> tuple[str, bytes] | None:
        """Return (status, body) of one letter."""
        with self._lock:
            letter = self._letters.find(letter_id, now=self._clock())
            return None if letter is None else (letter.status, letter.body)

    def letters(self, cursor: str = "", *, limit: int = 500) -> LetterPage:
        """Return one page of letters, newest first."""
        with self._lock:
            self._letters.forget_old(now=self._clock())
            return self._letters.page(cursor, limit=limit)

    def letter_counts(self) -> Mapping[str, int]:
        """Return how many letters are kept, and what became of the others."""
        with self._lock:
            self._letters.forget_old(now=self._clock())
            return {"kept": len(self._letters.kept), **self._letters.counts}

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
    ) -> Replaying | Refused:
        """Mark the letter replayed and make its key wait for ``task_id``, in one step."""
        with self._lock:
            now = self._clock()
            letter = self._letters.find(letter_id, now=now)
            if letter is None:
                return Refused("gone")
            if letter.status == "replayed":
                if letter.new_id != task_id:
                    return Refused("replayed", new_id=letter.new_id)
                self._letters.kept[letter_id] = replace(letter, body=body)
                return Replaying(life=letter.new_life)
            record = self._find(job, now=now) if job is not None else None
            if record is not None and not _may_replay(record, letter_id=letter_id, letter=letter):
                return Refused("superseded")
            life = self._reopen(job, record, task_id=task_id, fingerprint=fingerprint, ends=now + ttl)
            self._note(task_id, envelope)
            self._letters.mark_replayed(letter_id, body=body, new_id=task_id, new_life=life)
            return Replaying(life=life)

    def _reopen(self, job: Job | None, record: _Record | None, *, task_id: str, fingerprint: str, ends: float) -> int:
        if job is None:
            return 1
        last = record or _Record(state="over", task_id="", life=0, ends=ends)
        fresh = last.next_life(task_id=task_id, fingerprint=fingerprint, life=1, ends=ends)
        self._keep(job, replace(fresh, fallback=None))
        return fresh.life

    def discard(self, letter_id: str, job: Job | None) -> bool:
        """Drop one letter, and its key if that is still dead by it."""
        with self._lock:
            now = self._clock()
            if self._letters.find(letter_id, now=now) is None:
                return False
            self._letters.discard(letter_id)
            record = self._find(job, now=now) if job is not None else None
            if job is not None and record is not None and record.state == "dead" and record.letter_id == letter_id:
                del self._records[job.digest]
            return True

    # --- ledger

    def ledger(self, *, limit: int = 1000) -> Iterator[tuple[str, bytes]]:
        """Iterate over what the ledger held when asked; one page is enough in memory."""
        with self._lock:
            entries = list(self._entries.items())
        yield from entries

    def resend(self, job: Job, *, task_id: str, quiet: float, most: int, record_ttl: float) -> ResendAnswer:
        """Decide about an entry whose message is nowhere to be seen."""
        with self._lock:
            now = self._clock()
            if task_id not in self._entries:
                return "no"
            record = self._find(job, now=now)
            if record is not None and (answer := self._settled(job, record, task_id=task_id, quiet=quiet, now=now)):
                return answer
            times, last = self._resent.get(task_id, (0, -math.inf))
            if times >= most:
                return "lost"
            if now - last < quiet * 2**times:
                return "no"
            self._resent[task_id] = (times + 1, now)
            return "publish"

    def _settled(self, job: Job, record: _Record, *, task_id: str, quiet: float, now: float) -> ResendAnswer | None:
        """Answer for what the record alone decides."""
        if record.state in {"dead", "over"} and record.task_id == task_id:
            self._entries.pop(task_id)
            return "ended"
        if record.leased(now=now):
            return "no"
        if record.state == "running" and record.revoke_ttl is not None:
            self._end(job, _over(record, reason="revoked", ends=now + record.revoke_ttl), task_id=task_id)
            return "ended"
        changed = max(record.due_at, record.lease_until, record.fence / 1e6)
        quiet_yet = record.state in {"done", "dead", "over"} or now - changed >= quiet
        return None if quiet_yet else "no"

    # --- the fleet

    def lead(self, role: str, *, token: str, ttl: float, pulse_ttl: float) -> LeadAnswer:
        """Take or keep a role."""
        with self._lock:
            now = self._clock()
            holder, ends = self._roles.get(role, ("", -math.inf))
            if holder != token and ends > now:
                return "no"
            self._roles[role] = (token, now + ttl)
            away = now < self._pulse.gap_until or now - self._pulse.last > pulse_ttl / 2
            return "wait" if away else "yes"

    # --- the server

    def now(self) -> int:
        """Return the clock's time in microseconds."""
        return int(self._clock() * 1e6)

    def inspect(self, job: Job) -> Mapping[str, str]:
        """Return the record in words, for people; {} when there is none."""
        with self._lock:
            record = self._find(job, now=self._clock())
        return {} if record is None else _in_words(record)

    def findings(self) -> list[str]:
        """Return what is wrong with the server: there is none."""
        return []

    def close(self) -> None:
        """Do nothing: there is no connection."""

    # --- shared by the verbs

    def _find(self, job: Job, *, now: float) -> _Record | None:
        record = self._records.get(job.digest)
        if record is not None and record.ends <= now:
            del self._records[job.digest]
            return None
        return record

    def _keep(self, job: Job, record: _Record) -> _Record:
        self._records[job.digest] = record
        return record

    def _end(self, job: Job, record: _Record, *, task_id: str) -> _Record:
        """Keep the record of an ended submission and drop its ledger entry."""
        self._entries.pop(task_id, None)
        return self._keep(job, record)

    def _note(self, task_id: str, envelope: bytes | None) -> None:
        if envelope is not None:
            self._entries[task_id] = envelope


# --- decisions on one record


def _may_begin(record: _Record, *, task_id: str) -> bool:
    """Say whether a submission opens a new life over this record."""
    if record.state == "over" and record.reason == "withdrawn":
        return True  # its caller was told no, so the same id again is a new try
    return record.state in {"dead", "over"} and record.task_id != task_id


def _publish(record: _Record, *, task_id: str, canvas: bool, now: float, backed: bool) -> Literal["no", "same", "own"]:
    """Decide what the producer of a joined submission has to send."""
    settled = record.ended or record.leased(now=now)
    if record.task_id == task_id:
        return "no" if settled else "same"
    if canvas or record.revoke_ttl is not None:
        return "own"
    if settled or backed:
        return "no"
    return "same" if _may_be_only_copy(record, now=now) else "no"


def _may_be_only_copy(record: _Record, *, now: float) -> bool:
    never_sent = not record.claimed and not record.confirmed
    silent = now - record.published_at >= record.republish_after
    return never_sent or record.state == "running" or silent


def _sent_again(record: _Record, *, now: float) -> _Record:
    silent = now - record.published_at >= record.republish_after
    return replace(record, published_at=now, republish_after=record.republish_after * (2 if silent else 1))


def _withdrawn(record: _Record, *, now: float, stamp: int) -> _Record:
    """Return what a withdrawn life leaves: the dead life it superseded, or a tombstone."""
    dead = record.fallback
    if dead is not None and dead.ends > now:
        return replace(dead, spent_life=record.life)
    tombstone = _over(record, reason="withdrawn", ends=max(record.ends, now + _TOMBSTONE_TTL))
    return replace(tombstone, withdrawn_stamp=stamp)


def _over(record: _Record, *, reason: _EndReason, ends: float) -> _Record:
    """End a record without an outcome; its progress goes, its fence stays."""
    tombstone = _tombstone(record.task_id, reason=reason, ends=ends)
    return replace(tombstone, life=record.life, fingerprint=record.fingerprint, fence=record.fence)


def _tombstone(task_id: str, *, reason: _EndReason, ends: float) -> _Record:
    return _Record(state="over", task_id=task_id, life=0, ends=ends, reason=reason)


def _wait(record: _Record, *, held_for: float, now: float) -> NotYet | Busy | None:
    if record.due_at > now:
        return NotYet(due_in=record.due_at - now)
    return Busy(expires_in=held_for) if held_for > 0 else None


def _ready(record: _Record | None, *, task_id: str, life: int, fingerprint: str, now: float) -> _Record:
    """Return the record that a claim starts from: the one found, or the first of a new life."""
    if record is None:
        return _Record(state="waiting", task_id=task_id, life=max(life, 1), ends=now, fingerprint=fingerprint)
    if record.state in {"dead", "over"}:
        return record.next_life(task_id=task_id, fingerprint=fingerprint, life=life, ends=now)
    return replace(record, life=max(record.life, life))


def _run(record: _Record) -> Run:
    return Run(
        fence=record.fence,
        life=record.life,
        attempt=record.attempts + 1,
        delivery=record.lost + 1,
        snoozes=record.snoozes,
        checks=record.checks,
        saved=record.saved,
        envelope=record.envelope,
    )


def _poisoned(record: _Record) -> Poisoned:
    return Poisoned(
        fence=record.fence,
        life=record.life,
        attempt=record.attempts + 1,
        delivery=record.lost,
        evidence=record.evidence,
    )


def _judge(
    record: _Record | None, *, fence: int, token: str, repeats: str = "", may_only_bury: bool = False
) -> SettleAnswer:
    """Say whether a holder may still write.

    ``repeats``: the state that this very verb leaves behind, in which the same holder merely repeats itself. A fence
    above the record's is believed, but only an outcome may overwrite what has ended.
    """
    if record is None or fence < record.fence:
        return Stale()
    if fence > record.fence:
        reopens = record.ended and repeats not in {"done", record.state}
        return Stale() if reopens else Settled(lost_writes=True)
    allowed = record.state in {"running", repeats} and (may_only_bury or not record.poisoned)
    return Settled() if allowed and token == record.token else Stale()


def _done(record: _Record, *, fence: int, token: str, outcome: bytes, ends: float) -> _Record:
    """Return the done marker: progress and counts go, identity stays."""
    return _Record(
        state="done",
        task_id=record.task_id,
        life=record.life,
        ends=ends,
        fingerprint=record.fingerprint,
        envelope=record.envelope,
        fence=fence,
        token=token,
        outcome=outcome,
        attempts=record.attempts,
        lost=record.lost,
        snoozes=record.snoozes,
    )


def _may_replay(record: _Record, *, letter_id: str, letter: _Letter) -> bool:
    """Say whether the key still stands where the letter left it, or was ended without an outcome."""
    if record.state == "dead":
        return record.letter_id == letter_id
    return record.state == "over" and (letter.life == 0 or record.life <= letter.life)


def _state_for_people(record: _Record) -> Literal["waiting", "running", "done", "dead", "revoked", "over"]:
    if record.state == "over" and record.reason == "revoked":
        return "revoked"
    return record.state


def _in_words(record: _Record) -> dict[str, str]:
    words = {
        "state": _state_for_people(record),
        "task_id": record.task_id,
        "life": str(record.life),
        "fence": str(record.fence),
        "attempt": str(record.attempts + 1),
        "delivery": str(record.lost + 1),
        "snoozes": str(record.snoozes),
        "checks": str(record.checks),
    }
    if record.state == "over":
        words["reason"] = record.reason
    if record.state == "running":
        words["holder"] = record.token
    if record.letter_id:
        words["letter_id"] = record.letter_id
    return words
