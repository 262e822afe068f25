"""Read and write the tables of the store during one step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from celery_reliable.stores.base import Job, LetterPage
from celery_reliable.stores.pulse import Pulse
from celery_reliable.stores.records import Record
from celery_reliable.stores.sql.errors import TryAgain
from celery_reliable.stores.sql.link import Row, Session
from celery_reliable.stores.sql.rows import COLUMNS, microseconds, record_of, row_of, seconds
from celery_reliable.stores.sql.statements import Statements
from celery_reliable.stores.verbs import Letter

BATCH = 1000  # rows that one statement removes, or extends, at most
_ARMS = 50  # labels that one statement looks for
_MOST_LABELS = 1000
ROLES = ".roles"  # a shelf of our own; features name theirs without a dot
NEVER = 2**63 - 1  # a time that does not come, a number that is not reached


@dataclass(frozen=True, slots=True)
class _Counts:
    buried: int
    replayed: int
    discarded: int
    trimmed: int

    @property
    def kept(self) -> int:
        return self.buried - self.discarded - self.trimmed


class SqlTables:
    """See `Tables`. A transaction begins with the first thing that must not change meanwhile.

    One statement alone is atomic without: an entry of the ledger written by itself needs no transaction.
    """

    def __init__(self, session: Session, statements: Statements, *, prefix: str) -> None:
        """Work on one session."""
        self._session = session
        self._statements = statements.texts
        self._begin_words = statements.begin
        self._prefix = prefix
        self._began = False
        self._now: float | None = None
        self._found: dict[bytes, tuple[Mapping[str, Any], Record] | None] = {}
        self._known_roles: set[str] = set()

    def commit(self) -> None:
        """Make it so."""
        if self._began:
            self._session.run("COMMIT")

    @property
    def now(self) -> float:
        """See `Tables.now`."""
        if self._now is None:
            self._now = self._rows("read_clock")[0][0] / 1e6
        return self._now

    # --- records

    def record(self, job: Job) -> Record | None:
        """See `Tables.record`: the row is locked until the end of the step."""
        if job.digest not in self._found:
            self._read(job)
        found = self._found[job.digest]
        return None if found is None or found[1].ends <= self.now else found[1]

    def _read(self, job: Job) -> None:
        self._begin()
        ((now, *row),) = self._rows("read_record", digest=job.digest)
        self._now = now / 1e6
        self._found[job.digest] = None
        if row[0] is not None:
            record = record_of(row, read_saved=partial(self._saved, job))
            self._found[job.digest] = (dict(zip(COLUMNS, row, strict=True)), record)

    def _saved(self, job: Job) -> Mapping[str, bytes]:
        return {name: bytes(body) for name, body in self._rows("read_progress", digest=job.digest)}

    def keep(self, job: Job, record: Record) -> Record:
        """See `Tables.keep`: only what changed is written."""
        found = self._found[job.digest]
        row = row_of(record)
        if found is None:
            if not self._change("insert_record", digest=job.digest, **row):
                raise TryAgain
        elif changed := {name: value for name, value in row.items() if value != found[0][name]}:
            self._change_columns("update_record", changed, digest=job.digest)
        self._save(job, record, before=found[1].saved if found else {})
        self._found[job.digest] = (row, record)
        return record

    def _save(self, job: Job, record: Record, *, before: Mapping[str, bytes]) -> None:
        if record.saved is before or record.saved == before:
            return
        if not record.saved:
            self._change("delete_progress", digest=job.digest)
        for name, body in record.saved.items():
            if before.get(name) != body:
                self._change("put_progress", digest=job.digest, name=name, body=body)

    def forget(self, job: Job) -> None:
        """See `Tables.forget`."""
        self._change("delete_record", digest=job.digest)
        self._change("delete_progress", digest=job.digest)
        self._found[job.digest] = None

    def extend(self, claims: Sequence[tuple[Job, str, float]]) -> list[str]:
        """See `Tables.extend`: one statement for a thousand leases."""
        kept: set[bytes] = set()
        for start in range(0, len(claims), BATCH):
            kept |= self._extended(claims[start : start + BATCH])
        return [job.key for job, _, _ in claims if job.digest not in kept]

    def _extended(self, claims: Sequence[tuple[Job, str, float]]) -> set[bytes]:
        rows = [(job.digest, token, microseconds(ttl)) for job, token, ttl in claims]
        if "extend_records_answer" in self._statements:
            self._begin()
        values = {"prefix": self._prefix}
        found = changed_rows(self._session, self._statements, "extend_records", {"rows": rows}, values)
        return {bytes(digest) for (digest,) in found}

    # --- the ledger

    def has_entry(self, task_id: str) -> bool:
        """See `Tables.has_entry`."""
        return bool(self._rows("has_entry", task_id=task_id))

    def keep_entry(self, task_id: str, envelope: bytes) -> None:
        """See `Tables.keep_entry`."""
        self._change("put_entry", task_id=task_id, envelope=envelope)

    def drop_entry(self, task_id: str) -> None:
        """See `Tables.drop_entry`."""
        self._change("delete_entry", task_id=task_id)

    def resent(self, task_id: str) -> tuple[int, float] | None:
        """See `Tables.resent`: the entry is locked until the end of the step."""
        self._begin()
        found = self._rows("read_resent", task_id=task_id)
        return (found[0][0], seconds(found[0][1])) if found else None

    def note_resent(self, task_id: str, times: int, at: float) -> None:
        """See `Tables.note_resent`."""
        self._change("note_resent", task_id=task_id, resent=times, resent_at=microseconds(at))

    # --- dead letters

    def letter(self, letter_id: str, *, to_change: bool = False) -> Letter | None:
        """See `Tables.letter`."""
        if to_change:
            self._lock_fleet()
        found = self._rows("read_letter", letter_id=letter_id)
        return Letter(bytes(found[0][0]), *found[0][1:]) if found else None

    def put_letter(self, letter_id: str, letter: Letter, *, ttl: float, limit: int) -> int:
        """See `Tables.put_letter`: at most a batch goes at a time."""
        counts = _Counts(*self._lock_fleet()[3:])
        trimmed = self._change("delete_old_letters", limit=BATCH)
        times = {"number": microseconds(self.now), "ends": microseconds(self.now + ttl)}
        facts = {"body": letter.body, "life": letter.life, "label": letter.label}
        if not self._change("insert_letter", letter_id=letter_id, **times, **facts):
            self._count(trimmed=trimmed)
            return 0
        excess = counts.kept + 1 - trimmed - limit
        if excess > 0:
            trimmed += self._change("delete_first_letters", limit=min(excess, BATCH))
        self._count(buried=1, trimmed=trimmed)
        return trimmed

    def mark_replayed(self, letter_id: str, letter: Letter, *, again: bool) -> None:
        """See `Tables.mark_replayed`."""
        facts = {"body": letter.body, "new_id": letter.new_id, "new_life": letter.new_life, "label": letter.label}
        self._change("mark_letter", letter_id=letter_id, **facts)
        if not again:
            self._count(replayed=1)

    def discard_letter(self, letter_id: str) -> None:
        """See `Tables.discard_letter`."""
        self._change("delete_letter", letter_id=letter_id)
        self._count(discarded=1)

    def letter_page(self, cursor: str, *, limit: int, labels: Collection[str] | None) -> LetterPage:
        """See `Tables.letter_page`."""
        below = int(cursor) if cursor else NEVER
        if labels is not None:
            return self._labelled_page(list(labels), below=below, limit=limit)
        found = self._rows("page_of_letters", below=below, limit=limit + 1)
        page = [(letter_id, status, bytes(body)) for letter_id, status, body, _ in found[:limit]]
        return LetterPage(letters=page, cursor=str(found[limit - 1][3]) if len(found) > limit else "")

    def _labelled_page(self, labels: Sequence[str], *, below: int, limit: int) -> LetterPage:
        """Take the newest numbers of each label from the index, then the letters of the newest among them."""
        numbers: list[int] = []
        for start in range(0, len(labels), _ARMS):
            some = labels[start : start + _ARMS]
            statement = _of_each(self._statements["numbers_of_label"], len(some))
            values = {f"label_{position}": label for position, label in enumerate(some)}
            found = self._session.rows(
                statement, {"prefix": self._prefix, "below": below, "limit": limit + 1, **values}
            )
            numbers = sorted([*numbers, *(number for (number,) in found)], reverse=True)[: limit + 1]
        page = self._rows("numbered_letters", {"numbers": numbers[:limit]}) if numbers else []
        letters = [(letter_id, status, bytes(body)) for letter_id, status, body in page]
        return LetterPage(letters, str(numbers[limit - 1]) if len(numbers) > limit else "")

    def letter_labels(self) -> Sequence[str] | None:
        """See `Tables.letter_labels`: one look at the index for each."""
        found = [label for (label,) in self._rows("letter_labels", limit=_MOST_LABELS + 1)]
        return found if len(found) <= _MOST_LABELS else None

    def letter_counts(self) -> Mapping[str, int]:
        """See `Tables.letter_counts`: what is old counts as gone, whether or not a batch took it already."""
        counts = _Counts(*self._fleet("read_fleet")[3:])
        old = self._rows("count_old_letters")[0][0]
        since_ever = {"buried": counts.buried, "replayed": counts.replayed, "discarded": counts.discarded}
        return {"kept": counts.kept - old, **since_ever, "trimmed": counts.trimmed + old}

    def _count(self, *, buried: int = 0, replayed: int = 0, discarded: int = 0, trimmed: int = 0) -> None:
        self._change("count_letters", buried=buried, replayed=replayed, discarded=discarded, trimmed=trimmed)

    # --- the fleet

    def pulse(self, *, to_change: bool = False) -> Pulse:
        """See `Tables.pulse`."""
        found = self._lock_fleet() if to_change else self._fleet("read_fleet")
        return Pulse(*map(seconds, found[:3]))

    def keep_pulse(self, pulse: Pulse) -> None:
        """See `Tables.keep_pulse`."""
        times = {"pulse": pulse.last, "gap_from": pulse.gap_from, "gap_until": pulse.gap_until}
        self._change("keep_pulse", **{name: microseconds(time) for name, time in times.items()})

    def role(self, role: str) -> tuple[str, float] | None:
        """See `Tables.role`: a row that is there is locked until the end of the step."""
        self._begin()
        ((now, token, ends),) = self._rows("read_role", shelf=ROLES, name=role)
        self._now = now / 1e6
        if token is None:
            return None
        self._known_roles.add(role)
        return bytes(token).decode(), seconds(ends)

    def keep_role(self, role: str, token: str, ends: float) -> None:
        """See `Tables.keep_role`: of two that find nobody there, the unique index lets one in."""
        statement = "update_role" if role in self._known_roles else "insert_role"
        if not self._change(statement, shelf=ROLES, name=role, value=token.encode(), ends=microseconds(ends)):
            raise TryAgain

    def _lock_fleet(self) -> Row:
        self._begin()
        return self._fleet("lock_fleet")

    def _fleet(self, statement: str) -> Row:
        found = self._rows(statement)
        if not found:
            self._change("begin_fleet")
            found = self._rows(statement)
        return found[0]

    # --- statements

    def _begin(self) -> None:
        if not self._began:
            self._session.run(self._begin_words)
            self._began = True

    def _rows(self, name: str, lists: Mapping[str, Sequence[Any]] | None = None, /, **values: Any) -> list[Row]:
        statement, listed = filled(self._statements[name], lists or {})
        return self._session.rows(statement, {"prefix": self._prefix, **values, **listed})

    def _change(self, name: str, /, **values: Any) -> int:
        return self._session.change(self._statements[name], {"prefix": self._prefix, **values})

    def _change_columns(self, name: str, columns: Mapping[str, Any], /, **values: Any) -> int:
        statement = _with_changes(self._statements[name], tuple(columns))
        return self._session.change(statement, {"prefix": self._prefix, **values, **columns})


@lru_cache(maxsize=256)
def _of_each(statement: str, count: int) -> str:
    """Put a statement about one label together for several."""
    each = (statement.replace(":label", f":label_{one}").replace("newest", f"newest_{one}") for one in range(count))
    return " UNION ALL ".join(each)


@lru_cache(maxsize=256)
def _with_changes(statement: str, columns: tuple[str, ...]) -> str:
    return statement.replace("{changes}", ", ".join(f"{name} = :{name}" for name in columns))


def changed_rows(
    session: Session,
    statements: Mapping[str, str],
    name: str,
    lists: Mapping[str, Sequence[Any]],
    values: Mapping[str, Any],
) -> list[Row]:
    """Run a change that answers rows; where an UPDATE of the server answers none, read them after it."""
    statement, listed = filled(statements[name], lists)
    if f"{name}_answer" not in statements:
        return session.rows(statement, {**values, **listed})
    session.change(statement, {**values, **listed})
    answer, listed = filled(statements[f"{name}_answer"], lists)
    return session.rows(answer, {**values, **listed})


def filled(statement: str, lists: Mapping[str, Sequence[Any]]) -> tuple[str, dict[str, Any]]:
    """Put lists of values, or of rows of values, into a statement; return it and the values by name."""
    values: dict[str, Any] = {}
    for name, items in lists.items():
        words = [_named(values, f"{name}_{number}", item) for number, item in enumerate(items)]
        statement = statement.replace("{" + name + "}", ", ".join(words))
    return statement, values


def _named(values: dict[str, Any], name: str, item: Any) -> str:
    if not isinstance(item, tuple):
        values[name] = item
        return f":{name}"
    return "(" + ", ".join(_named(values, f"{name}_{number}", one) for number, one in enumerate(item)) + ")"
