"""Decide about one record: what is known of a key, and what each verb makes of it.

Pure: a record goes in, a record or an answer comes out. The verbs (`stores.verbs`) read and write around it, on whatever
keeps the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from celery_reliable.stores.base import (
    UNRUN,
    Busy,
    NotYet,
    Poisoned,
    Run,
    SettleAnswer,
    Settled,
    Stale,
)

TOMBSTONE_TTL = 86400.0  # seconds: withdraw names no ttl; no copy of an unclaimed message is expected after a day
REPUBLISH_AFTER = 600.0  # seconds without a publish, doubling, after which a job without ledger entry is sent again
EVIDENCE_KEPT = 10  # newest texts: enough to see a pattern, bounded

EndReason = Literal["revoked", "expired", "skipped", "withdrawn"]
State = Literal["waiting", "running", "done", "dead", "over"]
ENDED = frozenset({"done", "dead", "over"})
"""The states of a life that has ended, well or not."""
NOTHING: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one key. ``life`` 0: ended before anything was known of its life."""

    state: State
    task_id: str
    life: int
    ends: float
    fingerprint: str = ""
    withdrawn_stamp: int = 0
    spent_life: int = 0  # the highest life ever given out, when a withdrawal fell back to an older one
    due_at: float = -math.inf
    due_limit: float = -math.inf  # no replacement puts a job off beyond that
    claimed: bool = False
    confirmed: bool = False
    joined: bool = False  # others were told that this job is theirs too
    published_at: float = -math.inf
    republish_after: float = REPUBLISH_AFTER
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
    saved: Mapping[str, bytes] = field(default_factory=lambda: NOTHING)
    evidence: tuple[bytes, ...] = ()
    outcome: bytes = b""
    letter_id: str = ""
    reason: EndReason = "withdrawn"
    fallback: Record | None = None

    def leased(self, *, now: float) -> bool:
        """Say whether a live lease protects it."""
        return self.state == "running" and not self.freed and self.lease_until > now

    @property
    def ended(self) -> bool:
        """Say whether this life has ended, well or not."""
        return self.state in ENDED

    def contradicts(self, fingerprint: str) -> bool:
        """Say whether both fingerprints are given and different."""
        return bool(fingerprint and self.fingerprint) and fingerprint != self.fingerprint

    def has_ended_for(self, *, task_id: str, life: int) -> bool:
        """Say whether a message belongs to the life that ended here, rather than to one that begins."""
        if life == 0 or self.life == 0:
            return task_id == self.task_id
        return self.state == "dead" or life <= self.life

    def next_life(self, *, task_id: str, fingerprint: str, life: int, ends: float) -> Record:
        """Return the first record of the life after this one; only a dead life leaves its progress behind."""
        dead = self.state == "dead"
        return Record(
            state="waiting",
            task_id=task_id,
            life=max(life, self.life + 1, self.spent_life + 1),
            ends=ends,
            fingerprint=fingerprint,
            fence=self.fence,
            checks=self.checks if dead else 0,
            saved=self.saved if dead else NOTHING,
            fallback=self if dead else None,
        )


# --- decisions on one record


def may_begin(record: Record, *, task_id: str) -> bool:
    """Say whether a submission opens a new life over this record."""
    if record.state == "over" and record.reason == "withdrawn":
        return True  # its caller was told no, so the same id again is a new try
    return record.state in {"dead", "over"} and record.task_id != task_id


def publish(record: Record, *, task_id: str, canvas: bool, now: float, backed: bool) -> Literal["no", "same", "own"]:
    """Decide what the producer of a joined submission has to send."""
    settled = record.ended or record.leased(now=now)
    if record.task_id == task_id:
        return "no" if settled else "same"
    if canvas or record.revoke_ttl is not None:
        return "own"
    if settled or backed:
        return "no"
    return "same" if _may_be_only_copy(record, now=now) else "no"


def _may_be_only_copy(record: Record, *, now: float) -> bool:
    never_sent = not record.claimed and not record.confirmed
    silent = now - max(record.published_at, record.due_at) >= record.republish_after
    return never_sent or record.state == "running" or silent


