"""Put celery_reliable into a Celery app.

Four doors lead here and each is enough: the preset names this module in ``imports`` and in ``include``; binding a
`ReliableTask` calls `install`; the ``celery.commands`` plug-in calls `connect_signals`; an embedded worker without any
of these calls `install` itself. Importing this module connects three signal receivers, which is the one exception to
"nothing happens at import": Celery offers a module in ``imports`` no other way to learn which app imported it. They touch only
apps that ask for celery_reliable.

A signal receiver's errors are swallowed by Celery. So nothing is checked here: `celery_reliable.worker.preflight`
refuses to start a worker with wrong settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_reliable import presets
from celery_reliable.settings import has_reliable_settings

if TYPE_CHECKING:
    from celery import Celery

WORKER_STEPS = (
    "celery_reliable.worker.preflight:Preflight",
    "celery_reliable.worker.metrics:MetricsServer",
    "celery_reliable.worker.lease_keeper:LeaseKeeper",
    "celery_reliable.worker.drain.step:Drain",
    "celery_reliable.worker.blob_sweep:BlobSweep",
    "celery_reliable.worker.overlap_keeper:OverlapKeeper",
    "celery_reliable.worker.relaying:Relaying",
    "celery_reliable.worker.green_pools:GreenPools",
    "celery_reliable.checks.at_start:Findings",
)
CONSUMER_STEPS = (
    "celery_reliable.worker.taking_turns:TakingTurns",
    "celery_reliable.worker.telling_ages:TellingAges",
    "celery_reliable.worker.holding:Holding",
    "celery_reliable.worker.intake:Intake",
    "celery_reliable.worker.reconnecting:Reconnecting",
    "celery_reliable.worker.consumer_timeout:ConsumerTimeout",
    "celery_reliable.worker.sqs:SqsKeeper",
    "celery_reliable.worker.rescue:Rescue",
    "celery_reliable.worker.recovery:Recovery",
    "celery_reliable.worker.drain.handover:HandOver",
    "celery_reliable.worker.kill_switch:KillSwitches",
    "celery_reliable.worker.reaping:Reaping",
    "celery_reliable.worker.waker:Waker",
    "celery_reliable.worker.heartbeat:Heartbeat",
)

_UID = "celery_reliable.wiring"
_PRESET = {name: value for name, value in vars(presets).items() if not name.startswith("__")}


class _Gaps(dict[str, Any]):
    """The preset's values for one app: consulted after everything the project set, before Celery's defaults."""


def install(app: Celery) -> None:
    """Wire one app: fill the gaps of its configuration and add the worker's bootsteps.

    Also hides from Celery's reports the settings of ours that may hold a password.

    Whatever the project sets wins, before or after this call. May be called any number of times. Reads no
    configuration that has not been read yet.

    .. versionadded:: 0.1
    """
    # Not imported above: Celery imports this module in each of its processes, and that one brings the drivers with it.
    import_module("celery_reliable.internals").hide_settings("RELIABLE_STORE_URL", "RELIABLE_BLOB_URL")
    watch_backends()
    app.steps["worker"].update(WORKER_STEPS)
    app.steps["consumer"].update(CONSUMER_STEPS)
    # Every load of a configuration begins with new maps: a second config_from_object drops the gaps.
    app.on_after_configure.connect(_on_after_configure, weak=False, dispatch_uid=_UID)
    if app.configured:
        _on_after_configure(app)


def connect_signals() -> None:
    """Wire, when its worker or beat starts, every app that asks for celery_reliable. May be called twice."""
    signals.celeryd_init.connect(_on_celeryd_init, weak=False, dispatch_uid=_UID)
    signals.worker_init.connect(_on_service_init, weak=False, dispatch_uid=_UID)
    signals.beat_init.connect(_on_service_init, weak=False, dispatch_uid=_UID)


def watch_backends() -> None:
    """Have every result backend prepared that an app with ``reliable_blob_url`` makes. May be called twice.

    `celery_reliable.task` does so when it is imported: a process that only asks for results never binds a task.
    """
    import_module("celery_reliable.internals").watch_backends(_prepare)


def _prepare(app: Celery, backend: Any) -> None:
    if app.conf.get("reliable_blob_url"):
        import_module("celery_reliable.large_results").prepare(app, backend)


def _on_after_configure(sender: Celery, **_: Any) -> None:
    _fill_gaps(sender.conf)
    if sender.conf.get("reliable_signing_keys"):
        # Also where only plain tasks are sent, which nothing of ours would notice.
        import_module("celery_reliable.runtime").sign_messages(sender)


def _on_celeryd_init(instance: Any, **_: Any) -> None:  # Any: WorkController, which has not read its defaults yet
    install_if_wanted(instance.app)


def _on_service_init(sender: Any, **_: Any) -> None:  # Any: WorkController or beat.Service
    install_if_wanted(sender.app)


def install_if_wanted(app: Celery) -> None:
    """Wire an app that asks for it, as its worker does at the start."""
    if _wants(app):
        install(app)


def _wants(app: Celery) -> bool:
    """Tell whether the app names this module or has any ``reliable_*`` setting, whatever else it overrides."""
    modules = (*_listed(app.conf.imports), *_listed(app.conf.include))
    return __name__ in modules or has_reliable_settings(app.conf)


def _listed(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _fill_gaps(conf: Any) -> None:  # Any: the maps of app.conf are not in the stubs
    """Put our values just before Celery's defaults, the last of the maps.

    Not ``add_defaults``: that goes before the project's own values when these carry a namespace.
    """
    _unshare(conf)
    if any(isinstance(known, _Gaps) for known in conf.maps):
        return
    gaps = _Gaps(deepcopy(_PRESET))
    conf.maps.insert(-1, gaps)
    conf.defaults.insert(-1, gaps)


def _unshare(conf: Any) -> None:
    """Give this app copies of what is mutable in the preset module, which all apps of the process load."""
    for name, value in _PRESET.items():
        if isinstance(value, dict) and conf.get(name) is value:
            conf[name] = deepcopy(value)


connect_signals()
