"""End a run or a submission, and keep what a run saves on its way."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from celery_reliable.stores import records
from celery_reliable.stores.base import Job, ReleaseOutcome, SettleAnswer, SettleState, Stale
from celery_reliable.stores.verbs.tables import Letter, Tables, Verbs, end_record, verb


class Settling(Verbs):
    """See `Store.complete`, `Store.release`, `Store.bury`, `Store.settle`, `Store.revoke` and `Store.save`."""

    @verb
    def complete(
        self,
        tables: Tables,
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
        record = tables.record(job)
        answer = records.judge(record, fence=fence, token=token, repeats="done")
        if record is None or isinstance(answer, Stale):
            return Stale()
        if record.state != "done" or answer.lost_writes:
            ends = tables.now + marker_ttl
            tables.keep(job, records.done(record, fence=fence, token=token, outcome=outcome or b"", ends=ends))
        if entry_ends:
            tables.drop_entry(task_id)
        return answer

    @verb
    def release(
        self,
        tables: Tables,
        job: Job,
        *,
        fence: int | None,
        token: str,
        outcome: ReleaseOutcome,
        delay: float,
        record_ttl: float,
    ) -> SettleAnswer:
        """Give the right back; due again in ``delay`` seconds."""
        record, now = tables.record(job), tables.now
        if fence is None:
            fence = record.fence if record else 0
        answer = records.judge(record, fence=fence, token=token, repeats="waiting")
        if record is None or isinstance(answer, Stale):
            return Stale()
        if record.state == "waiting" and not answer.lost_writes:
            return answer
        if record.revoke_ttl is not None:
            ended = records.over(record, reason="revoked", ends=now + record.revoke_ttl)
            end_record(tables, job, ended, task_id=record.task_id)
            return replace(answer, revoked=True)
        waiting = replace(
            record,
            state="waiting",
            attempts=record.attempts + (outcome == "retry"),
            snoozes=record.snoozes + (outcome == "snooze"),
            fence=fence,
            token=token,
            due_at=now + delay,
            published_at=now + delay,
            ends=now + max(delay, record_ttl),
        )
        tables.keep(job, waiting)
        return answer

    @verb
    def bury(
        self,
        tables: Tables,
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
        """Make the key dead and keep its letter, in one step."""
        record = tables.record(job)
        answer = records.judge(record, fence=fence, token=token, repeats="dead", may_only_bury=True)
        if record is None or isinstance(answer, Stale):
            return Stale()
        tables.drop_entry(task_id)
        if record.state == "dead" and not answer.lost_writes:
            return answer
        dead = replace(record, state="dead", fence=fence, token=token, letter_id=letter_id)
        tables.keep(job, replace(dead, ends=tables.now + letter_ttl, revoke_ttl=None, fallback=None))
        kept = Letter(letter, record.life, label=label)
        trimmed = tables.put_letter(letter_id, kept, ttl=letter_ttl, limit=letter_max)
        return replace(answer, trimmed=trimmed)

    @verb
    def settle(self, tables: Tables, job: Job, *, task_id: str, state: SettleState, ttl: float) -> None:
        """End a submission's ledger entry; a job that waits under that id ends as ``state``, one that runs is marked revoked."""
        _settle(tables, job, task_id=task_id, state=state, ttl=ttl)

    @verb
    def revoke(self, tables: Tables, job: Job, *, task_id: str, ttl: float) -> None:
        """Revoke: a waiting job ends at once, a running one when its holder ends."""
        record = tables.record(job)
        mine = record is not None and record.task_id == task_id
        if record is None or not mine or not record.ended:
            _settle(tables, job, task_id=task_id, state="revoked", ttl=ttl)

    @verb
    def save(
        self,
        tables: Tables,
        job: Job,
        *,
        fence: int,
        token: str,
        name: str,
        body: bytes,
        ttl: float,
        number: int = 0,
    ) -> SettleAnswer:
        """Keep ``body`` under ``name``; a stale holder is refused."""
        record = tables.record(job)
        answer = records.judge(record, fence=fence, token=token)
        if record is None or isinstance(answer, Stale):
            return Stale()
        went_on = name == "state" and record.saved.get(name) != body
        further = replace(
            record,
            saved=MappingProxyType({**record.saved, name: body}),
            checks=number or record.checks + 1,
            lost=0 if went_on else record.lost,
            ends=max(record.ends, tables.now + ttl),
        )
        tables.keep(job, further)
        return answer


def _settle(tables: Tables, job: Job, *, task_id: str, state: SettleState, ttl: float) -> None:
    if state == "sent":
        tables.drop_entry(task_id)
        return
    record, now = tables.record(job), tables.now
    if record is None:
        end_record(tables, job, records.tombstone(task_id, reason=state, ends=now + ttl), task_id=task_id)
    elif record.task_id != task_id or record.ended:
        tables.drop_entry(task_id)
    elif record.state == "waiting":
        end_record(tables, job, records.over(record, reason=state, ends=now + ttl), task_id=task_id)
    else:
        tables.keep(job, replace(record, revoke_ttl=ttl))
