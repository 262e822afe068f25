"""Decide about submissions that vanished, and who of the fleet decides."""

from __future__ import annotations

from collections.abc import Mapping

from celery_reliable.stores import records
from celery_reliable.stores.base import Job, LeadAnswer, ResendAnswer
from celery_reliable.stores.records import Record
from celery_reliable.stores.verbs.tables import Tables, Verbs, end_record, verb


class Recovering(Verbs):
    """See `Store.resend`, `Store.lead`, `Store.now` and `Store.inspect`."""

    @verb
    def resend(
        self, tables: Tables, job: Job, *, task_id: str, quiet: float, most: int, record_ttl: float
    ) -> ResendAnswer:
        """Decide about an entry whose message is nowhere to be seen."""
        record, now = tables.record(job), tables.now
        resent = tables.resent(task_id)
        if resent is None:
            return "no"
        if record is not None and (answer := _settled(tables, job, record, task_id=task_id, quiet=quiet)):
            return answer
        times, last = resent
        if now - last < quiet * 2**times:
            return "no"
        if times >= most:
            return "lost"
        tables.note_resent(task_id, times + 1, now)
        return "publish"

    @verb
    def lead(self, tables: Tables, role: str, *, token: str, ttl: float, pulse_ttl: float) -> LeadAnswer:
        """Take or keep a role."""
        held, now = tables.role(role), tables.now
        if held is not None and held[0] != token and held[1] > now:
            return "no"
        tables.keep_role(role, token, now + ttl)
        pulse = tables.pulse()
        return "wait" if now < pulse.gap_until or now - pulse.last > pulse_ttl / 2 else "yes"

    @verb
    def inspect(self, tables: Tables, job: Job) -> Mapping[str, str]:
        """Return the record in words, for people; {} when there is none."""
        record = tables.record(job)
        return {} if record is None else records.in_words(record)


def _settled(tables: Tables, job: Job, record: Record, *, task_id: str, quiet: float) -> ResendAnswer | None:
    """Answer for what the record alone decides."""
    now = tables.now
    if record.state in {"dead", "over"} and record.task_id == task_id:
        tables.drop_entry(task_id)
        return "ended"
    if record.leased(now=now):
        return "no"
    if record.state == "running" and record.revoke_ttl is not None:
        ended = records.over(record, reason="revoked", ends=now + record.revoke_ttl)
        end_record(tables, job, ended, task_id=task_id)
        return "ended"
    changed = max(record.due_at, record.lease_until, record.fence / 1e6)
    quiet_yet = record.ended or now - changed >= quiet
    return None if quiet_yet else "no"
