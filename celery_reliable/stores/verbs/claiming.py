"""Give the right to run, keep it alive, and end it from outside."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from celery_reliable.stores import records
from celery_reliable.stores.base import ClaimAnswer, Dead, Done, Job, Mismatch, Over, Poisoned, Run
from celery_reliable.stores.records import Record
from celery_reliable.stores.verbs.tables import Tables, Verbs, end_record, verb


class Claiming(Verbs):
    """See `Store.claim`, `Store.renew` and `Store.free`."""

    @verb
    def claim(
        self,
        tables: Tables,
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
        record = tables.record(job)
        if record is None and _is_late(tables, job, task_id=task_id, late_after=late_after):
            return Over("late")
        held_for = _held_for(tables, record, ttl=ttl)
        record = _end_if_marked(tables, job, record, held_for=held_for)
        refusal = _refusal(
            tables,
            record,
            task_id=task_id,
            life=life,
            fingerprint=fingerprint,
            stamp=job.stamp,
            held_for=held_for,
        )
        if refusal is not None:
            return refusal
        ready = records.ready(record, task_id=task_id, life=life, fingerprint=fingerprint, now=tables.now)
        return _start(tables, job, ready, token=token, ttl=ttl, max_deliveries=max_deliveries, record_ttl=record_ttl)

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """Extend leases and beat the fleet's pulse; return the keys that are lost."""
        held = list(claims)
        self._beat(pulse_ttl=pulse_ttl)
        return self._extend(held) if held else []

    @verb
    def _beat(self, tables: Tables, *, pulse_ttl: float) -> None:
        """Beat the pulse in a step of its own: nobody who waits for it holds a record."""
        pulse = tables.pulse(to_change=True)
        tables.keep_pulse(pulse.beat(now=tables.now, ttl=pulse_ttl))

    @verb
    def _extend(self, tables: Tables, claims: list[tuple[Job, str, float]]) -> list[str]:
        return tables.extend(claims)

    @verb
    def free(self, tables: Tables, job: Job, *, token: str, evidence: bytes, keep: float) -> bool:
        """End a lease from outside, for a child seen to die."""
        record = tables.record(job)
        if record is None or record.state != "running" or record.token != token:
            return False
        if not record.freed:
            texts = (*record.evidence, evidence)[-records.EVIDENCE_KEPT :]
            ends = max(record.ends, tables.now + keep)
            tables.keep(job, replace(record, freed=True, evidence=texts, ends=ends))
        return True


def _is_late(tables: Tables, job: Job, *, task_id: str, late_after: float) -> bool:
    known_age = job.stamp > 0 and late_after > 0
    return known_age and tables.now - job.stamp / 1e6 > late_after and not tables.has_entry(task_id)


def _held_for(tables: Tables, record: Record | None, *, ttl: float) -> float:
    """Return for how many seconds nobody may take the key; an ended lease may begin a grace."""
    if record is None or record.state != "running" or record.freed:
        return 0.0
    now = tables.now
    if record.lease_until > now:
        return record.lease_until - now
    heard = tables.pulse(to_change=True)
    pulse = heard.meet_ended_lease(now=now, ttl=ttl)
    if pulse is not heard:
        tables.keep_pulse(pulse)
        return ttl
    return max(0.0, pulse.gap_until - now)


def _end_if_marked(tables: Tables, job: Job, record: Record | None, *, held_for: float) -> Record | None:
    """End a job that was revoked while it ran and whose holder is gone."""
    if record is None or record.state != "running" or record.revoke_ttl is None or held_for > 0:
        return record
    ended = records.over(record, reason="revoked", ends=tables.now + record.revoke_ttl)
    return end_record(tables, job, ended, task_id=record.task_id)


def _refusal(
    tables: Tables,
    record: Record | None,
    *,
    task_id: str,
    life: int,
    fingerprint: str,
    stamp: int,
    held_for: float,
) -> ClaimAnswer | None:
    """Return why the message may not run now, or None."""
    if record is None:
        return None
    if 0 < life < record.life:
        return Over("ended")
    if record.state in {"dead", "over"}:
        return _refusal_of_ended(tables, record, task_id=task_id, life=life, stamp=stamp)
    # a replaced record has the fingerprint of arguments that its own message does not carry
    if record.envelope is None and record.contradicts(fingerprint):
        return Mismatch(existing_id=record.task_id)
    if record.state == "done":
        return Done(task_id=record.task_id, outcome=record.outcome)
    return records.wait(record, held_for=held_for, now=tables.now)


def _refusal_of_ended(tables: Tables, record: Record, *, task_id: str, life: int, stamp: int) -> ClaimAnswer | None:
    # a later try of the same submission has another stamp; its entry is there, the withdrawn one's went
    withdrawn = record.state == "over" and record.reason == "withdrawn"
    submitted_again = withdrawn and (stamp != record.withdrawn_stamp or tables.has_entry(task_id))
    if submitted_again or not record.has_ended_for(task_id=task_id, life=life):
        return None
    if record.state == "over":
        return Over(record.reason)
    letter = tables.letter(record.letter_id)
    return Dead(letter_id=record.letter_id, letter=letter.body if letter is not None else b"")


def _start(
    tables: Tables,
    job: Job,
    record: Record,
    *,
    token: str,
    ttl: float,
    max_deliveries: int,
    record_ttl: float,
) -> Run | Poisoned:
    """Give the right to run, or only to bury, under a new fence."""
    now = tables.now
    lost = record.lost + (1 if record.state == "running" else 0)
    record = tables.keep(
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
    return records.poisoned(record) if record.poisoned else records.run(record)
