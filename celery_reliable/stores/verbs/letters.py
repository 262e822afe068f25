"""Keep, read, replay and discard dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_reliable.stores import records
from celery_reliable.stores.base import Job, LetterPage, Refused, Reopening, Replaying
from celery_reliable.stores.records import Record
from celery_reliable.stores.verbs.tables import Letter, Tables, Verbs, verb


class KeepingLetters(Verbs):
    """See the verbs of `Store` that have a letter in their name, `Store.replay` and `Store.discard`."""

    @verb
    def keep_letter(
        self,
        tables: Tables,
        letter_id: str,
        *,
        job: Job | None = None,
        letter: bytes,
        letter_ttl: float,
        letter_max: int,
        label: str = "",
    ) -> int:
        """Keep a letter that has no claim. Twice is once."""
        return tables.put_letter(letter_id, Letter(letter, label=label), ttl=letter_ttl, limit=letter_max)

    @verb
    def letter(self, tables: Tables, letter_id: str) -> tuple[str, bytes] | None:
        """Return (status, body) of one letter."""
        letter = tables.letter(letter_id)
        return None if letter is None else (letter.status, letter.body)

    @verb
    def letters(
        self,
        tables: Tables,
        cursor: str = "",
        *,
        limit: int = 500,
        labels: Collection[str] | None = None,
        until: float | None = None,
    ) -> LetterPage:
        """Return one page of letters, newest first."""
        begin = until if until is None else str(int(until * 1e6) + 1)
        return tables.letter_page(cursor or begin or "", limit=limit, labels=labels)

    @verb
    def letter_labels(self, tables: Tables) -> Sequence[str] | None:
        """Return the labels that letters have."""
        return tables.letter_labels()

    @verb
    def letter_counts(self, tables: Tables) -> Mapping[str, int]:
        """Return how many letters are kept, and what became of the others."""
        return tables.letter_counts()

    @verb
    def replay(
        self,
        tables: Tables,
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
        """Mark the letter replayed and make its key wait for ``task_id``, in one step."""
        record = tables.record(job) if job is not None else None
        letter = tables.letter(letter_id, to_change=True)
        refusal = _refusal(record, letter, letter_id=letter_id, task_id=task_id)
        if letter is None or refusal is not None:
            return refusal or Refused("gone")
        again = letter.status == "replayed"
        life = letter.new_life
        if not again:
            life = _reopen(tables, job, record, task_id=task_id, fingerprint=fingerprint, ttl=ttl)
            tables.keep_entry(task_id, envelope)
        marked = replace(letter, status="replayed", body=body, new_id=task_id, new_life=life, label=label)
        tables.mark_replayed(letter_id, marked, again=again)
        return Replaying(life=life)

    def replay_all(self, reopenings: Sequence[Reopening]) -> list[Replaying | Refused]:
        """Replay several letters, each in a step of its own."""
        return [self._replayed(one) for one in reopenings]

    def _replayed(self, one: Reopening) -> Replaying | Refused:
        return self.replay(
            one.letter_id,
            one.job,
            task_id=one.task_id,
            envelope=one.envelope,
            body=one.body,
            fingerprint=one.fingerprint,
            ttl=one.ttl,
            label=one.label,
        )

    @verb
    def discard(self, tables: Tables, letter_id: str, job: Job | None) -> bool:
        """Drop one letter, and its key if that is still dead by it."""
        record = tables.record(job) if job is not None else None
        if tables.letter(letter_id, to_change=True) is None:
            return False
        tables.discard_letter(letter_id)
        if job is not None and record is not None and record.state == "dead" and record.letter_id == letter_id:
            tables.forget(job)
        return True


def _refusal(record: Record | None, letter: Letter | None, *, letter_id: str, task_id: str) -> Refused | None:
    """Return why a letter may not be replayed under this id, or None."""
    if letter is None:
        return Refused("gone")
    if letter.status == "replayed":
        return None if letter.new_id == task_id else Refused("replayed", new_id=letter.new_id)
    if record is not None and not records.may_replay(record, letter_id=letter_id):
        return Refused("superseded")
    return None


def _reopen(
    tables: Tables, job: Job | None, record: Record | None, *, task_id: str, fingerprint: str, ttl: float
) -> int:
    if job is None:
        return 1
    ends = tables.now + ttl
    last = record or Record(state="over", task_id="", life=0, ends=ends)
    fresh = last.next_life(task_id=task_id, fingerprint=fingerprint, life=1, ends=ends)
    return tables.keep(job, replace(fresh, fallback=None)).life
