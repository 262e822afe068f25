"""Keep notes in a table: who writes to a shelf holds the lock of its version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_reliable.stores.notes import BATCH, Note, NotePage, Write
from celery_reliable.stores.sql.errors import TryAgain
from celery_reliable.stores.sql.link import Row, Session
from celery_reliable.stores.sql.rows import microseconds
from celery_reliable.stores.sql.statements import Statements
from celery_reliable.stores.sql.tables import NEVER, filled


class SqlNotes:
    """See `Notes`."""

    def __init__(
        self, step: Callable[[Callable[[Session], Any]], Any], statements: Callable[[], Statements], *, prefix: str
    ) -> None:
        """Take what does a piece of work on a session as one step, and where the statements come from."""
        self._step = step
        self._statements = statements
        self._prefix = prefix

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """See `Notes.read`."""
        found: dict[str, Note] = {}
        wanted = list(names)
        for start in range(0, len(wanted), BATCH):
            found |= self._read(shelf, wanted[start : start + BATCH])
        return found

    def _read(self, shelf: str, names: Sequence[str]) -> dict[str, Note]:
        return dict(self._step(lambda session: self._notes(session, shelf, names)))

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """See `Notes.write`: each thousand is one transaction."""
        answers: list[int | None] = []
        for start in range(0, len(writes), BATCH):
            answers += self._step(partial(self._written, shelf=shelf, writes=writes[start : start + BATCH]))
        return answers

    def page(self, shelf: str, cursor: str = "", *, limit: int = 500) -> NotePage:
        """See `Notes.page`: in the order of names."""
        rows = self._step(
            lambda session: self._rows(session, "page_of_notes", shelf=shelf, cursor=cursor, limit=limit + 1)
        )
        notes = [_note(row) for row in rows[:limit]]
        return NotePage(notes, notes[-1].name if len(rows) > limit else "")

    # --- one step

    def _notes(self, session: Session, shelf: str, names: Sequence[str]) -> dict[str, Note]:
        rows = self._rows(session, "read_notes", {"names": names}, shelf=shelf)
        return {row[0]: _note(row) for row in rows}

    def _written(self, session: Session, *, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        session.run(self._statements().begin)
        ((now, version),) = self._rows(session, "lock_shelf", shelf=shelf)
        if version is None:
            self._begin_shelf(session, shelf)
        last = int(version or 0)
        known = self._notes(session, shelf, sorted({write.name for write in writes}))
        shelf_before = {name: (note.value, note.version, 0) for name, note in known.items()}
        changes, answers = _applied(writes, shelf_before, now=int(now), last=last)
        self._store(session, shelf, changes, last=max([last, *filter(None, answers)]))
        session.run("COMMIT")
        return answers

    def _begin_shelf(self, session: Session, shelf: str) -> None:
        """Write the row to be locked; whoever else did so first is waited for by beginning again."""
        values = {"prefix": self._prefix, "shelf": shelf, "value": b"", "version": 0, "ends": NEVER}
        if not session.change(self._statements().texts["begin_shelf"], values):
            raise TryAgain

    def _store(
        self, session: Session, shelf: str, changes: Mapping[str, tuple[bytes, int, int] | None], *, last: int
    ) -> None:
        kept = [(self._prefix, shelf, name, *row) for name, row in changes.items() if row is not None]
        gone = [name for name, row in changes.items() if row is None]
        self._fill(session, "put_notes", {"rows": [*kept, (self._prefix, shelf, "", b"", last, NEVER)]})
        if gone:
            self._fill(session, "delete_notes", {"names": gone}, shelf=shelf)

    def _rows(self, session: Session, name: str, lists: Mapping[str, Any] | None = None, /, **values: Any) -> list[Row]:
        statement, listed = filled(self._statements().texts[name], lists or {})
        return session.rows(statement, {"prefix": self._prefix, **values, **listed})

    def _fill(self, session: Session, name: str, lists: Mapping[str, Any], /, **values: Any) -> None:
        statement, listed = filled(self._statements().texts[name], lists)
        session.change(statement, {"prefix": self._prefix, **values, **listed})


def _note(row: Row) -> Note:
    return Note(row[0], bytes(row[1]), int(row[2]))


def _applied(
    writes: Sequence[Write], known: dict[str, tuple[bytes, int, int]], *, now: int, last: int
) -> tuple[dict[str, tuple[bytes, int, int] | None], list[int | None]]:
    """Judge each write in order; return what is then to be stored or removed, and the answers."""
    shelf: dict[str, tuple[bytes, int, int] | None] = dict(known)
    changed: set[str] = set()
    answers: list[int | None] = []
    for write in writes:
        there = shelf.get(write.name)
        if write.expected is not None and write.expected != (there[1] if there else 0):
            answers.append(None)
            continue
        last = max(now, last + 1)
        ends = now + microseconds(write.ttl)
        value = write.after(there[0] if there else b"")
        shelf[write.name] = None if value is None else (value, last, ends)
        changed.add(write.name)
        answers.append(last)
    return {name: shelf[name] for name in changed}, answers
