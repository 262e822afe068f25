"""Write a submission into the caller's own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery_reliable import internals
from celery_reliable.errors import ConfigurationError, DuplicateTask
from celery_reliable.keys import Identity
from celery_reliable.publishing import envelope_of, sealed
from celery_reliable.relay import Relay
from celery_reliable.runtime import Runtime
from celery_reliable.stores.outbox import named_transaction
from celery_reliable.submission.calls import Call, facts_of
from celery_reliable.submission.sending import headers_of

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_reliable.stores.outbox import Outbox, Transaction
    from celery_reliable.task import ReliableTask


def callers_transaction(call: Call, identity: Identity, *, runtime: Runtime) -> Transaction | None:
    """Return the open transaction to which the submission belongs. Raises `ConfigurationError` for one it cannot be in."""
    outbox = runtime.store.outbox
    if outbox is None:
        if named_transaction() is not None:
            found = f"{call.task.name}: outbox: expected a store in a database, found {type(runtime.store).__name__}"
            raise ConfigurationError(f"{found}; set reliable_store_url to the database of the session")
        return None
    transaction = outbox.transaction()
    if transaction is None and (database := outbox.elsewhere()):
        runtime.events.emit("outside", **facts_of(call, identity), database=database)
    return transaction


def promise(call: Call, identity: Identity, transaction: Transaction, *, runtime: Runtime) -> AsyncResult[Any]:
    """Write a submission into the caller's transaction: its row is the promise that it is published after the commit.

    Nothing is published now, so a broker that is away raises nothing. What the database refuses raises `StoreError`;
    then the caller's transaction has failed, too. The key is decided at the publish: until then nobody sees the row.
    """
    task, outbox = call.task, cast("Outbox", runtime.store.outbox)
    settings = task.reliable_settings
    if (settings.on_conflict == "queue_one" or settings.dedup_for is not None) and identity.job.kind == "declared":
        option = "debounce" if settings.debounce is not None else "on_conflict='queue_one'"
        option = option if settings.dedup_for is None else "dedup_for"
        found = f"{task.name}: {option}: expected a call outside of a transaction, found one inside"
        raise ConfigurationError(f"{found}; submit it after the commit")
    if task.reliable_settings.on_conflict == "raise" and identity.job.kind == "declared":
        _refuse_second(call, identity, outbox.holder(transaction, identity.job))
    options = {**_lineage(task), **call.options, "headers": headers_of(call, identity)}
    args, kwargs = internals.dumped_arguments(task, call.args, call.kwargs)
    envelope = sealed(task.app, envelope_of(task, args, kwargs, task_id=identity.task_id, options=options))
    outbox.promise(transaction, identity.job, task_id=identity.task_id, envelope=envelope.to_bytes())
    transaction.after_commit(Relay(task.app, outbox), identity.task_id)
    return task.AsyncResult(identity.task_id)


def _refuse_second(call: Call, identity: Identity, holder: tuple[str, str] | None) -> None:
    if holder is not None and holder[0] != identity.task_id:
        existing_id, state = holder
        msg = f"{call.task.name}: {identity.job.key!r} is {state} as task {existing_id} (on_conflict=raise)"
        raise DuplicateTask(msg, existing_id=existing_id, state=state)


def _lineage(task: ReliableTask) -> dict[str, Any]:
    """Return what a message has from where it is sent, as ``Celery.send_task`` (5.7) does: it may be sent elsewhere later."""
    parent, found = task.app.current_worker_task, {"reply_to": task.app.thread_oid}
    if parent is None:
        return found
    request = parent.request
    found |= {"root_id": request.root_id or request.id, "parent_id": request.id}
    if task.app.conf.task_inherit_parent_priority:
        found["priority"] = (request.delivery_info or {}).get("priority")
    return found