def sent_again(record: Record, *, now: float) -> Record:
    """Note that its message is published once more; the pause doubles each time it was silent for too long."""
    silent = now - record.published_at >= record.republish_after
    return replace(record, published_at=now, republish_after=record.republish_after * (2 if silent else 1))


def withdrawn(record: Record, *, now: float, stamp: int) -> Record:
    """Return what a withdrawn life leaves: the dead life it superseded, or a tombstone."""
    dead = record.fallback
    if dead is not None and dead.ends > now:
        return replace(dead, spent_life=record.life)
    ended = over(record, reason="withdrawn", ends=max(record.ends, now + TOMBSTONE_TTL))
    return replace(ended, withdrawn_stamp=stamp)


def over(record: Record, *, reason: EndReason, ends: float) -> Record:
    """End a record without an outcome; its progress goes, its fence stays."""
    ended = tombstone(record.task_id, reason=reason, ends=ends)
    return replace(ended, life=record.life, fingerprint=record.fingerprint, fence=record.fence)


def tombstone(task_id: str, *, reason: EndReason, ends: float) -> Record:
    """Return what remains of a submission that ended before anything was known of its life."""
    return Record(state="over", task_id=task_id, life=0, ends=ends, reason=reason)


def wait(record: Record, *, held_for: float, now: float) -> NotYet | Busy | None:
    """Say how long a message has to wait: for its due time, or for the holder."""
    if record.due_at > now:
        return NotYet(due_in=record.due_at - now)
    return Busy(expires_in=held_for) if held_for > 0 else None


def ready(record: Record | None, *, task_id: str, life: int, fingerprint: str, now: float) -> Record:
    """Return the record that a claim starts from: the one found, or the first of a new life."""
    if record is None:
        return Record(state="waiting", task_id=task_id, life=max(life, 1), ends=now, fingerprint=fingerprint)
    if record.state in {"dead", "over"}:
        return record.next_life(task_id=task_id, fingerprint=fingerprint, life=life, ends=now)
    return replace(record, life=max(record.life, life))


def run(record: Record) -> Run:
    """Return the right that a record which was just claimed gives."""
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


def delayed(record: Record, *, now: float, delay: float, delay_max: float) -> Record:
    """Return the record of a job that begins to wait for its due time."""
    return replace(record, due_at=now + delay, due_limit=now + delay_max) if delay > 0 else record


def put_off(record: Record, *, now: float, delay: float) -> Record:
    """Begin the delay of a waiting job anew, within its limit."""
    return replace(record, due_at=min(now + delay, record.due_limit)) if delay > 0 else record


def poisoned(record: Record) -> Poisoned:
    """Return the right to bury."""
    return Poisoned(
        fence=record.fence,
        life=record.life,
        attempt=record.attempts + 1,
        delivery=record.lost,
        evidence=record.evidence,
    )


def judge(
    record: Record | None, *, fence: int, token: str, repeats: str = "", may_only_bury: bool = False
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


def done(record: Record, *, fence: int, token: str, outcome: bytes, ends: float) -> Record:
    """Return the done marker: progress and counts go, identity stays."""
    return Record(
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


def may_replay(record: Record, *, letter_id: str) -> bool:
    """Say whether the key still stands where the letter left it, or what came after ended without a run."""
    if record.state == "dead":
        return record.letter_id == letter_id
    return record.state == "over" and record.reason in UNRUN


def state_for_people(record: Record) -> Literal["waiting", "running", "done", "dead", "revoked", "over"]:
    """Name the state, a revoked one apart."""
    if record.state == "over" and record.reason == "revoked":
        return "revoked"
    return record.state


def in_words(record: Record) -> dict[str, str]:
    """Describe a record."""
    words = {
        "state": state_for_people(record),
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
        words["at_ms"] = str(int(record.lease_until * 1000))
    if record.letter_id:
        words["letter_id"] = record.letter_id
    return words
