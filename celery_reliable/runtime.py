"""Hold what one app needs in one process: settings, store and events."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import celery

import celery_reliable
from celery_reliable import internals, keys
from celery_reliable.alerts import Alerts
from celery_reliable.blobs import Blobs
from celery_reliable.dead_letters.record import Worker
from celery_reliable.errors import ConfigurationError
from celery_reliable.events import Events, Hook
from celery_reliable.flow import ages
from celery_reliable.flow.admission import Admission
from celery_reliable.flow.breakers import Breakers
from celery_reliable.flow.budgets import Budgets
from celery_reliable.flow.lanes import Lanes
from celery_reliable.flow.places import Places
from celery_reliable.flow.rates import Rates
from celery_reliable.flow.rounds import Rounds
from celery_reliable.flow.runs import Runs
from celery_reliable.flow.switches import Switches
from celery_reliable.overlap import Lives, OutspokenLives, Rights
from celery_reliable.payloads import SIGNATURE_HEADER
from celery_reliable.settings import Settings, mask_secrets, refuse_unclear, resolve_store_url
from celery_reliable.sight import Load, Sight, sight_on
from celery_reliable.signing import Signer
from celery_reliable.stores import lives_of, open_store
from celery_reliable.stores.base import ALIVE
from celery_reliable.trails import Trails

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.blobs import BlobRef
    from celery_reliable.dead_letters.redaction import Redact
    from celery_reliable.settings.policies import QueueLimit
    from celery_reliable.stores.base import Job, Store
    from celery_reliable.stores.notes import Notes

_ATTRIBUTE = "_celery_reliable_runtime"
_CONFIRM_TIMEOUT = 5.0  # seconds, for each of the tries of task_publish_retry_policy
_ROUND_TTL = 30 * 86_400.0  # seconds that a round may last beside the life of its marker
_making = threading.Lock()


@dataclass(eq=False)
class Runtime:
    """Settings, store and events of one app. Made at the first use; the store connects at its first verb."""

    app: Celery
    settings: Settings
    store: Store
    events: Events
    random: random.Random = field(default_factory=random.SystemRandom)
    warned: set[tuple[str, str]] = field(default_factory=set)
    """Task and argument of which this process has warned already."""
    bodies_aside: dict[Any, Any] = field(default_factory=dict)
    """Where `claim_check` has kept the arguments of signatures that are sent more than once."""
    broker_away_until: float = 0.0
    """Until then (monotonic) no publish after a commit is tried in this process: a relay will do it."""
    metrics: Any = None
    """The `contrib.prometheus.EventMetrics` of this process, where ``reliable_metrics_port`` is set."""
    holding: Any = None
    """The consumer's `worker.holding.Holding`, while a worker of this app runs in this process."""
    runs: Runs = field(default_factory=Runs)
    """How the last runs went, in the main process of a worker."""
    stopped_queues: frozenset[str] = frozenset()
    """Queues and lanes that this worker would consume, were they not stopped by a kill switch."""
    keep_rights: Callable[[], None] | None = None
    """Begins to renew the rights of what must not overlap, in the parent of a worker; may be called often."""

    @cached_property
    def ledger(self) -> bool:
        """Whether submissions are kept until their end: set, and the broker is one that can lose a popped message."""
        return self.settings.ledger and broker_driver(self.app) == "redis"

    @cached_property
    def owner(self) -> str:
        """Return the random token of this worker's or beat's process. Its pool children do not ask."""
        return keys.new_token()

    @cached_property
    def _numbers(self) -> Iterator[int]:
        return itertools.count()

    def new_token(self) -> str:
        """Return a token that no other delivery has, and that tells whose it is: it begins with the owner's."""
        return f"{self.owner}.{next(self._numbers):x}"

    @cached_property
    def publish_options(self) -> dict[str, Any]:
        """Return the options that every publish of ours has: on AMQP, how long it waits for the broker's confirm."""
        return {"confirm_timeout": _CONFIRM_TIMEOUT} if broker_driver(self.app) == "amqp" else {}

    @cached_property
    def blobs(self) -> Blobs | None:
        """Where large values are kept, if there is a folder for them."""
        url = self.settings.blob_url
        return None if url is None else Blobs(url, now=self.store.now, cipher=_cipher(self.settings.blob_cipher))

    @cached_property
    def signer(self) -> Signer | None:
        """Who signs and verifies messages; None without keys."""
        keys = self.settings.signing_keys
        return Signer(keys, enforces=self.settings.signing == "enforce") if keys else None

    @cached_property
    def redact(self) -> Redact | None:
        """What arguments go through before they are shown. Raises `ConfigurationError` for a path that leads nowhere."""
        return _redact(self.settings.redact)

    @cached_property
    def rights(self) -> Rights:
        """Who may run among jobs that must not overlap. Raises `ConfigurationError` for a lock that the store does not have."""
        store = self.store
        return Rights(
            store.notes,
            now=store.now,
            has_ended=lambda job: store.inspect(job).get("state") not in ALIVE,
            may_seize=self._may_seize,
            lives=self._lives(),
        )

    def _lives(self) -> Lives | None:
        """Return what tells that a process has ended, where that is not left to its lease."""
        if self.settings.overlap_lock == "lease":
            return None
        return OutspokenLives(lives_of(self.store), tell=self._tell_pooled)

    def _tell_pooled(self, text: str) -> None:
        code = "overlap_lock_pooled"
        self.events.emit("finding", code=code, severity="error", finding=f"{code}: {text}")

    @cached_property
    def _role(self) -> str:
        return f"overlap:{secrets.token_hex(6)}"

    def _may_seize(self) -> bool:
        """Tell whether what a silent worker holds may be given to others: the fleet's renewals were not away."""
        answer = self.store.lead(self._role, token="me", ttl=1.0, pulse_ttl=self.settings.lease_ttl)  # noqa: S106
        return answer == "yes"

    @cached_property
    def places(self) -> Places:
        """Who may run at the same time."""
        store = self.store
        return Places(
            store.notes, now=store.now, claim_ends=self._claim_ends, may_seize=self._may_seize, random=self.random
        )

    def _claim_ends(self, job: Job) -> int:
        record = self.store.inspect(job)
        return int(record["at_ms"]) * 1000 if record.get("state") == "running" else 0

    @cached_property
    def rounds(self) -> Rounds:
        """Which job of a key that runs one at a time is the present one."""
        return Rounds(self.store.notes, ttl=self.settings.idempotency_ttl + _ROUND_TTL)

    @cached_property
    def budgets(self) -> Budgets:
        """Which retries may run."""
        return Budgets(self.store.notes, now=self.store.now, random=self.random)

    @cached_property
    def rates(self) -> Rates:
        """When what has a rate may begin."""
        return Rates(self.store.notes, now=self.store.now, random=self.random)

    @cached_property
    def breakers(self) -> Breakers:
        """Which dependencies may be called."""
        return Breakers(
            self.store.notes,
            now=self.store.now,
            policies=self.settings.breakers,
            random=self.random,
            token=keys.new_token,
            emit=self.events.emit,
        )

    @cached_property
    def switches(self) -> Switches | None:
        """Which queues are stopped; None when none can be. Raises `ConfigurationError` for unknown queues."""
        policies = self.settings.kill_switches
        if not policies:
            return None
        _refuse_unknown_queues(self.app, policies, setting="reliable_kill_switches")
        store = self.store
        return Switches(store.notes, now=store.now, policies=policies, worker=self.owner, emit=self.events.emit)

    @cached_property
    def lanes(self) -> Lanes | None:
        """The lanes of queues, declared for this process; None when none has any. Raises `ConfigurationError` for unknown queues."""
        policies = self.settings.fair_queues
        if not policies:
            return None
        _refuse_unknown_queues(self.app, policies, setting="reliable_fair_queues")
        lanes = Lanes(policies)
        for queue in policies:
            try:
                internals.declare_like(self.app, queue, lanes.of(queue))
            except KeyError as exc:
                msg = f"reliable_fair_queues: {queue!r}: expected a queue of the app, found none; declare it in task_queues"
                raise ConfigurationError(msg) from exc
        return lanes

    @cached_property
    def admission(self) -> Admission | None:
        """Who may submit to queues that have limits; None when none has. Raises `ConfigurationError` for a queue that is not there."""
        limits = self.settings.queue_limits
        if not limits:
            return None
        _check_limits(self.app, limits)
        sight, lanes = QueueSight(self.app), self.lanes or Lanes({})
        told = broker_driver(self.app) == "amqp" and _aged(limits)
        look = partial(sight.look_with_ages, notes=self.store.notes) if told else sight.look
        return Admission(
            limits, look=lambda queue: look(queue, *lanes.of(queue)), now=self.store.now, emit=self.events.emit
        )

    def blob(self, ref: BlobRef) -> bytes:
        """Return what was kept aside. Raises `BlobLost`, `Transient`, and `ConfigurationError` without a folder."""
        if self.blobs is None:
            msg = f"blob {ref.path}: expected the reliable_blob_url with which it was written, found none; set it"
            raise ConfigurationError(msg)
        return self.blobs.get(ref)

    @cached_property
    def host(self) -> str:
        """Return this host's name."""
        return socket.gethostname()

    def worker(self) -> Worker:
        """Say, for a dead letter, which process is asked and what it runs."""
        ours, release = celery_reliable.__version__, self.settings.release or ""
        return Worker(self.host, os.getpid(), celery.__version__, ours, release)


