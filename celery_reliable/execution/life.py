"""Lead one delivery through its life."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Retry
from kombu.exceptions import EncodeError
from kombu.utils import json as kombu_json

from celery_reliable import internals, keys
from celery_reliable.checkpoints import Progress, Room, kept_aside
from celery_reliable.errors import (
    AlreadyCommitted,
    ConfigurationError,
    IncompatiblePayload,
    LeaseLost,
    Permanent,
    ProcessKilled,
    StoreError,
    Transient,
)
from celery_reliable.execution import (
    burial,
    continuation,
    fitting,
    gating,
    outcomes,
    overlapping,
    quarantine,
    queueing,
    telling,
    verdicts,
)
from celery_reliable.execution.delivery import SHORTEST_WAIT, Delivery
from celery_reliable.inbox import Claim
from celery_reliable.lifetimes import late_after, marker_ttl
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.stores.base import Busy, Dead, Done, Mismatch, NotYet, Over, Poisoned, Run, Stale
from celery_reliable.worker.bodies import bodies_of

if TYPE_CHECKING:
    from celery_reliable.task import ReliableTask

_IGNORED = b"!ignored"
_REPLACED = b"!replaced"


class Execution:
    """One delivery of one job. Of the life of a task, this is the part that may be killed at any point."""

    def __init__(self, task: ReliableTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the bound task, whose request is the delivery, and the arguments of the message."""
        self.delivery = Delivery(task, args, kwargs)
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = args, kwargs
        self._parent: keys.Parent | None = None
        self._saved: dict[str, bytes] = {}
        self.progress = Progress(self)
        """The state and the loops of this run."""
        self.replaced = False
        """Whether the body has handed its task id to another job (``self.replace``)."""

    @staticmethod
    def current(task: ReliableTask) -> Execution | None:
        """Return the execution of the task's present request, None outside a worker."""
        found: Execution | None = getattr(task.request, "reliable_execution", None)
        return found

    def perform(self) -> Any:  # noqa: RET503  # every other case raises
        """Claim; then run, or report what is known already, or wait."""
        delivery = self.delivery
        fitting.date_canvas(delivery)
        match self._claim():
            case Run() as run if delivery.settings.is_gated:
                with gating.passed(delivery, run):
                    self._enter(run)
                    return self._run(run)
            case Run() as run:
                self._enter(run)
                return self._run(run)
            case Done(outcome=outcome):
                return self._report(outcome)
            case Dead(letter=letter):
                burial.report_again(delivery, letter)
            case Busy(expires_in=seconds):
                delivery.hold("busy", max(seconds, SHORTEST_WAIT))
            case NotYet(due_in=seconds):
                delivery.hold("not_yet", seconds)
            case Poisoned() as poisoned:
                burial.bury_poison(delivery, poisoned)
            case Mismatch(existing_id=existing_id):
                burial.refuse_mismatch(delivery, existing_id)
            case Over(state=state):
                self._over(state)

    def _over(self, state: str) -> NoReturn:
        """Say what became of a job whose life has ended."""
        if state == "late":
            burial.refuse_late(self.delivery)
        if state == "skipped":  # the first report may not have happened
            overlapping.report(self.delivery, "told before")
        self.delivery.drop(state)

    def _claim(self) -> Any:  # Any: match in `perform` names every answer
        delivery, settings = self.delivery, self.delivery.settings
        identity = delivery.identity
        if settings.on_conflict == "queue_one":
            queueing.await_turn(delivery)
        try:
            return delivery.runtime.store.claim(
                identity.job,
                task_id=identity.task_id,
                life=identity.life,
                fingerprint=identity.fingerprint,
                token=delivery.token,
                ttl=settings.lease_ttl,
                max_deliveries=settings.max_deliveries,
                record_ttl=LIVE_RECORD_TTL,
                late_after=late_after(identity.job.kind, settings, ledger=delivery.runtime.ledger),
                first=not delivery.request.retries,
            )
        except StoreError as exc:
            delivery.wait_for_store("claim", exc)

    # --- run

    def _enter(self, run: Run) -> None:
        """Ask whether the job may run beside others of its kind, where its task says that it may not always."""
        delivery = self.delivery
        if delivery.overlap == "allow":
            return
        delivery.run = run
        try:
            me = overlapping.claimant(delivery)
        except Exception as exc:  # noqa: BLE001  # arguments that do not fit, or whatever a project's callable raises
            self._judge(exc)
        overlapping.enter(delivery, me)

    def _run(self, run: Run) -> Any:
        if quarantine.is_wanted(self.delivery, run):
            quarantine.move(self.delivery, run)
        self._begin(run)
        delivery = self.delivery
        try:
            with bodies_of(delivery.runtime).inside(delivery.token), keys.within(self._parent):
                result = self._result_of_body()
            outcome = self._encoded(result)
        except BaseException as exc:  # a body may raise anything; what leaves here ends the delivery
            if internals.is_terminated() or isinstance(exc, ProcessKilled):
                raise SystemExit from exc  # this process ends, unfinished; its parent frees the lease
            self._judge(exc)
        return self._done(result, outcome)

    def _result_of_body(self) -> Any:
        """Run the body, or report what an earlier run has committed with its effect (`ReliableTask.inbox`)."""
        try:
            return self._body()
        except AlreadyCommitted as known:
            self.delivery.emit("already_committed", fence=self.fence)
            return known.result

    def _body(self) -> Any:
        delivery, alias = self.delivery, self.delivery.task.inbox_of_body
        args, kwargs = self._call = fitting.fitted(delivery)
        self._confirm_claim()
        if not alias:
            return delivery.task.run(*args, **kwargs)
        with delivery.task.inbox(using="default" if alias is True else alias) as done:
            done.result = delivery.task.run(*args, **kwargs)
        return done.result

    def _confirm_claim(self) -> None:
        """Begin no body under a claim that another has taken over: so late, this worker may have been frozen, or cut off."""
        delivery, ttl = self.delivery, self.delivery.settings.lease_ttl
        if delivery.elapsed < ttl:
            return
        runtime, claim = delivery.runtime, (delivery.job, delivery.token, ttl)
        if delivery.insist("renew", lambda: runtime.store.renew([claim], pulse_ttl=runtime.settings.lease_ttl)):
            msg = f"{delivery.task.name}: another run took over {self.key!r} before this one began"
            raise LeaseLost(msg)

    def completed(self, args: Any, kwargs: Any, *, headers: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return arguments and headers for a next run of which the body gave only some: the rest is as the body got it."""
        call = self._call[0] if args is None else tuple(args), self._call[1] if kwargs is None else dict(kwargs)
        return fitting.sent_on(self.delivery, call, headers=headers)

    def inbox_claim(self) -> Claim:
        """Say under which claim an effect is committed."""
        delivery, runtime, job = self.delivery, self.delivery.runtime, self.delivery.job
        ttl = marker_ttl(job.kind, delivery.settings, ledger=runtime.ledger and job.stamp > 0)
        return Claim(job, delivery.run.fence, delivery.settings.key_prefix, ttl, runtime.store)

    def _begin(self, run: Run) -> None:
        delivery, request = self.delivery, self.delivery.request
        delivery.run = run
        self._saved = dict(run.saved)
        self._parent = keys.Parent(delivery.job.key, run.checks)
        request.retries = run.attempt - 1
        request.reliable_execution = self
        if run.envelope is not None:
            fitting.take_replaced(delivery, run.envelope)
        delivery.emit("claimed", fence=run.fence, attempt=run.attempt, delivery=run.delivery)
        if run.attempt > 1 or run.delivery > 1:
            submitted = delivery.job.stamp / 1e6 or None
            facts = {"fence": run.fence, "attempt": run.attempt, "delivery": run.delivery}
            delivery.emit("claimed_again", **facts, submitted=submitted, saves=run.checks or None)
        if delivery.keyless is not None:
            burial.bury(delivery, delivery.keyless, "invalid")
        fitting.fetch(delivery)

    def _judge(self, exc: BaseException) -> NoReturn:
        try:
            self.progress.flush()
        except (LeaseLost, ConfigurationError, Transient) as failure:
            exc = failure
        if isinstance(exc, Ignore):  # done, without a result of its own; the entry of a replaced job is its successor's
            self._complete(_REPLACED if self.replaced else _IGNORED, entry_ends=not self.replaced)
            if not self.replaced:
                self.delivery.emit("done", attempt=self.delivery.run.attempt)
            raise exc
        if isinstance(exc, IncompatiblePayload):
            burial.bury(self.delivery, exc, "incompatible")
        cause = exc.exc if isinstance(exc, Retry) else exc  # autoretry_for takes a call that does not fit for any error
        if isinstance(cause, TypeError) and not self._fits():
            burial.bury(self.delivery, cause, "invalid")
        verdicts.act_on(self.delivery, exc)

    def _fits(self) -> bool:
        """Tell whether the arguments fit the task's signature: a call that does not is wrong here, however often it runs."""
        args, kwargs = self._call
        try:
            self.delivery.task.signature_of_run.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    # --- what a body asks of its run

    @property
    def key(self) -> str:
        """The key of the job."""
        return self.delivery.job.key

    @property
    def fence(self) -> int:
        """The fence of this claim."""
        return self.delivery.run.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.delivery.run.attempt

    @property
    def saved(self) -> Mapping[str, bytes]:
        """Checkpoint and steps, those of this run included."""
        return self._saved

    @property
    def version(self) -> int:
        """The version of the states that this code writes."""
        return int(self.delivery.task.checkpoint_version)

    @property
    def room(self) -> Room:
        """Where checkpoints and steps go."""
        settings = self.delivery.settings
        kept = settings.dead_letter_ttl + 2 * LIVE_RECORD_TTL
        return Room(settings.claim_check_threshold, self.delivery.runtime.blobs, ttl=kept)

    def save(self, name: str, body: bytes) -> None:
        """Keep a checkpoint or step; counts as a checkpoint for the ids of children. Raises `LeaseLost` when stale."""
        delivery, run, parent = self.delivery, self.delivery.run, self._parent or keys.Parent("")
        answer = delivery.insist(
            "save",
            lambda: delivery.runtime.store.save(
                delivery.job,
                fence=run.fence,
                token=delivery.token,
                name=name,
                body=body,
                ttl=LIVE_RECORD_TTL,
                number=parent.checks + 1,
            ),
        )
        if isinstance(answer, Stale):
            msg = f"{delivery.task.name}: another run took over {self.key!r} (fence {run.fence} is old); nothing was saved"
            raise LeaseLost(msg)
        self._saved[name] = body
        parent.checked()
        delivery.emit("saved", saves=parent.checks)

    # --- settle: done

    def _done(self, result: Any, outcome: bytes | None) -> Any:
        """Write done, send what follows, end the ledger entry, store the result; the tracer then acks."""
        delivery = self.delivery
        continues = continuation.is_expected(delivery)
        self._complete(outcome, entry_ends=not continues)
        delivery.emit("done", attempt=delivery.run.attempt)
        if delivery.run.attempt > 1 or delivery.run.delivery > 1:
            delivery.emit("recovered", attempt=delivery.run.attempt, delivery=delivery.run.delivery)
        if continues:
            continuation.send(delivery, result)
        telling.success(delivery, result)
        return result

    def _encoded(self, result: Any) -> bytes | None:
        """Return the outcome to keep for replays; None when nobody could ask for it."""
        task = self.delivery.task
        if result is None or not (continuation.is_expected(self.delivery) or internals.keeps_result(task)):
            return None
        try:
            return bytes(kombu_json.dumps(result).encode())
        except (TypeError, ValueError, EncodeError, RecursionError) as exc:
            msg = (
                f"task {task.name} returned a {type(result).__qualname__} that JSON cannot carry ({exc}); "
                "return plain data, or set ignore_result=True"
            )
            raise Permanent(msg) from exc

    def _complete(self, outcome: bytes | None, *, entry_ends: bool) -> None:
        delivery, settings, job = self.delivery, self.delivery.settings, self.delivery.job
        runtime = delivery.runtime
        lives = marker_ttl(job.kind, settings, ledger=runtime.ledger and job.stamp > 0)
        outcome = outcomes.packed(delivery, outcome, ttl=lives)
        answer = delivery.insist(
            "complete",
            lambda: runtime.store.complete(
                job,
                task_id=delivery.identity.task_id,
                fence=delivery.run.fence,
                token=delivery.token,
                outcome=outcome,
                marker_ttl=lives,
                entry_ends=entry_ends,
            ),
        )
        delivery.check(answer, verb="complete")
        if delivery.overlap != "allow":
            overlapping.leave(delivery)
        fitting.forget(delivery)
        if self._saved and runtime.blobs is not None:
            for blob in kept_aside(self._saved.values()):
                runtime.blobs.remove(blob)

    def _report(self, outcome: bytes) -> Any:
        """Answer for a job that is done: the stored outcome goes through the tracer, so callbacks and chords go on."""
        delivery = self.delivery
        delivery.emit("replayed_outcome")
        if outcome == _IGNORED:
            delivery.end_entry()
        if outcome in (_IGNORED, _REPLACED):
            raise Ignore
        outcome = outcomes.unpacked(delivery, outcome)
        result = kombu_json.loads(outcome.decode()) if outcome else None
        continuation.send(delivery, result)
        telling.success(delivery, result)
        return result

    @classmethod
    def end_entry(cls, task: ReliableTask) -> None:
        """End the ledger entry of the task's present request: the tracer has told its chord."""
        found = cls.current(task)
        delivery = found.delivery if found else Delivery(task, (), {})
        delivery.end_entry()
