"""Submit a call: say which job it is, have the store accept it, publish it, or take it back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from celery import Task, current_task
from celery.utils.time import maybe_iso8601
from kombu.utils import json as kombu_json

from celery_reliable import blobs, claim_check, internals, keys, overlap, signature_versions
from celery_reliable.errors import (
    ConfigurationError,
    DuplicateTask,
    PayloadMismatch,
    QueueFull,
    ReliableError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Transient,
)
from celery_reliable.flow.rounds import Round, round_key
from celery_reliable.keys import HEADER, Identity
from celery_reliable.payloads import ARGUMENTS_HEADER, VERSION_HEADER
from celery_reliable.publishing import LIVE_RECORD_TTL, envelope_of, plain_options, sealed
from celery_reliable.questions import Otherwise, Question
from celery_reliable.relay import Relay
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.settings.model import RULES
from celery_reliable.stores.base import BeginSubmit, Existing, Job, Kind, Mismatch, New, SubmitAnswer
from celery_reliable.stores.outbox import named_transaction
from celery_reliable.waits import Wait

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_reliable.flow.admission import Admission
    from celery_reliable.stores.outbox import Outbox, Transaction
    from celery_reliable.task import ReliableTask

_REPLACING = ("replace", "queue_one")
_KEEPING: dict[str, Any] = {"ttl": LIVE_RECORD_TTL}
_ROUNDS = 100
_SIGNATURES = ("link", "link_error", "chain", "chord")
_CANVAS = (*_SIGNATURES, "group_id")
_OF_ONE_MESSAGE: dict[str, None] = {HEADER: None, VERSION_HEADER: None, ARGUMENTS_HEADER: None}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a task as it came to ``apply_async``; ``options`` are those under which it is sent."""

    task: ReliableTask
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task_id: str | None
    declared: str | None
    options: dict[str, Any]
    importance: str | None = None

    @property
    def has_canvas(self) -> bool:
        """Whether something is chained to this call."""
        return bool(self.options) and any(self.options.get(name) for name in _CANVAS)

    @property
    def version(self) -> int:
        """The payload version of the arguments: this code's, unless the signature that is sent names another."""
        return (self.options.get("headers") or {}).get(VERSION_HEADER) or self.task.payload_version

    @property
    def aside(self) -> claim_check.Aside | None:
        """Where the arguments are that the signature does not carry itself."""
        headers = self.options.get("headers")
        return claim_check.Aside.of(headers) if headers else None

    def whole(self, runtime: Runtime) -> claim_check.Arguments:
        """Return all arguments. Raises what `claim_check.whole` raises."""
        aside = self.aside
        if aside is None:
            return self.args, self.kwargs
        return claim_check.whole(aside, self.args, self.kwargs, app=self.task.app, runtime=runtime)

    def with_headers(self, **changed: Any) -> Call:
        """Return a copy with other headers; None takes one out."""
        headers = {**(self.options.get("headers") or {}), **changed}
        kept = {name: value for name, value in headers.items() if value is not None}
        return replace(self, options={**self.options, "headers": kept})


_carried: ContextVar[bool] = ContextVar("celery_reliable_carried", default=False)


@contextmanager
def carried() -> Iterator[None]:
    """Send what came in a message: whether its arguments fit is for its worker to find, not for this one to refuse."""
    token = _carried.set(True)
    try:
        yield
    finally:
        _carried.reset(token)


