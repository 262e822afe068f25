"""Writes that a late or repeated run cannot do, through Django's models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Model, Q

from celery_reliable.errors import ConfigurationError
from celery_reliable.execution import sinks


def fenced_update(queryset: Any, /, *, fence: int, fence_field: str = "fence", **changes: Any) -> int:
    """Update the rows of a queryset, unless a later claim has written them; return how many were changed.

    ``fenced_update(Order.objects.filter(pk=7), fence=self.fence, status="paid")``, with a ``BigIntegerField`` ``fence``
    whose default is 0.

    Guarantee: a row that was written under a higher fence is not changed. Then `LeaseLost` is raised and nothing of this
    update is kept, nor of the ``atomic`` block around it; let it pass, so that the message of the replaced run goes back.
    `Transient` instead, when no other run took over and the store lost its memory of fences. The same run may write any
    number of times.

    Limits: it orders the runs of *one* job, so a field of fences serves one kind of job. It stops a stale holder from
    overwriting; it does not stop a later run from doing the work again (`insert_once`, or the inbox). Name rows by what
    stays, their id, not by what the update changes. Two statements in one transaction; no ``save()``, no signals.

    .. versionadded:: 0.1
    """
    number = sinks.checked_fence(fence)
    alias = queryset.select_for_update().db  # the database that is written, never a replica
    rows = queryset.using(alias)
    free = Q(**{f"{fence_field}__lte": number}) | Q(**{f"{fence_field}__isnull": True})
    with transaction.atomic(using=alias, savepoint=False):
        changed = rows.filter(free).update(**{**changes, fence_field: number})
        if _read_anew(rows.filter(**{f"{fence_field}__gt": number}), alias).exists():
            raise sinks.refusal(number, table=queryset.model._meta.label)
    return int(changed)


def transition(
    model: type[Model],
    pk: Any,
    /,
    *,
    field: str = "status",
    from_: Any,
    to: Any,
    using: str | None = None,
    **changes: Any,
) -> bool:
    """Move one row from one state to another, with further ``changes``; true when this caller moved it.

    ``transition(Mail, 7, from_="pending", to="sent")``; ``from_`` may be several states.

    Guarantee: of any number of callers at the same time one is told true, for the row is asked and changed by one
    statement; another one waits for the transaction of the first. Limits: false says only that the row was not in
    ``from_``: moved already, in another state, or not there. What is done *after* the move, outside its transaction, is
    lost by a crash between the two; what is done before it may be done twice. No ``save()``, no signals.

    .. versionadded:: 0.1
    """
    states = sinks.states_before(from_, to=to)
    named = Q(**{f"{field}__in": [state for state in states if state is not None]})
    among = named | Q(**{f"{field}__isnull": True}) if None in states else named
    alias = using or router.db_for_write(model)
    return bool(model._base_manager.using(alias).filter(among, pk=pk).update(**{**changes, field: to}))


def insert_once(model: type[Model], /, *, unique: str | Iterable[str], using: str | None = None, **values: Any) -> bool:
    """Insert a row unless one with the same ``unique`` fields is there; true when this caller inserted it.

    ``insert_once(Payment, unique="order", order=order, amount=990)``.

    Guarantee: the unique constraint over exactly these fields is the arbiter, so one of any number of callers is told
    true; a model without it is refused with `ConfigurationError`. A caller that meets an insert which is not committed yet
    waits for its end. Every other violation (another unique constraint, a foreign key) raises ``IntegrityError``. Limits:
    the row that was there is not compared with ``values``; on PostgreSQL the transaction's level is Django's own,
    ``READ COMMITTED``; on MariaDB callers whose predecessor rolls back may meet in a deadlock, which the server ends with
    an error. Inside an ``atomic`` block it takes a savepoint.

    .. versionadded:: 0.1
    """
    alias, row = using or router.db_for_write(model), model(**values)
    names = sinks.arbiters(unique, value=lambda name: _value(row, name))
    _refuse_without_arbiter(model, {model._meta.get_field(name).name for name in names})
    try:
        with transaction.atomic(using=alias):
            row.save(force_insert=True, using=alias)
    except IntegrityError:
        same = {name: _value(row, name) for name in names}
        with transaction.atomic(using=alias, savepoint=False):
            if not _read_anew(model._base_manager.using(alias).filter(**same), alias).exists():
                raise
        return False
    return True


def _read_anew(queryset: Any, alias: str) -> Any:
    """Let a query see what is committed by now: a transaction of MariaDB may show the time of its first look."""
    return queryset.select_for_update() if connections[alias].vendor == "mysql" else queryset


def _value(row: Model, name: str) -> Any:
    return getattr(row, row._meta.get_field(name).attname)


def _refuse_without_arbiter(model: type[Model], names: set[str]) -> None:
    """Refuse a model on which the insert would succeed twice."""
    meta = model._meta
    known = [{field.name} for field in meta.fields if field.unique]
    known += [set(names) for names in meta.unique_together]
    known += [set(one.fields) for one in meta.total_unique_constraints if one.deferrable is None]
    if names not in known:
        found = (
            f"insert_once: expected a unique constraint over ({', '.join(sorted(names))}) of {meta.label}, found none"
        )
        raise ConfigurationError(
            f"{found}; add a UniqueConstraint without condition to its Meta.constraints, and migrate"
        )
