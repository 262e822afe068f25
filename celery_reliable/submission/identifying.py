"""Say which job a call is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone

from celery_reliable import keys
from celery_reliable.errors import ReliableError, Transient
from celery_reliable.keys import Identity
from celery_reliable.runtime import Runtime
from celery_reliable.stores.base import Job, Kind
from celery_reliable.submission.calls import Call

_carried: ContextVar[bool] = ContextVar("celery_reliable_carried", default=False)


@contextmanager
def carried() -> Iterator[None]:
    """Send what came in a message: whether its arguments fit is for its worker to find, not for this one to refuse."""
    token = _carried.set(True)
    try:
        yield
    finally:
        _carried.reset(token)


def identify(call: Call, *, runtime: Runtime) -> Identity:
    """Say which job a call is (see `keys`)."""
    task, parent = call.task, keys.current_parent()
    bound = _bound(call, needed=bool(call.declared or task.has_key_rule or parent), runtime=runtime)
    task_id = call.task_id or (parent and _child_id(call, parent, bound)) or str(uuid.uuid4())
    keys.checked_id(task_id, task=task.name)
    nesting = int(call.options.get("replaced_task_nesting") or 0)
    stamp = runtime.store.now() if runtime.ledger else _wall_clock()
    if isinstance(call.declared, keys.SlotKey):
        return Identity(Job(str(call.declared), "slot", stamp), task_id, "", 1)
    declared = call.declared or (bound is not None and not nesting and _key_by_rule(call, bound))
    if declared:
        print_ = task.fingerprint_of(bound) if bound is not None else ""
        key = keys.checked_key(declared, task=task.name)
        return Identity(Job(key, "declared", stamp), task_id, print_, 0, nesting)
    kind: Kind = "own"
    if call.task_id:
        kind = "given"
    elif parent:
        kind = "derived"
    return Identity(Job(keys.own_key(task_id, nesting), kind, stamp), task_id, "", 1, nesting)


def _bound(call: Call, *, needed: bool, runtime: Runtime) -> keys.Bound | None:
    """Bind the arguments if they are needed; refuse those that do not fit, as Celery does, before anything is stored."""
    try:
        if needed:
            return call.task.bound(*call.whole(runtime), version=call.version)
        if call.task.checks_arguments and not _carried.get() and call.aside is None:
            call.task.check_arguments(call.args, call.kwargs, version=call.version)
    except Transient:
        raise
    except (TypeError, ReliableError):
        if not _carried.get():
            raise
    return None


def _key_by_rule(call: Call, bound: keys.Bound) -> str | None:
    try:
        return call.task.declared_key(bound)
    except Exception:  # what a project's rule raises for arguments that it does not expect
        if not _carried.get():
            raise
    return None


def _child_id(call: Call, parent: keys.Parent, bound: keys.Bound | None) -> str | None:
    try:
        return parent.child_id(call.task.name_in_keys, keys.canonical(bound and bound.said))
    except TypeError:
        return None  # arguments without a canonical form: the call is a job of its own


def _wall_clock() -> int:
    return int(datetime.now(timezone.utc).timestamp() * 1_000_000)


def in_life(identity: Identity, life: int) -> Identity:
    """Return an identity in another life of its job."""
    if identity.life == life:
        return identity
    return Identity(identity.job, identity.task_id, identity.fingerprint, life, identity.nesting)