def submit(call: Call) -> AsyncResult[Any]:
    """Submit a call and return its result handle.

    When this returns, the job is accepted and published, or the handle is that of the job which already has the key. In a
    transaction on the store's own database it is accepted by the commit, and published after that (see `_promise`).
    Raises `DuplicateTask`, `PayloadMismatch`, `QueueFull`, `StoreUnavailable`, and what publishing raises; then the
    task will not run (or the message says that it may).
    """
    runtime = runtime_of(call.task.app)
    if HEADER in (call.options.get("headers") or {}):  # handed on from another message: what we said of that one
        call = call.with_headers(**_OF_ONE_MESSAGE)
    if call.has_canvas:
        canvas = [call.options.get(name) for name in _SIGNATURES]
        signature_versions.write_versions(canvas, version_of=call.task.version_of)
    identity = identify(call, runtime=runtime)
    shed = _admit(call, identity, admission=runtime.admission)
    if shed:
        runtime.events.emit("shed", **_facts(call, identity), **shed)
        return _skip(call, identity, f"shed: queue {shed['queue']} is full")
    call = _in_lane(call, identity, runtime=runtime)
    transaction = _callers_transaction(call, identity, runtime=runtime)
    if transaction is not None:
        return _promise(call, identity, transaction, runtime=runtime)
    reason = _foreseen_skip(call, identity, runtime=runtime)
    if reason:
        runtime.events.emit("skipped", **_facts(call, identity), policy=_overlap_of(call), reason=reason)
        return _skip(call, identity, f"skipped: {reason}")
    if runtime.blobs is None:
        return _accepted(call, identity, runtime=runtime)
    light = _lightened(call, identity, runtime=runtime)
    try:
        return _accepted(light, identity, runtime=runtime)
    except StoreUnavailable:  # it may run all the same
        raise
    except (StoreError, DuplicateTask, PayloadMismatch, QueueFull):  # of others, `_withdraw` knows whether it may run
        _forget(light, identity, runtime=runtime)
        raise


