"""`ReliableTask`: the base class that submits by key and runs under a lease."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task

from celery_reliable import internals, keys, wiring
from celery_reliable.checkpoints import Checkpoint
from celery_reliable.chords import cured_by_time
from celery_reliable.errors import ConfigurationError, Draining, ReliableError, Snooze
from celery_reliable.execution import Execution, RetryAsked, run_eagerly
from celery_reliable.inbox import Done, once_committed
from celery_reliable.publishing import publish_envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.settings import PER_TASK, TASK_ONLY, Settings
from celery_reliable.stores.base import Job
from celery_reliable.submission import Call, submit
from celery_reliable.upgrades import Shape, Upgrade

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

    from celery_reliable.retries import Verdict

__all__ = ["ReliableTask", "publish_envelope"]

wiring.watch_backends()


class ReliableTask(Task):
    """A task that is accounted for, runs one at a time per key, and has one outcome.

    Use it as ``@app.task(base=ReliableTask, bind=True)`` or for a whole app with
    ``Celery(task_cls="celery_reliable:ReliableTask")``. Every class attribute below is also a decorator option; None
    means: as the setting ``reliable_<name>`` says.

    Guarantee: when `apply_async` returns, the job ends in success, a dead letter, a revoke, an expiry or a recorded
    skip; when it raises, the job does not run (or the error says that it may). Limits: the broker is Redis or RabbitMQ,
    every consumer of the queue runs celery_reliable, and the store keeps its writes.

    Called as a function it runs the plain body. Eager mode (``task_always_eager``, ``apply``) judges errors and retries
    as a worker does, at once and without a store: keys do not dedup there.

    .. versionadded:: 0.1
    """

    abstract = True
    Request = "celery_reliable.worker.request:ReliableRequest"

    idempotency_key: Any = None
    """What makes two calls the same job: a template over arguments (``"charge:{order_id}"``), ``"arguments"``, a
    callable that takes the call's arguments, or None: every submission is a job of its own. Inside a run
    ``self.idempotency_key`` is the key of the job; give it to APIs that take one."""
    fingerprint_args: tuple[str, ...] | None = None
    """The arguments that must agree when a key is submitted again; None: all of them."""
    payload_version: int = 1
    """Raise it when older workers could not run the calls that this code sends: they park them for newer workers. Calls of
    the older version are lifted by ``@task.upgrade(from_version=n)``."""
    upgrades: Any = None
    """The same upgrades as a mapping, ``{1: function}``: for ``@shared_task``, which has no task yet when its module is read."""
    aliases: tuple[str, ...] | None = None
    """Names that the task had before, the first one first. Messages under them run this task, and keys go on with the
    first name: keep it for ``idempotency_ttl`` after the last such message."""
    checks_arguments: bool | None = None
    """What ``typing`` said: whether a call whose arguments do not fit the body is refused at once."""

    inbox_of_body: str | bool = False
    """What the option ``inbox`` said: ``True`` or the alias of a Django database puts the body into an inbox."""

    overlap_key: Any = None
    """Which jobs must not overlap: those with the same key. A template over arguments (``"import:{shop}"``), ``"arguments"``,
    a callable that takes the call's arguments, or None: all jobs of the task. Tasks with the same key exclude each other."""

    concurrency_key: Any = None
    """What ``concurrency_limit`` and ``fleet_rate_limit`` count for each value of: a template over arguments
    (``"tenant:{tenant_id}"``), ``"arguments"``, a callable, or None: all jobs of the task. Tasks with the same key share
    their places."""

    fairness_key: Any = None
    """Whose the job is in a queue of ``reliable_fair_queues``, where workers take turns over keys: a template over arguments
    (``"tenant:{tenant_id}"``), ``"arguments"``, a callable, or None: it goes into the queue itself, which has its turn, too."""

    checkpoint_version: int = 1
    """The version of the states that this code saves; raise it when their shape changes, and give ``load`` an ``upgrade``
    for the older ones."""

    overlap: str | None = None
    breaker: str | None = None
    concurrency_limit: int | None = None
    fleet_rate_limit: str | None = None
    retry_budget: float | None = None
    importance: str | None = None
    idempotency_ttl: float | None = None
    on_conflict: str | None = None
    dedup_for: float | None = None
    debounce: float | None = None
    debounce_max: float | None = None
    retry_on: tuple[Any, ...] | None = None
    fail_on: tuple[Any, ...] | None = None
    on_unknown_error: str | None = None
    max_retries: int | None = None
    # retry_backoff and retry_backoff_max are options too; as attributes Celery's autoretry (5.7) would read a None.
    retry_for: float | None = None
    max_deliveries: int | None = None
    max_snoozes: int | None = None
    lease_ttl: float | None = None
    claim_check_threshold: int | None = None
    catch_up: str | None = None
    catch_up_window: float | None = None
    start_deadline: float | None = None

    @classmethod
    def bind(cls, app: Celery) -> Celery:
        """Wire the app before Celery copies its settings, ``acks_late`` among them, to the class of its first task."""
        wiring.install(app)
        return super().bind(app)

    @classmethod
    def on_bound(cls, app: Celery) -> None:  # Celery's hook
        """Refuse a wrong key template as soon as the task is registered."""
        _refuse_misspelled(cls)
        _take_option_inbox(cls)
        _take_option_typing(cls)
        _check_versions(cls)
        _register_aliases(cls, app)
        rule = cls.idempotency_key
        keys.check_rule(rule, task=str(cls.name), signature=_signature_of(cls))
        _check_windows(cls)
        cls.idempotency_key = _KeyInRun(rule)
        for option in ("overlap_key", "concurrency_key", "fairness_key"):
            given = getattr(cls, option)
            keys.check_rule(given, task=str(cls.name), signature=_signature_of(cls), option=option, plain=True)
        if cls.name == _CHORD_UNLOCK:
            internals.keep_unlocked_chord(cls, cured_by_time)

    # Celery shows a task to other threads before it is bound (5.7): what submitting needs is read from the class.

    @property
    def signature_of_run(self) -> inspect.Signature:
        """The signature of the body, without ``self``."""
        made: inspect.Signature | None = type(self).__dict__.get("_signature_of_run")
        if made is None:
            made = _signature_of(type(self))
            setattr(type(self), "_signature_of_run", made)  # noqa: B010  # the class of one task, made by Celery
        return made

    @property
    def has_key_rule(self) -> bool:
        """Whether the project says what makes two calls the same job."""
        return type(self).idempotency_key is not None

    # --- submit

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        idempotency_key: str | None = None,
        importance: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Submit a call; ``idempotency_key`` and ``importance`` override the task's. See `celery.app.task.Task.apply_async`.

        Returns the handle of the job that has the key. Raises `DuplicateTask` (``on_conflict="raise"``),
        `PayloadMismatch` (the key with other arguments), `QueueFull`, `StoreUnavailable`, `ConfigurationError` (no key
        can be made), and what publishing raises.
        """
        options.update(zip(("producer", "link", "link_error", "shadow"), more, strict=False))
        if self.app.conf.task_always_eager:
            if self.checks_arguments:
                self.check_arguments(args or (), kwargs or {}, version=self.payload_version)
            return super().apply_async(args, kwargs, task_id, **options)
        if self._is_sent_again(task_id, options):
            return super().apply_async(args, kwargs, task_id, **{**runtime_of(self.app).publish_options, **options})
        _check_importance(importance, task=self.name)
        return submit(Call(self, tuple(args or ()), dict(kwargs or {}), task_id, idempotency_key, options, importance))

    def _is_sent_again(self, task_id: str | None, options: Mapping[str, Any]) -> bool:
        """Tell a message on its way (a retry, a snooze) from a new submission."""
        header = (options.get("headers") or {}).get(keys.HEADER)
        nesting = int(options.get("replaced_task_nesting") or 0)
        return task_id is not None and keys.identity_of(header, task_id=task_id, nesting=nesting) is not None

    # --- identity

    @property
    def name_in_keys(self) -> str:
        """The name by which keys know this task: its first one."""
        aliases = type(self).__dict__.get("aliases")
        return str(aliases[0] if aliases else self.name)

    def bound(self, args: Any, kwargs: Any, *, version: int) -> keys.Bound:
        """Bind the arguments of a call, lifted if they are older. Raises TypeError and `IncompatiblePayload`."""
        args, kwargs = self._as_now(*internals.dumped_arguments(self, args, kwargs), version=version)
        return keys.Bound.of(self.signature_of_run, args, kwargs)

    def check_arguments(self, args: Any, kwargs: Any, *, version: int) -> None:
        """Refuse arguments that do not fit the body. Raises TypeError and `IncompatiblePayload`."""
        args, kwargs = self._as_now(args, kwargs, version=version)
        self.signature_of_run.bind(*args, **kwargs)

    def _as_now(self, args: Any, kwargs: Any, *, version: int) -> tuple[Any, Any]:
        known = self.payload_version
        if version >= known:
            return args, kwargs
        fitted = self.shape.fitted(args, kwargs, version=version, known=known)
        return fitted.args, fitted.kwargs

    def declared_key(self, bound: keys.Bound) -> str | None:
        """Return the key that the task's rule gives for a call, None without a rule."""
        rule = type(self).idempotency_key
        return None if rule is None else keys.declared_key(rule, bound, task=self.name, named=self.name_in_keys)

    def fingerprint_of(self, bound: keys.Bound) -> str:
        """Return what tells this call from others under its key; "" for a task whose payload has changed its shape.

        Then the arguments of an older call have other names; those that all versions have can be named by
        ``fingerprint_args``.
        """
        if self.fingerprint_args is None and self.payload_version > 1:
            return ""
        return keys.fingerprint(self.name_in_keys, bound.said, only=self.fingerprint_args)

    def overlap_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, rule: str | None = None, version: int | None = None
    ) -> str:
        """Return the key under which a call must not overlap others; ``rule``: of its headers.

        Raises `ReliableError` and TypeError.
        """
        return self._name_by(rule or type(self).overlap_key, args, kwargs, version=version, option="overlap_key")

    def concurrency_name(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, version: int) -> str:
        """Return the key for which a call is counted. Raises `ReliableError` and TypeError."""
        rule = type(self).concurrency_key
        return self._name_by(rule, args, kwargs, version=version, option="concurrency_key")

    def fairness_name(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, version: int) -> str | None:
        """Return the key under which a call takes its turn, None without a rule. Raises what `concurrency_name` raises."""
        rule = type(self).fairness_key
        return None if rule is None else self._name_by(rule, args, kwargs, version=version, option="fairness_key")

    def _name_by(
        self, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, version: int | None, option: str
    ) -> str:
        if rule is None:
            return self.name_in_keys
        bound = self.bound(args, kwargs, version=self.payload_version if version is None else version)
        return keys.declared_key(rule, bound, task=self.name, named=self.name_in_keys, option=option)

    def identity_without_header(
        self, task_id: str, nesting: int, args: tuple[Any, ...], kwargs: dict[str, Any], *, version: int
    ) -> tuple[keys.Identity, Exception | None]:
        """Say what a message without our header is: it was sent by a process that has no task code.

        With it comes the error of a rule that gives no key. Such a call must not run, since nothing tells it from others.
        """
        own = keys.Identity(Job(keys.own_key(task_id, nesting), "given"), task_id, "", 0, nesting)
        if not self.has_key_rule or nesting:
            return own, None
        try:
            fitted = self.shape.fitted(args, kwargs, version=version, known=self.payload_version)
            bound = keys.Bound.of(self.signature_of_run, fitted.args, fitted.kwargs)
        except (TypeError, ReliableError):
            return own, None  # arguments that do not fit: the body will say so, and the call becomes a dead letter
        try:
            job = Job(str(self.declared_key(bound)), "declared")
            return keys.Identity(job, task_id, self.fingerprint_of(bound), 0, nesting), None
        except Exception as exc:  # noqa: BLE001  # a project's callable may raise anything; its next try would, too
            return own, exc

    # --- payloads

    @property
    def shape(self) -> Shape:
        """What the body takes, and how older payloads become that."""
        made: Shape | None = type(self).__dict__.get("_shape")
        if made is None:
            made = Shape.of(self.name, self.signature_of_run)
            for number, function in dict(self.upgrades or {}).items():
                made.add(function, from_version=number, version=self.payload_version)
            setattr(type(self), "_shape", made)  # noqa: B010  # the class of one task, made by Celery
        return made

    def upgrade(self, *, from_version: int, positional: Sequence[str] | None = None) -> Callable[[Upgrade], Upgrade]:
        """Register how the arguments of a call of version ``from_version`` become those of the next version.

        The function gets the arguments of the message by name, without defaults, and returns those of the next version.
        ``positional`` names what that version took by position, in order; not given: the names that the task has now.
        A call of an older version is lifted step by step before the body runs; its message stays as it was, and its
        job keeps its key. Raises `ConfigurationError` for a second upgrade from a version, and for one from
        ``payload_version`` or above.

        .. versionadded:: 0.1
        """

        def register(function: Upgrade) -> Upgrade:
            version = self.payload_version
            self.shape.add(function, from_version=from_version, version=version, positional=positional)
            return function

        return register

    def version_of(self, task: str) -> int:
        """Return the payload version that this code has of a task; 1 for a task that it does not know."""
        return int(getattr(self.app.tasks.get(task), "payload_version", None) or 1)

    # --- run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run: in a worker under a claim, eagerly with the same verdicts, elsewhere as the plain body."""
        request = self.request
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        if request.is_eager:
            return run_eagerly(self, args, kwargs)
        return Execution(self, args, kwargs).perform()

    def after_return(self, status: Any, *facts: Any) -> None:
        """End the ledger entry of a chord member, now that the tracer has told the chord. Overriders call it too."""
        if self.request.chord:
            Execution.end_entry(self)

    def retry(  # noqa: PLR0917  # Celery's signature
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,  # noqa: FBT001, FBT002
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Ask for another attempt; it obeys the same counts as every other retry.

        Without ``countdown`` or ``eta`` the delay is drawn with full jitter. With ``throw=False`` the request to retry
        is returned for you to raise.
        """
        request = self.request
        if request.called_directly or request.is_eager:
            limit = self._retry_limit(max_retries)
            return super().retry(args, kwargs, exc, throw, eta, countdown, limit, **options)
        execution = Execution.current(self)
        if execution is not None and (args is not None or kwargs is not None):
            args, kwargs, options["headers"] = execution.completed(args, kwargs, headers=options.get("headers"))
        given = {"args": args, "kwargs": kwargs, "exc": exc, "eta": eta, "countdown": countdown}
        prepared = internals.prepared_retry(self, **given, max_retries=_UNBOUNDED, **options)
        explicit = None if eta is None and countdown is None else _seconds_until(prepared.when)
        asked = RetryAsked(prepared, delay=explicit, max_retries=max_retries)
        if throw:
            raise asked
        return asked

    def _retry_limit(self, given: int | None) -> int:
        return self.reliable_settings.max_retries if given is None else given

    def replace(self, sig: Any) -> Any:
        """Hand this job's task id to another task or canvas; see `celery.app.task.Task.replace`."""
        execution = Execution.current(self)
        if execution is not None:
            execution.replaced = True
        return super().replace(sig)

    def snooze(self, seconds: float) -> NoReturn:
        """Stop here and run again after ``seconds``; no attempt is spent. At most ``reliable_max_snoozes`` times."""
        raise Snooze(seconds)

    def classify(self, exc: BaseException) -> Verdict | None:
        """Override to judge errors that only this task understands; None leaves it to the rules."""
        return None

    # --- inside a run

    @property
    def fence(self) -> int:
        """A number that only grows: a holder that was replaced has a smaller one. 0 outside a worker."""
        execution = Execution.current(self)
        return execution.fence if execution else 0

    @property
    def attempt(self) -> int:
        """The number of this run among those that reached a verdict, from 1."""
        execution = Execution.current(self)
        return execution.attempt if execution else self.request.retries + 1

    @property
    def slot(self) -> str | None:
        """The due time for which beat fired this job, an ISO text; None for all other jobs."""
        slot: str | None = getattr(self.request, "reliable_slot", None)
        return slot

    @property
    def draining(self) -> bool:
        """Whether this run has to stop: its worker was told to, or a newer job is to run in its place (``overlap``).

        Costs a look at shared memory.
        """
        from celery_reliable.worker.flags import draining  # noqa: PLC0415  # only workers have one
        from celery_reliable.worker.stops import asked  # noqa: PLC0415

        execution = Execution.current(self)
        return draining() or (execution is not None and asked(execution.delivery.token) > 0)

    def stop_if_draining(self) -> None:
        """Raise `Draining` when this run has to stop: the message goes back, no attempt is spent.

        A run that a newer job replaces ends as skipped instead.
        """
        if self.draining:
            raise Draining

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Saved progress of the job that runs now: ``load()``, ``save(state)`` and ``iterate(items)``."""
        return Checkpoint(lambda: Execution.current(self), draining=lambda: self.draining)

    def once(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step until its result is stored, then never again for this key: later runs get the stored result.

        A crash between the step and the store repeats it; give ``self.once_key(name)`` to outside APIs.
        """
        return self.checkpoint.once(name, fn, *args, **kwargs)

    def inbox(self, session: Any = None, *, using: str = "default") -> AbstractContextManager[Done]:
        """Commit the effect of the block, and the marker that it happened, in one transaction: at most once for a key.

        ``session`` is a SQLAlchemy session or connection; without one it is Django's database ``using``. A run that
        comes again does not run the block: the task ends with the result that was committed, which is what the block
        set as ``result`` of the value after ``as``. This holds even if the store loses everything; its limits: the
        effect is in this transaction, and the marker lives as long as that in the store. Raises `LeaseLost`, and commits
        nothing, when another run has taken over, and `ConfigurationError` for a write to another database in the block.

        Outside a worker it is a plain transaction. The option ``inbox=True`` (or an alias) puts the whole body of a task
        into one, in Django.

        .. versionadded:: 0.1
        """
        execution = Execution.current(self)
        claim = execution.inbox_claim() if execution is not None else None
        if session is None:
            opened = partial(import_module("celery_reliable.django.inbox").transaction, using)
        else:
            opened = partial(import_module("celery_reliable.contrib.sqlalchemy").transaction, session)
        return once_committed(opened, claim)

    def once_key(self, name: str) -> str:
        """Return an idempotency key for one step of this job."""
        return self.checkpoint.once_key(name)

    @property
    def keeps_arguments_inline(self) -> bool:
        """Whether arguments stay in the message, however large: an ``overlap_key`` or ``concurrency_key`` is read from it."""
        overlaps = type(self).overlap_key is None or self.reliable_settings.overlap == "allow"
        return not overlaps or (type(self).concurrency_key is not None and self.reliable_settings.is_gated)

    @property
    def reliable_settings(self) -> Settings:
        """This task's settings: its own options over the project's. Raises `ConfigurationError` for a wrong option."""
        made: Settings | None = type(self).__dict__.get("_reliable_settings")
        if made is None:
            settings, given = runtime_of(self.app).settings, _options_given(type(self))
            waits = self.name == _CHORD_UNLOCK and given.get("max_retries", 0) is None
            made = replace(settings, max_retries=_UNBOUNDED) if waits else settings.for_task(self.name, **given)
            setattr(type(self), "_reliable_settings", made)  # noqa: B010  # the class of one task, made by Celery
        return made


_UNBOUNDED = 1 << 60
# Celery's own task that asks again and again whether a chord is complete, for backends that cannot count; it is an
# ordinary task of the app, so an app's task_cls makes it one of ours.
_CHORD_UNLOCK = "celery.chord_unlock"
# Celery reads these from the decorator (5.7, celery/app/autoretry.py); its Task class has no such attributes.
_OPTIONS_OF_AUTORETRY = ("autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_jitter")


_WINDOWS = ("dedup_for", "debounce", "debounce_max")


class _KeyInRun:
    """Give the rule when asked of the class, the key of the present job when asked of the task inside a run."""

    __slots__ = ("_rule",)

    def __init__(self, rule: keys.KeyRule) -> None:
        self._rule = rule

    def __get__(self, task: ReliableTask | None, owner: type[ReliableTask]) -> Any:
        execution = Execution.current(task) if task is not None else None
        return self._rule if execution is None else execution.key


def _take_option_inbox(cls: type[ReliableTask]) -> None:
    """Keep the option ``inbox`` under another name: as an attribute it would hide the method."""
    given = vars(cls).get("inbox")
    if isinstance(given, bool | str):
        cls.inbox_of_body = given
        del cls.inbox


def _take_option_typing(cls: type[ReliableTask]) -> None:
    """Check arguments ourselves: Celery (5.7) does at every publish, also of a retry or a chain that older code began."""
    if cls.typing is not None:
        cls.checks_arguments = bool(cls.typing or cls.checks_arguments)
        cls.typing = False


def _register_aliases(cls: type[ReliableTask], app: Celery) -> None:
    for alias in vars(cls).get("aliases") or ():
        if not isinstance(alias, str) or not alias or alias == cls.name or isinstance(cls.aliases, str):
            msg = (
                f"task {cls.name}: aliases: expected names that the task had before, such as ('shop.tasks.old_name',), "
                f"found {cls.aliases!r}"
            )
            raise ConfigurationError(msg)
        if not internals.register_alias(app, cls, alias):
            msg = f"task {cls.name}: aliases: {alias!r} is a task of its own; remove that one, or the alias"
            raise ConfigurationError(msg)


def _signature_of(cls: type[Task]) -> inspect.Signature:
    run = inspect.getattr_static(cls, "run")
    if isinstance(run, staticmethod):
        return inspect.signature(run.__func__)
    signature = inspect.signature(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _options_given(cls: type[ReliableTask]) -> dict[str, Any]:
    """Return the options that a task, or a base class between it and ours, was given; None counts as given."""
    classes = cls.__mro__[: cls.__mro__.index(ReliableTask)]
    return {name: vars(one)[name] for one in reversed(classes) for name in PER_TASK if name in vars(one)}


def _refuse_misspelled(cls: type[ReliableTask]) -> None:
    """Refuse an option that is almost one of ours: it would do nothing, in silence."""
    known = (*PER_TASK, *TASK_ONLY, *_OPTIONS_OF_AUTORETRY)
    # Comparing is slow, and each task has a dozen names that need none. Asked by `hasattr`, Celery (5.7) binds the class.
    usual = {*known, *dir(ReliableTask)}
    strange = [name for name in vars(cls) if name not in usual and not name.startswith("_")]
    for name in strange:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            msg = f"task {cls.name}: {name}: no such option, did you mean {near[0]}? Rename or remove it"
            raise ConfigurationError(msg)


def _check_importance(given: str | None, *, task: str) -> None:
    if given not in (None, "normal", "best_effort"):
        msg = f"task {task}: importance: expected 'normal' or 'best_effort', found {given!r}; correct it"
        raise ConfigurationError(msg)


def _check_versions(cls: type[ReliableTask]) -> None:
    for name in ("payload_version", "checkpoint_version"):
        version: Any = getattr(cls, name)  # whatever the decorator was given
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            msg = f"task {cls.name}: {name}: expected a whole number from 1, found {version!r}; count up from 1"
            raise ConfigurationError(msg)


def _check_windows(cls: type[ReliableTask]) -> None:
    """Refuse options about a key that is submitted again which are wrong, contradict each other, or have no key."""
    options = {name: value for name, value in _options_given(cls).items() if name in (*_WINDOWS, "on_conflict")}
    given = [name for name in _WINDOWS if options.get(name) is not None]
    if not given:
        return
    Settings(idempotency_ttl=math.inf).for_task(str(cls.name), **options)
    if cls.idempotency_key is None:
        msg = (
            f"task {cls.name}: {given[0]}: expected an idempotency_key beside it, found none; say what makes two calls the "
            "same, such as idempotency_key='index:{page_id}'"
        )
        raise ConfigurationError(msg)


def _seconds_until(when: Any) -> float:
    from datetime import datetime, timezone  # noqa: PLC0415

    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        return max((aware - datetime.now(timezone.utc)).total_seconds(), 0.0)
    return float(when or 0)
