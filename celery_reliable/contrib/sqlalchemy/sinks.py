"""Writes that a late or repeated run cannot do, through SQLAlchemy, on a mapped class or a `Table`.

Each runs in the transaction of the session or connection it is given; committing is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, and_, insert, inspect, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapper, Session

from celery_reliable.errors import ConfigurationError
from celery_reliable.execution import sinks
from celery_reliable.stores.sql.errors import duplicate_of
from celery_reliable.stores.sql.statements import kind_of

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Select
    from sqlalchemy.engine import Connection

_INSERTS: Mapping[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_MARIADB = "mariadb"


def fenced_update(
    session: Session | Connection,
    target: Any,  # a mapped class or a Table
    /,
    *where: ColumnElement[bool],
    fence: int,
    fence_column: str = "fence",
    **changes: Any,
) -> int:
    """Update the rows that ``where`` names, unless a later claim has written them; return how many were changed.

    ``fenced_update(session, Order, Order.id == 7, fence=self.fence, status="paid")``, with a ``BIGINT`` column ``fence``
    that is 0 or NULL in rows no run has written yet.

    Guarantee: a row that was written under a higher fence is not changed. Then `LeaseLost` is raised: let it pass, so
    that the transaction is rolled back and the message of the replaced run goes back. `Transient` instead, when no other
    run took over and the store lost its memory of fences. The same run may write any number of times.

    Limits: it orders the runs of *one* job, so a column of fences serves one kind of job. It stops a stale holder from
    overwriting; it does not stop a later run from doing the work again (`insert_once`, or the inbox). Name rows by what
    stays, their id, not by what the update changes. Two statements.

    .. versionadded:: 0.1
    """
    if not where:
        raise TypeError("fenced_update: expected conditions that name the rows, found none; give e.g. Order.id == 7")
    number, column = sinks.checked_fence(fence), _column(target, fence_column)
    free = or_(column.is_(None), column <= number)
    result: Any = session.execute(update(target).where(*where, free).values({**changes, fence_column: number}))
    if session.execute(_reading_anew(session, select(column).where(and_(*where, column > number)).limit(1))).first():
        raise sinks.refusal(number, table=_table(target).name)
    return int(result.rowcount)


def transition(
    session: Session | Connection,
    target: Any,  # a mapped class or a Table
    pk: Any,
    /,
    *,
    field: str = "status",
    from_: Any,
    to: Any,
    **changes: Any,
) -> bool:
    """Move one row from one state to another, with further ``changes``; true when this caller moved it.

    ``transition(session, Mail, 7, from_="pending", to="sent")``; ``from_`` may be several states, a composite ``pk`` is
    a tuple.

    Guarantee: of any number of callers at the same time one is told true, for the row is asked and changed by one
    statement; another one waits for the transaction of the first. Limits: false says only that the row was not in
    ``from_``: moved already, in another state, or not there. What is done *after* the move, outside its transaction, is
    lost by a crash between the two; what is done before it may be done twice.

    .. versionadded:: 0.1
    """
    states, column = sinks.states_before(from_, to=to), _column(target, field)
    keys = inspect(target).primary_key if not isinstance(target, Table) else target.primary_key.columns
    values = pk if isinstance(pk, tuple) else (pk,)
    row = [key == value for key, value in zip(keys, values, strict=True)]
    among = or_(*(column.is_(None) if state is None else column == state for state in states))
    result: Any = session.execute(update(target).where(*row, among).values({**changes, field: to}))
    return int(result.rowcount) == 1


def insert_once(
    session: Session | Connection,
    target: Any,  # a mapped class or a Table
    /,
    *,
    unique: str | Iterable[str],
    **values: Any,
) -> bool:
    """Insert a row unless one with the same ``unique`` columns is there; true when this caller inserted it.

    ``insert_once(session, Payment, unique="order_id", order_id=7, amount=990)``.

    Guarantee: the unique index over exactly these columns is the arbiter, so one of any number of callers is told true;
    without such an index the database refuses the statement. A caller that meets an insert which is not committed yet
    waits for its end. Every other violation (another unique index, a foreign key) raises as usual. Limits: PostgreSQL,
    SQLite and MariaDB, there with a second statement that looks for the index; the row that was there is not compared with
    ``values``; no ORM object is made.

    .. versionadded:: 0.1
    """
    deciding = [_column(target, name) for name in sinks.arbiters(unique, value=values.get)]
    row = {_column(target, name): value for name, value in values.items()}
    kind = _kind(session)
    if kind == _MARIADB:
        return _inserted_on_mariadb(session, _table(target), deciding, row)
    if kind not in _INSERTS:
        found = f"insert_once: expected a database on {' or '.join((*_INSERTS, _MARIADB))}, found {kind}"
        raise ConfigurationError(f"{found}; insert in a savepoint and take IntegrityError for false")
    once = _INSERTS[kind](_table(target)).values(row).on_conflict_do_nothing(index_elements=deciding)
    return session.execute(once.returning(deciding[0])).first() is not None


def _inserted_on_mariadb(session: Session | Connection, table: Table, deciding: list[Column[Any]], row: Any) -> bool:
    """Insert, and take the duplicate that the right index has found for an answer: the transaction goes on after it.

    Of its own statements IGNORE would also cut what is too long, and ON DUPLICATE KEY heeds every unique index.
    """
    indexes = _unique_indexes(session, table, {column.name for column in deciding})
    try:
        session.execute(insert(table).values(row))
    except IntegrityError as exc:
        if duplicate_of(exc) in indexes:
            return False
        raise
    return True


_INDEXES = text("""
SELECT index_name, column_name FROM information_schema.statistics
WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name AND non_unique = 0
""")


def _unique_indexes(session: Session | Connection, table: Table, names: set[str]) -> set[str]:
    """Return the indexes over exactly these columns. Raises `ConfigurationError` when every caller would insert."""
    columns: dict[str, set[str]] = {}
    for index, column in session.execute(_INDEXES, {"schema": table.schema, "name": table.name}):
        columns.setdefault(index, set()).add(column)
    found = {index for index, indexed in columns.items() if indexed == names}
    if not found:
        expected = f"insert_once: expected a unique index over ({', '.join(sorted(names))}) of {table.name}, found none"
        raise ConfigurationError(f"{expected}; add one")
    return found


def _reading_anew(session: Session | Connection, query: Select[Any]) -> Select[Any]:
    """Let a query see what is committed by now: on MariaDB a transaction shows the time of its first look."""
    return query.with_for_update(read=True) if _kind(session) == _MARIADB else query


def _kind(session: Session | Connection) -> str:
    bind = session.get_bind() if isinstance(session, Session) else session
    return kind_of(bind.dialect.name)


def _table(target: Any) -> Any:
    return target if isinstance(target, Table) else _mapper(target).local_table


def _column(target: Any, name: str) -> Column[Any]:
    """Return a column by its name in a `Table`, by its attribute in a mapped class. Raises `ConfigurationError`."""
    known: Any = target.columns if isinstance(target, Table) else _mapper(target).columns
    if name not in known:
        found = f"{_table(target).name}: expected one of its columns ({', '.join(known.keys())}), found {name!r}"
        raise ConfigurationError(f"{found}; correct the name")
    column: Column[Any] = known[name]
    return column


def _mapper(target: Any) -> Mapper[Any]:
    found: Mapper[Any] = inspect(target)
    return found
