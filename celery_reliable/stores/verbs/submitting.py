"""Accept, join and withdraw submissions."""

from __future__ import annotations

import dataclasses

from celery_reliable.stores import records
from celery_reliable.stores.base import BeginSubmit, Existing, Job, Mismatch, New, SubmitAnswer
from celery_reliable.stores.records import Record
from celery_reliable.stores.verbs.tables import Tables, Verbs, end_record, verb


class Submitting(Verbs):
    """See `Store.submit`, `Store.published` and `Store.withdraw`."""

    begin_submit: BeginSubmit | None = None

    @verb
    def submit(
        self,
        tables: Tables,
        job: Job,
        *,
        task_id: str,
        fingerprint: str = "",
        envelope: bytes | None = None,
        canvas: bool = False,
        replace: bool = False,
        swept: bool = True,
        delay: float = 0.0,
        delay_max: float = 0.0,
        ttl: float,
    ) -> SubmitAnswer:
        """Accept a submission, or say which job holds the key."""
        if job.kind != "declared":
            _note(tables, task_id, envelope)
            return New(life=1)
        record = tables.record(job)
        if record is None or records.may_begin(record, task_id=task_id):
            fresh = _fresh(tables, record, task_id=task_id, fingerprint=fingerprint, ttl=ttl)
            fresh = records.delayed(fresh, now=tables.now, delay=delay, delay_max=delay_max)
            tables.keep(job, fresh)
            _note(tables, task_id, envelope)
            return New(life=fresh.life)
        replaced = replace and task_id != record.task_id and not (record.claimed or record.ended)
        if replaced:
            record = dataclasses.replace(record, fingerprint=fingerprint, envelope=envelope)
            record = records.put_off(record, now=tables.now, delay=delay)
        elif not replace and record.contradicts(fingerprint):
            return Mismatch(existing_id=record.task_id)
        found = _join(tables, job, record, task_id=task_id, envelope=envelope, canvas=canvas, swept=swept)
        return dataclasses.replace(found, replaced=True) if replaced else found

    @verb
    def published(self, tables: Tables, job: Job, *, task_id: str) -> None:
        """Note that the broker has the message of the waiting job ``task_id``."""
        record = tables.record(job)
        if record is not None and record.task_id == task_id:
            tables.keep(job, dataclasses.replace(record, confirmed=True))

    @verb
    def withdraw(self, tables: Tables, job: Job, *, task_id: str) -> bool:
        """Take back a submission whose publish failed. True when nothing of it will run."""
        record, now = tables.record(job), tables.now
        if record is None:
            tombstone = records.tombstone(task_id, reason="withdrawn", ends=now + records.TOMBSTONE_TTL)
            end_record(tables, job, dataclasses.replace(tombstone, withdrawn_stamp=job.stamp), task_id=task_id)
        elif record.task_id != task_id or record.state == "over":
            tables.drop_entry(task_id)
        elif record.claimed or record.ended or record.joined:
            return False
        else:
            end_record(tables, job, records.withdrawn(record, now=now, stamp=job.stamp), task_id=task_id)
        return True


def _fresh(tables: Tables, record: Record | None, *, task_id: str, fingerprint: str, ttl: float) -> Record:
    now = tables.now
    first = record or Record(state="over", task_id="", life=0, ends=now)
    fresh = first.next_life(task_id=task_id, fingerprint=fingerprint, life=1, ends=now + ttl)
    return dataclasses.replace(fresh, published_at=now)


def _join(
    tables: Tables, job: Job, record: Record, *, task_id: str, envelope: bytes | None, canvas: bool, swept: bool
) -> Existing:
    now = tables.now
    backed = swept and tables.has_entry(record.task_id)
    publish = records.publish(record, task_id=task_id, canvas=canvas, now=now, backed=backed)
    if publish == "same":
        record = records.sent_again(record, now=now)
    if publish != "own" and task_id != record.task_id:
        record = dataclasses.replace(record, joined=True)
    tables.keep(job, record)
    if publish == "own" or (publish == "same" and task_id == record.task_id):
        _note(tables, task_id, envelope)
    later = publish == "own" and record.revoke_ttl is not None
    return Existing(
        task_id=record.task_id,
        state=records.state_for_people(record),
        publish=publish,
        life=record.life + 1 if later else record.life,
        outcome=record.outcome if record.state == "done" else None,
    )


def _note(tables: Tables, task_id: str, envelope: bytes | None) -> None:
    if envelope is not None:
        tables.keep_entry(task_id, envelope)