class QueueSight:
    """A producer's look at queues, on one connection of its process, made at the first look."""

    def __init__(self, app: Celery) -> None:
        """Take the app whose broker is looked at."""
        self._app = app
        self._lock = threading.Lock()
        self._sight: tuple[int, Sight | None] | None = None

    def look(self, *queues: str) -> Load | None:
        """Return what waits in queues; None when the broker does not answer, or is of a kind that cannot tell."""
        with self._lock:
            try:
                sight = self._open()
                return None if sight is None else sight.load(queues)
            except internals.away():
                return None

    def look_with_ages(self, *queues: str, notes: Notes) -> Load | None:
        """Return what waits in queues, and of what age that is by what workers have told."""
        loads = {queue: load for queue in queues if (load := self.look(queue)) is not None}
        return Load(sum(load.depth for load in loads.values()), ages.oldest(notes, loads)) if loads else None

    def _open(self) -> Sight | None:
        """Return the view of this process: one that was made before a fork has its parent's connection."""
        if self._sight is None or self._sight[0] != os.getpid():
            self._sight = os.getpid(), sight_on(self._app.connection_for_write())
        return self._sight[1]


def _refuse_unknown_queues(app: Celery, named: Mapping[str, Any], *, setting: str) -> None:
    """Refuse what a setting says of queues that are not there: it would do nothing."""
    known = {queue.name for queue in app.conf.task_queues or ()}
    unknown = sorted(named.keys() - known) if known else []
    if unknown:
        msg = (
            f"{setting}: expected queues of task_queues ({', '.join(sorted(known))}), found "
            f"{', '.join(unknown)}; correct the name, or declare the queue"
        )
        raise ConfigurationError(msg)