def _accepted(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Have the store accept a call, and publish it."""
    if identity.job.kind != "declared" and not runtime.ledger:
        return _publish(call, identity, runtime=runtime)
    settings = call.task.reliable_settings
    if identity.job.kind == "declared" and settings.on_conflict == "queue_one":
        return _queue(call, identity, runtime=runtime)
    if identity.job.kind == "declared" and settings.dedup_for is not None:
        return _in_window(call, identity, runtime=runtime)
    begin = runtime.store.begin_submit
    asks_first = "connection" in call.options or "publisher" in call.options or settings.on_conflict in _REPLACING
    if begin is None or asks_first:  # arguments once replaced are not taken back when no message can be built
        return _follow(call, identity, _submitted(call, identity, runtime=runtime), runtime=runtime)
    return _built_meanwhile(call, identity, begin, runtime=runtime)


def _built_meanwhile(call: Call, identity: Identity, begin: BeginSubmit, *, runtime: Runtime) -> AsyncResult[Any]:
    """Build the message of a key that nobody has had before while the store looks at the key.

    Its answer is seen before anybody is told of the message; another one than foreseen is followed as ever.
    """
    answer = begin(identity.job, **_submission(call, identity, runtime=runtime))
    question = Question(
        lambda: _answered(answer, call, identity, runtime=runtime),
        on_new=lambda: runtime.events.emit("submitted", **_facts(call, identity)),
    )
    try:
        return _publish(call, _in_life(identity, 1), runtime=runtime, question=question)
    except Otherwise:
        found = cast("SubmitAnswer", question.answer)
    return _follow(call, identity, found, runtime=runtime)


def _submitted(call: Call, identity: Identity, *, runtime: Runtime) -> SubmitAnswer:
    """Have the store accept a call."""
    facts = _submission(call, identity, runtime=runtime)
    return _answered(lambda: runtime.store.submit(identity.job, **facts), call, identity, runtime=runtime)


def _submission(call: Call, identity: Identity, *, runtime: Runtime) -> dict[str, Any]:
    replaces = call.task.reliable_settings.on_conflict in _REPLACING
    return {
        "task_id": identity.task_id,
        "fingerprint": identity.fingerprint,
        "envelope": _envelope_bytes(call, identity, runtime=runtime),
        "canvas": call.has_canvas,
        **(_replacing(call, runtime=runtime) if replaces else _KEEPING),
    }


def _answered(ask: Callable[[], SubmitAnswer], call: Call, identity: Identity, *, runtime: Runtime) -> SubmitAnswer:
    """Return what the store says of a call; what may have been accepted without an answer is taken back."""
    try:
        return ask()
    except StoreFull as exc:
        msg = f"{call.task.name}: the store is at its memory limit, nothing was submitted; {exc}"
        raise QueueFull(msg) from exc
    except StoreUnavailable as exc:
        _withdraw(call, identity, cause=exc, runtime=runtime)
        raise
    except StoreError:  # refused
        raise
    except BaseException as exc:  # a time limit, Ctrl-C: what it interrupted may have been accepted
        with suppress(StoreUnavailable):
            _withdraw(call, identity, cause=exc, runtime=runtime)
        raise


def _replacing(call: Call, *, runtime: Runtime) -> dict[str, Any]:
    """Say how a submission takes the place of one that waits."""
    settings = call.task.reliable_settings
    longest = settings.longest_debounce
    given = {"delay": settings.debounce or 0.0, "delay_max": longest, "ttl": LIVE_RECORD_TTL + longest}
    return {"replace": True, "swept": runtime.ledger, **given}


def _follow(call: Call, identity: Identity, answer: SubmitAnswer, *, runtime: Runtime) -> AsyncResult[Any]:
    """Do what the store's answer asks for."""
    match answer:
        case New(life):
            runtime.events.emit("submitted", **_facts(call, identity))
            return _publish(call, _in_life(identity, life), runtime=runtime)
        case Existing():
            return _join(call, identity, answer, runtime=runtime)
        case Mismatch(existing_id):
            msg = (
                f"{call.task.name}: idempotency_key {identity.job.key!r} belongs to task {existing_id} with other "
                "arguments; use another key, or name the arguments that matter in fingerprint_args"
            )
            raise PayloadMismatch(msg, existing_id=existing_id)


def _queue(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Join the round of a key that has not begun, or begin the next one (see `flow.rounds`)."""
    name, rounds = identity.job.key, runtime.rounds
    for _ in range(_ROUNDS):
        number = rounds.present(name)
        this = replace(_of_round(identity, number), fingerprint="")
        answer = _submitted(call, this, runtime=runtime)
        if not _has_begun(answer, this):
            return _follow(call, this, answer, runtime=runtime)
        rounds.advance(name, begun=number)
    raise _overtaken(call, name)


def _in_window(call: Call, identity: Identity, *, runtime: Runtime) -> AsyncResult[Any]:
    """Join the job that a key has in its window, or until it is done; begin the next one after that (see `flow.rounds`)."""
    name, rounds = identity.job.key, runtime.rounds
    for _ in range(_ROUNDS):
        present = rounds.look(name)
        this = _of_round(identity, present.number)
        if not present.window and _is_done(this, runtime=runtime):
            rounds.leave(name, done=present.number)
            continue
        answer = _submitted(call, this, runtime=runtime)
        if isinstance(answer, New) or (
            not present.window and isinstance(answer, Existing) and answer.publish == "same"
        ):
            _open_window(call, this, present, name=name, runtime=runtime)
        return _follow(call, this, answer, runtime=runtime)
    raise _overtaken(call, name)


def _is_done(identity: Identity, *, runtime: Runtime) -> bool:
    """Tell whether a job is done and was submitted under another id; the same id again is the same submission."""
    record = runtime.store.inspect(identity.job)
    return record.get("state") == "done" and record.get("task_id") != identity.task_id


def _open_window(call: Call, identity: Identity, known: Round, *, name: str, runtime: Runtime) -> None:
    """Open the window of a job that is about to be published."""
    try:
        runtime.rounds.open(name, known=known, ttl=call.task.reliable_settings.dedup_for or 0.0)
    except StoreError as exc:
        _withdraw(call, identity, cause=exc, runtime=runtime)
        raise


def _of_round(identity: Identity, number: int) -> Identity:
    job = identity.job
    return replace(identity, job=Job(round_key(job.key, number), "declared", job.stamp))


def _overtaken(call: Call, name: str) -> StoreUnavailable:
    msg = f"{call.task.name}: {name!r} was begun {_ROUNDS} times while this call was submitted; submit it again"
    return StoreUnavailable(msg)


def _has_begun(answer: SubmitAnswer, identity: Identity) -> bool:
    """Tell whether a submission came too late for its round; the same id again is the same submission."""
    if not isinstance(answer, Existing) or answer.task_id == identity.task_id or answer.state == "revoked":
        return False
    return not answer.replaced


def _join(call: Call, identity: Identity, found: Existing, *, runtime: Runtime) -> AsyncResult[Any]:
    """Meet a job that has the key: join it, unless the task says otherwise."""
    same = found.task_id == identity.task_id
    facts = _facts(call, identity) | {"existing_id": found.task_id, "state": found.state}
    runtime.events.emit("child_known" if same and identity.job.kind == "derived" else "existing", **facts)
    settings = call.task.reliable_settings
    started = settings.on_conflict == "replace" and not found.replaced
    if not same and (settings.on_conflict == "raise" or started) and found.publish != "own":
        msg = f"{call.task.name}: {identity.job.key!r} is {found.state} as task {found.task_id} (on_conflict={settings.on_conflict})"
        raise DuplicateTask(msg, existing_id=found.task_id, state=found.state)
    if found.publish == "own":
        return _publish(call, replace(identity, life=found.life), runtime=runtime)
    if found.publish == "same":
        again = replace(identity, task_id=found.task_id, life=found.life)
        return _publish(call, again, runtime=runtime, withdraw=False)  # an earlier publish may have succeeded
    if not found.replaced:
        _forget(call, identity, runtime=runtime)
    if found.outcome is not None:
        _store_result_again(call.task, found.task_id, found.outcome)
    return call.task.AsyncResult(found.task_id)


# --- admission


def _admit(call: Call, identity: Identity, *, admission: Admission | None) -> dict[str, Any]:
    """Return when a call may be sent; facts about its queue if it is to be shed instead. Raises `QueueFull`.

    What a worker sends for work that was accepted (the next step of a chain, a callback, the body of a chord) is never held
    up. What is chained to others is not shed, since these would wait for it.
    """
    if admission is None or _goes_on():
        return {}
    queue = internals.target_queue(call.task, call.options, call.args, call.kwargs)
    importance = call.importance or call.task.reliable_settings.importance
    may_shed = importance == "best_effort" and not call.has_canvas
    waiting = admission.ask(queue, may_shed=may_shed, headroom=identity.job.kind == "slot")
    return {} if waiting is None else {"queue": queue, "depth": waiting.depth, "age": waiting.age}


def _goes_on() -> bool:
    """Tell whether a worker submits outside of the body that it runs."""
    return hasattr(current_task, "reliable_settings") and keys.current_parent() is None


# --- lanes


def _in_lane(call: Call, identity: Identity, *, runtime: Runtime) -> Call:
    """Return a call as it goes into the lane of its fairness key; into the queue itself if it has none.

    What a key cannot be made of is no reason to refuse the call: that is told once for each task.
    """
    lanes, task = runtime.lanes, call.task
    if (
        lanes is None
        or type(task).fairness_key is None
        or internals.sending_options(task, call.options).get("exchange")
    ):
        return call
    queue = internals.target_queue(task, call.options, call.args, call.kwargs)
    if queue not in lanes:
        return call
    try:
        key = str(task.fairness_name(*call.whole(runtime), version=call.version))
    except Exception as exc:  # noqa: BLE001  # whatever a project's callable raises
        if (task.name, "fairness_key") not in runtime.warned:
            runtime.warned.add((task.name, "fairness_key"))
            runtime.events.emit("no_fairness_key", **_facts(call, identity), queue=queue, error=str(exc))
        return call
    lane = lanes.chosen(queue, key=key, task_id=identity.task_id)
    return replace(call, options={**call.options, "queue": lane})


# --- what is too large for a message


def _lightened(call: Call, identity: Identity, *, runtime: Runtime) -> Call:
    """Return the call with its large arguments kept aside, and those of all that is chained to it. Raises `Transient`."""
    if call.has_canvas:
        names = [name for name in _SIGNATURES if call.options.get(name)]
        lightened = {
            name: claim_check.changed_signatures(
                call.options[name], lambda one: _lightened_signature(one, call, runtime=runtime)
            )
            for name in names
        }
        call = replace(call, options={**call.options, **lightened})
    if call.task.keeps_arguments_inline or overlap.KEY_HEADER in _headers_given(call):
        return call
    arguments = internals.dumped_arguments(call.task, call.args, call.kwargs)
    made = _kept(arguments, call.task, call, owner=identity.task_id, runtime=runtime)
    if made is None:
        return call
    if call.aside is not None:  # what came from the step before is large, too
        arguments = internals.dumped_arguments(call.task, *call.whole(runtime))
        _drop(made, runtime=runtime)
        made = _kept(arguments, call.task, call, owner=identity.task_id, runtime=runtime) or made
    return replace(call, args=(), kwargs={}).with_headers(**{ARGUMENTS_HEADER: made.to_header()})


def _lightened_signature(signature: dict[str, Any], call: Call, *, runtime: Runtime) -> dict[str, Any]:
    """Return a signature that carries where its arguments are, if they are large and its task can read them."""
    task: Any = call.task.app.tasks.get(signature["task"])  # Any: a task of any class
    options = signature.get("options") or {}
    headers = options.get("headers") or {}
    if getattr(task, "keeps_arguments_inline", True) or ARGUMENTS_HEADER in headers:
        return signature
    arguments = internals.dumped_arguments(
        task, tuple(signature.get("args") or ()), dict(signature.get("kwargs") or {})
    )
    owner = str(options.get("task_id") or "")
    made = _kept(arguments, task, call, owner=owner, runtime=runtime, again=runtime.bodies_aside)
    if made is None:
        return signature
    options = {**options, "headers": {**headers, ARGUMENTS_HEADER: made.to_header()}}
    return {**signature, "args": [], "kwargs": {}, "options": options}


def _kept(
    arguments: claim_check.Arguments,
    task: ReliableTask,
    call: Call,
    *,
    owner: str,
    runtime: Runtime,
    again: dict[Any, claim_check.Aside] | None = None,
) -> claim_check.Aside | None:
    return claim_check.kept(
        arguments,
        limit=task.reliable_settings.claim_check_threshold,
        serializer=str(call.options.get("serializer") or task.serializer or task.app.conf.task_serializer),
        ttl=_seconds_until_due(call.options) + blob_ttl(runtime),
        owner=owner,
        runtime=runtime,
        again=again,
    )


def blob_ttl(runtime: Runtime) -> float:
    """Return how long arguments are kept aside: as long as a message waits and runs, and then its dead letter."""
    return runtime.settings.dead_letter_ttl + 2 * LIVE_RECORD_TTL


def _seconds_until_due(options: Mapping[str, Any]) -> float:
    if not (options.get("eta") or options.get("countdown")):
        return 0.0
    due: Any = maybe_iso8601(plain_options({name: options.get(name) for name in ("eta", "countdown")}).get("eta"))
    if due is None:
        return 0.0
    aware = due if due.tzinfo else due.replace(tzinfo=timezone.utc)
    return max(float((aware - datetime.now(timezone.utc)).total_seconds()), 0.0)


def _forget(call: Call, identity: Identity, *, runtime: Runtime) -> None:
    """Remove what was kept aside for a call that is not published."""
    aside = call.aside
    if aside is not None and aside.owner == identity.task_id:
        _drop(aside, runtime=runtime)


def _drop(aside: claim_check.Aside, *, runtime: Runtime) -> None:
    if runtime.blobs is not None:
        runtime.blobs.remove(aside.ref)


# --- the caller's transaction


def _callers_transaction(call: Call, identity: Identity, *, runtime: Runtime) -> Transaction | None:
    """Return the open transaction to which the submission belongs. Raises `ConfigurationError` for one it cannot be in."""
    outbox = runtime.store.outbox
    if outbox is None:
        if named_transaction() is not None:
            found = f"{call.task.name}: outbox: expected a store in a database, found {type(runtime.store).__name__}"
            raise ConfigurationError(f"{found}; set reliable_store_url to the database of the session")
        return None
    transaction = outbox.transaction()
    if transaction is None and (database := outbox.elsewhere()):
        runtime.events.emit("outside", **_facts(call, identity), database=database)
    return transaction


def _promise(call: Call, identity: Identity, transaction: Transaction, *, runtime: Runtime) -> AsyncResult[Any]:
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
    options = {**_lineage(task), **call.options, "headers": _headers(call, identity)}
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


# --- skip


def _foreseen_skip(call: Call, identity: Identity, *, runtime: Runtime) -> str:
    """Say why a call would be skipped if a worker had it now; "" if it may run, or if only the worker can tell.

    A declared key may join its own job, something chained must be told by the worker, and what is due later meets others.
    """
    policy = _overlap_of(call)
    later = call.options.get("eta") or call.options.get("countdown")
    if policy not in ("forbid", "queue") or identity.job.kind == "declared" or call.has_canvas or later or call.aside:
        return ""
    try:
        rule = _headers_given(call).get(overlap.KEY_HEADER)
        name = call.task.overlap_name(call.args, call.kwargs, rule=rule, version=call.version)
        me = overlap.Claimant(name, identity.job, identity.task_id, call.task.reliable_settings.lease_ttl)
        return runtime.rights.foresee(me, policy=cast("overlap.Policy", policy))
    except (StoreError, TypeError):
        return ""


def _skip(call: Call, identity: Identity, reason: str) -> AsyncResult[Any]:
    """Record a call that will not run before it is sent, as a worker would."""
    task = call.task
    ignored = call.options.get("ignore_result", task.ignore_result)
    task.backend.mark_as_revoked(identity.task_id, reason, store_result=not ignored)
    result = task.AsyncResult(identity.task_id)
    result.reliable_skipped = reason.partition(": ")[2]  # for beat, which keeps what became of a slot
    return result


def _overlap_of(call: Call) -> str:
    """Return what the call does when another of its kind runs. Raises `ConfigurationError` for an unknown word."""
    headers, settings = _headers_given(call), call.task.reliable_settings
    word = headers.get(overlap.POLICY_HEADER)
    complaint = None if word is None else RULES["overlap"].complaint(word, default=settings.overlap)
    if complaint:
        msg = f"{call.task.name}: header {overlap.POLICY_HEADER}: {complaint}"
        raise ConfigurationError(msg)
    return overlap.policy_in(headers, default=settings.overlap)


def _headers_given(call: Call) -> Mapping[str, Any]:
    return call.options.get("headers") or {}


def _store_result_again(task: ReliableTask, task_id: str, outcome: bytes) -> None:
    """Give the backend a done job's result back, if it has forgotten it: the caller may wait for it."""
    aside = outcome.startswith(blobs.MARK)
    if task.ignore_result or (outcome[:1] == b"!" and not aside) or task.AsyncResult(task_id).state != "PENDING":
        return
    runtime = runtime_of(task.app)
    try:
        outcome = runtime.blob(outcome) if aside else outcome
    except ReliableError as exc:  # the job is done all the same; who asks for its result waits in vain
        runtime.events.emit("blob_failed", task=task.name, task_id=task_id, key="", what="result", error=str(exc))
        return
    task.backend.store_result(task_id, kombu_json.loads(outcome) if outcome else None, "SUCCESS")


# --- identity


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


def _in_life(identity: Identity, life: int) -> Identity:
    if identity.life == life:
        return identity
    return Identity(identity.job, identity.task_id, identity.fingerprint, life, identity.nesting)


def _facts(call: Call, identity: Identity) -> dict[str, Any]:
    return {"task": call.task.name, "task_id": identity.task_id, "key": identity.job.key}


# --- publish


def _publish(
    call: Call, identity: Identity, *, runtime: Runtime, withdraw: bool = True, question: Question | None = None
) -> AsyncResult[Any]:
    options = {**runtime.publish_options, **call.options, "headers": _headers(call, identity)}
    try:
        result = _sent(call, identity.task_id, options, question=question)
    except Otherwise:
        raise
    except BaseException as exc:  # whatever stops a publish: the caller is told no, so the job must not run
        unsent = question is not None and question.answer is None
        if withdraw and (unsent or isinstance(exc, Exception)):  # Ctrl-C in the middle of sending: it may have gone
            _take_back(call, identity, cause=exc, question=question, runtime=runtime)
        raise
    if identity.job.kind == "declared" and not runtime.ledger:
        _confirm(identity, runtime=runtime)
    return result


def _sent(call: Call, task_id: str, options: dict[str, Any], *, question: Question | None) -> AsyncResult[Any]:
    if "connection" in options or "publisher" in options:  # Celery finds out what to publish with
        return Task.apply_async(call.task, call.args, call.kwargs, task_id=task_id, **options)
    ask = None if question is None else question.see
    with internals.publishing(call.task.app, options.pop("producer", None), ask=ask) as producer:
        return Task.apply_async(call.task, call.args, call.kwargs, task_id=task_id, producer=producer, **options)


def _headers(call: Call, identity: Identity) -> dict[str, Any]:
    """Return what travels with a call: whose job it is, and its payload's version unless that is the first."""
    countdown, header = call.options.get("countdown"), identity.to_header()
    if countdown and isinstance(countdown, int | float):
        since = identity.job.stamp if runtime_of(call.task.app).ledger else 0  # else it is by our own clock
        header = Wait(countdown, since).beside(header)
    headers = {**(call.options.get("headers") or {}), HEADER: header}
    headers.pop(VERSION_HEADER, None)
    return headers if call.version == 1 else {VERSION_HEADER: call.version, **headers}


def _take_back(
    call: Call, identity: Identity, *, cause: BaseException, question: Question | None, runtime: Runtime
) -> None:
    """Withdraw what was not published. What tells the process to end is not hidden by a store that does not answer."""
    try:
        if question is None or question.accepted():
            _withdraw(call, identity, cause=cause, runtime=runtime)
    except ReliableError:
        if isinstance(cause, Exception):
            raise


def _withdraw(call: Call, identity: Identity, *, cause: BaseException, runtime: Runtime) -> None:
    try:
        gone = runtime.store.withdraw(identity.job, task_id=identity.task_id)
    except StoreError as exc:
        gone, cause = False, exc
    if gone:
        _forget(call, identity, runtime=runtime)
        runtime.events.emit("withdrawn", **_facts(call, identity))
        return
    runtime.events.emit("withdraw_failed", **_facts(call, identity))
    msg = f"{call.task.name}[{identity.task_id}]: publishing failed and could not be taken back: the task may still run"
    raise StoreUnavailable(msg) from cause


def _confirm(identity: Identity, *, runtime: Runtime) -> None:
    """Note the broker's confirm; without it the next submission of the key merely publishes once more."""
    try:
        runtime.store.published(identity.job, task_id=identity.task_id)
    except StoreError:
        return


# --- envelopes


def _envelope_bytes(call: Call, identity: Identity, *, runtime: Runtime) -> bytes | None:
    """Return the call for the ledger, or None when nothing would read it."""
    if not runtime.ledger and call.task.reliable_settings.on_conflict not in _REPLACING:
        return None
    args, kwargs = internals.dumped_arguments(call.task, call.args, call.kwargs)
    options = {**call.options, "headers": _headers(call, identity)}
    envelope = envelope_of(call.task, args, kwargs, task_id=identity.task_id, options=options)
    if runtime.signer is not None:
        envelope = runtime.signer.sealed(envelope)
    return envelope.to_bytes()
