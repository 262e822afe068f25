"""Hold what one app needs in one process: settings, store and events."""

from __future__ import annotations

import itertools
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from celery_reliable import internals
from celery_reliable.alerts import Alerts
from celery_reliable.blobs import BlobRef, Blobs
from celery_reliable.errors import ConfigurationError
from celery_reliable.events import Events, Hook
from celery_reliable.overlap import Rights
from celery_reliable.settings import Settings, resolve_store_url
from celery_reliable.stores import open_store
from celery_reliable.trails import Trails

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.stores.base import Store

_ATTRIBUTE = "_celery_reliable_runtime"
_CONFIRM_TIMEOUT = 5.0  # seconds, for each of the tries of task_publish_retry_policy
_making = threading.Lock()
_ALIVE = ("waiting", "running")


@dataclass(eq=False)
class Runtime:
    """Settings, store and events of one app. Made at the first use; the store connects at its first verb."""

    app: Celery
    settings: Settings
    store: Store
    events: Events
    random: random.Random = field(default_factory=random.SystemRandom)
    broker_away_until: float = 0.0
    """Until then (monotonic) no publish after a commit is tried in this process: a relay will do it."""
    metrics: Any = None
    """The `contrib.prometheus.EventMetrics` of this process, where ``reliable_metrics_port`` is set."""
    holding: Any = None
    """The consumer's `worker.holding.Holding`, while a worker of this app runs in this process."""
    keep_rights: Callable[[], None] | None = None
    """Begins to renew the rights of what must not overlap, in the parent of a worker; may be called often."""

    @cached_property
    def ledger(self) -> bool:
        """Whether submissions are kept until their end: set, and the broker is one that can lose a popped message."""
        return self.settings.ledger and broker_driver(self.app) == "redis"

    @cached_property
    def owner(self) -> str:
        """Return the random token of this worker's or beat's process. Its pool children do not ask."""
        return internals.new_token()

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
        return None if url is None else Blobs(url, now=self.store.now)

    @cached_property
    def rights(self) -> Rights:
        """Who may run among jobs that must not overlap."""
        store, role = self.store, f"overlap:{secrets.token_hex(6)}"
        return Rights(
            store.notes,
            now=store.now,
            has_ended=lambda job: store.inspect(job).get("state") not in _ALIVE,
            may_seize=lambda: store.lead(role, token="me", ttl=1.0, pulse_ttl=self.settings.lease_ttl) == "yes",  # noqa: S106
        )

    def blob(self, raw: bytes) -> bytes:
        """Return what was kept aside. Raises `BlobLost`, `Transient`, and `ConfigurationError` without a folder."""
        ref = BlobRef.from_bytes(raw)
        if self.blobs is None:
            msg = f"blob {ref.path}: expected the reliable_blob_url with which it was written, found none; set it"
            raise ConfigurationError(msg)
        return self.blobs.get(ref)

    @cached_property
    def host(self) -> str:
        """Return this host's name."""
        return socket.gethostname()


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
    _confirm_publishes(app)
    url = resolve_store_url(
        settings.store_url, result_backend=app.conf.result_backend, broker_url=app.conf.broker_write_url
    )
    store = open_store(url, key_prefix=settings.key_prefix, wait_replicas=settings.wait_replicas)
    metrics = _metrics(app) if settings.metrics_port else None
    hooks = [*_trails(settings, store), *_alerts(settings, store), *filter(None, [metrics])]
    hooks += map(_hook, settings.event_hooks)
    return Runtime(app, settings, store, Events(hooks), metrics=metrics)


def _alerts(settings: Settings, store: Store) -> list[Hook]:
    if not settings.alerts:
        return []
    send: list[Any] = [_hook(one) for one in settings.alerts]  # they take an alert, not an event
    every, release = settings.alerts_every, settings.release or ""
    return [Alerts(send, notes=store.notes, every=every, release=release)]


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


def broker_driver(app: Celery) -> str:
    """Return kombu's name for the kind of broker to which is published: ``redis``, ``amqp``, ``memory``, ..."""
    return str(app.connection_for_write().get_transport_cls().driver_type)


def consumed_driver(app: Celery) -> str:
    """Return kombu's name for the kind of broker from which a worker receives."""
    return str(app.connection_for_read().get_transport_cls().driver_type)


def _hook(hook: Any) -> Hook:
    """Import a hook given as ``module:name`` or ``module.name``. Errors say which hook."""
    if callable(hook):
        return cast("Hook", hook)
    module, _, name = hook.replace(":", ".").rpartition(".")
    found: Hook = getattr(import_module(module), name)
    return found