def _check_limits(app: Celery, limits: Mapping[str, QueueLimit]) -> None:
    """Refuse limits that would limit nothing."""
    _refuse_unknown_queues(app, limits, setting="reliable_queue_limits")
    aged = _aged(limits)
    if aged and broker_driver(app) not in ("redis", "amqp"):
        msg = (
            f"reliable_queue_limits: {', '.join(aged)}: age: expected a broker on Redis or RabbitMQ, found {broker_driver(app)}, "
            "of whose oldest message nothing is known; limit the depth instead"
        )
        raise ConfigurationError(msg)


def _aged(limits: Mapping[str, QueueLimit]) -> list[str]:
    """Return the queues that have a limit on age."""
    return sorted(name for name, limit in limits.items() if limit.age is not None)


def runtime_of(app: Celery) -> Runtime:
    """Return the app's runtime, made on first use. Raises `ConfigurationError` for wrong settings."""
    found: Runtime | None = app.__dict__.get(_ATTRIBUTE)
    return found or _made(app)


def forget_runtime(app: Celery) -> None:
    """Drop the app's runtime, so that the next use reads the settings again."""
    runtime: Runtime | None = app.__dict__.pop(_ATTRIBUTE, None)
    if runtime is not None:
        runtime.store.close()


@contextmanager
def replaced_runtime(app: Celery, *, store: Store, events: Events) -> Iterator[Runtime]:
    """Give an app another store and other events for a block of code, as tests do; its settings stay."""
    before = app.__dict__.get(_ATTRIBUTE)
    app.__dict__[_ATTRIBUTE] = Runtime(app, Settings.from_conf(app.conf), store, events)
    try:
        yield app.__dict__[_ATTRIBUTE]
    finally:
        app.__dict__[_ATTRIBUTE] = before
        if before is None:
            del app.__dict__[_ATTRIBUTE]


def _made(app: Celery) -> Runtime:
    with _making:
        if _ATTRIBUTE not in app.__dict__:
            app.__dict__[_ATTRIBUTE] = _make(app)
    made: Runtime = app.__dict__[_ATTRIBUTE]
    return made


def _make(app: Celery) -> Runtime:
    settings = Settings.from_conf(app.conf)
    for url in (app.conf.broker_write_url, app.conf.broker_read_url):
        if isinstance(url, str):
            refuse_unclear(url, setting="broker_url")
    _confirm_publishes(app)
    if settings.signing_keys:
        sign_messages(app)
    url = resolve_store_url(
        settings.store_url, result_backend=app.conf.result_backend, broker_url=app.conf.broker_write_url
    )
    store = open_store(url, key_prefix=settings.key_prefix, wait_replicas=settings.wait_replicas)
    metrics = _metrics(app) if settings.metrics_port else None
    hooks = [*_trails(settings, store), *_alerts(settings, store), *filter(None, [metrics])]
    hooks += (_hook(given, app) for given in settings.event_hooks)
    return Runtime(app, settings, store, Events(hooks), metrics=metrics)


def _alerts(settings: Settings, store: Store) -> list[Hook]:
    if not settings.alerts:
        return []
    send = [_imported(one) for one in settings.alerts]
    every, release = settings.alerts_every, settings.release or ""
    return [Alerts(send, notes=store.notes, every=every, release=release, link=settings.letter_link)]


def _metrics(app: Celery) -> Any:
    """Return what counts events for Prometheus, which is an extra."""
    try:
        return import_module("celery_reliable.contrib.prometheus").EventMetrics(app)
    except ModuleNotFoundError as exc:
        remedy = "pip install 'celery-reliable[prometheus]', or remove the setting"
        msg = f"reliable_metrics_port: expected prometheus-client to be installed, found none ({exc}); {remedy}"
        raise ConfigurationError(msg) from exc


def _trails(settings: Settings, store: Store) -> list[Hook]:
    """Return what notes the unusual in the life of jobs, unless that is switched off."""
    if not settings.explain_share:
        return []
    host, size, share = socket.gethostname(), settings.explain_size, settings.explain_share
    return [Trails(store.notes, now=store.now, host=host, size=size, share=share)]


def _confirm_publishes(app: Celery) -> None:
    """Have RabbitMQ confirm every message, unless the project says otherwise.

    kombu (5.7) does not by itself: a message written to the socket of a connection that then breaks is gone, and the
    caller was told that it was sent. Here, because producers need it as workers do, before either connects.
    """
    if broker_driver(app) == "amqp":
        app.conf.broker_transport_options = {"confirm_publish": True, **(app.conf.broker_transport_options or {})}


def sign_messages(app: Celery) -> None:
    """Have this process sign what it publishes with the app, by the settings at that time. Twice is once."""

    def sign(headers: Mapping[str, Any], body: Any, content: tuple[str, str]) -> str | None:
        signer = runtime_of(app).signer
        return None if signer is None else signer.sign(headers, body, content)

    internals.sign_messages(app, header=SIGNATURE_HEADER, sign=sign)


def broker_driver(app: Celery) -> str:
    """Return kombu's name for the kind of broker to which is published: ``redis``, ``amqp``, ``memory``, ..."""
    return str(app.connection_for_write().get_transport_cls().driver_type)


def consumed_driver(app: Celery) -> str:
    """Return kombu's name for the kind of broker from which a worker receives."""
    return str(app.connection_for_read().get_transport_cls().driver_type)


def consumed_place(app: Celery) -> str:
    """Return the address of the broker from which a worker receives, without password, and without user: that may be a token."""
    connection = app.connection_for_read()
    try:
        return mask_secrets(connection.as_uri())
    except ValueError:  # kombu (5.7) cannot read a password with a slash, and would say what it took for the port
        return f"{connection.transport_cls}://***"


def _hook(given: Any, app: Celery) -> Hook:
    """Return a hook; a class is made into one, once, with the app."""
    found = _imported(given)
    return cast("Hook", found(app) if isinstance(found, type) else found)


def _redact(given: Any) -> Redact | None:
    try:
        found = _imported(given)
    except (ImportError, AttributeError) as exc:
        msg = f"reliable_redact: expected the path of a function, found {given!r} ({exc}); correct it, or remove it"
        raise ConfigurationError(msg) from exc
    return cast("Redact | None", found)


def _cipher(given: Any) -> Any:
    try:
        found = _imported(given)
    except (ImportError, AttributeError) as exc:
        msg = f"reliable_blob_cipher: expected the path of an object, found {given!r} ({exc}); correct it, or remove it"
        raise ConfigurationError(msg) from exc
    if found is not None and not (hasattr(found, "encrypt") and hasattr(found, "decrypt")):
        msg = (
            f"reliable_blob_cipher: expected an object with encrypt(bytes) and decrypt(bytes), found {type(found).__name__}; "
            "name such an object, not its class or module"
        )
        raise ConfigurationError(msg)
    return found


def _imported(given: Any) -> Any:
    """Return an object that may be given as ``module:name`` or ``module.name``. Errors say which."""
    if not isinstance(given, str):
        return given
    module, _, name = given.replace(":", ".").rpartition(".")
    return getattr(import_module(module), name)
