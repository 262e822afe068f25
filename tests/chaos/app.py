"""The app of a chaos run: one body, three tasks, and a note of all it does in the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery, current_app, signals

from celery_reliable import Draining, Permanent, ReliableTask, Snooze, Transient
from tests.chaos.plan import Work
from tests.chaos.site import LEASE, Site

CONF: dict[str, Any] = {
    "reliable_lease_ttl": LEASE,
    "reliable_retry_backoff": 0.2,
    "reliable_retry_backoff_max": 3.0,
    "reliable_drain_timeout": 2.0,
    "reliable_max_deliveries": 8,
    "reliable_leader_ttl": LEASE,
    "broker_transport_options": {"unacked_restore_interval": 1},
    "broker_connection_max_retries": None,
    "worker_redirect_stdouts": False,
}
MOMENTS = ("claimed", "effect", "done", "postrun", "retried", "snoozed", "buried")
"""Where a worker's process may be killed; `effect` is between the change of the accounts and the end of the body."""
_HOWS = ((Transient, "transient"), (Permanent, "permanent"), (Snooze, "snooze"), (Draining, "interrupted"))

ENTRIES: Mapping[str, float] = {"each-second": 1.0, "often": 2.0, "seldom": 7.0}
"""The schedule of the beats: seconds between two slots. All that were missed are caught up."""

Handed = Mapping[str, Any]  # the outcome of another job


def make_app(site: Site) -> Celery:
    """Return the app, in a worker as in a producer."""
    app = Celery("chaos", broker=site.broker, backend=site.backend)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({**CONF, "reliable_store_url": site.store, "reliable_event_hooks": (_hook(site),), **site.conf})
    app.site = site
    app.task(shared=False, base=ReliableTask, bind=True, name="own")(own)
    app.task(shared=False, base=ReliableTask, bind=True, name="declared", idempotency_key="{label}")(declared)
    app.task(shared=False, base=ReliableTask, bind=True, name="follow")(follow)
    app.task(shared=False, base=ReliableTask, bind=True, name="slot")(slot)
    app.conf.beat_schedule = {name: _entry(name, seconds) for name, seconds in ENTRIES.items()}
    (_second_version if site.version == 2 else _first_version)(app)
    return app


def _entry(name: str, seconds: float) -> dict[str, Any]:
    return {"task": "slot", "schedule": seconds, "args": (name,), "options": {"headers": {"reliable_catch_up": "all"}}}


def _first_version(app: Celery) -> None:
    app.task(shared=False, base=ReliableTask, bind=True, name="changed")(changed_first)


def _second_version(app: Celery) -> None:
    """Deploy a payload of a new form, and a task that the first version does not know."""
    changed = app.task(shared=False, base=ReliableTask, bind=True, name="changed", payload_version=2)(changed_second)
    changed.upgrade(from_version=1, positional=("label", "work"))(_upgrade)
    app.task(shared=False, base=ReliableTask, bind=True, name="fresh")(own)


def _upgrade(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"label": arguments["label"], "plans": [arguments["work"]]}


def _hook(site: Site) -> Any:
    def hook(event: str, fields: Mapping[str, Any]) -> None:
        _keep(site, event, fields)
        if event in MOMENTS or event == "submitted":
            site.meet(event)

    return hook


def _keep(site: Site, event: str, fields: Mapping[str, Any]) -> None:
    """Keep events beside the ledger: they explain a finding, they prove nothing."""
    with (site.directory / "events.log").open("a") as file:
        file.write(f"{time.monotonic():.3f} {site.party} {event} {dict(fields)}\n")


@signals.task_postrun.connect(weak=False)
def _meet_postrun(**_: Any) -> None:
    site = getattr(current_app, "site", None)
    if site is not None:
        site.meet("postrun")


# --- tasks


def own(self: Any, label: str, work: Mapping[str, Any]) -> Handed:
    """Work under a key of its own."""
    return perform(self, label, Work(**work))


def declared(self: Any, label: str, work: Mapping[str, Any]) -> Handed:
    """Work under the key that the project names."""
    return perform(self, label, Work(**work))


def changed_first(self: Any, label: str, work: Mapping[str, Any]) -> Handed:
    """Work as the first version of a task that changes."""
    return perform(self, label, Work(**work))


def changed_second(self: Any, label: str, plans: Sequence[Mapping[str, Any]]) -> Handed:
    """Work as the second version, which takes other arguments."""
    return perform(self, label, Work(**plans[0]))


def slot(self: Any, entry: str) -> Handed:
    """Work for a slot of the schedule. Nobody but the beats has submitted it."""
    label = f"slot:{entry}:{self.slot}"
    member = {"label": label, "id": self.idempotency_key, "kind": "slot"}
    self.app.site.ledger.note("accepted", label, members=[member], form="slot")
    return perform(self, label, Work())


def follow(self: Any, handed: Handed | Sequence[Handed], label: str, work: Mapping[str, Any]) -> Handed:
    """Work when other jobs are done, and note what was handed over."""
    for one in [handed] if isinstance(handed, Mapping) else handed:
        self.app.site.ledger.note("told", one["label"], fence=one["fence"], by=label)
    return perform(self, label, Work(**work))


def perform(task: Any, label: str, work: Work) -> Handed:
    """Do the work; note start, effect and end."""
    ledger = task.app.site.ledger
    run = {"task_id": task.request.id, "fence": task.fence, "attempt": task.attempt}
    ledger.note("start", label, **run)
    try:
        _act(task, label, work)
    except BaseException as exc:
        ledger.note("end", label, **run, how=_how(exc), error=repr(exc)[:300])
        raise
    ledger.note("end", label, **run, how="done")
    return {"label": label, "fence": task.fence}


def _act(task: Any, label: str, work: Work) -> None:
    time.sleep(work.seconds)
    for number in range(work.children):
        _submit_child(task, label, number)
    _leave(task, work)
    site = task.app.site
    accepted = site.accounts.change(label, fence=task.fence)
    site.ledger.note("effect", label, fence=task.fence, accepted=accepted)
    site.meet("effect")


def _submit_child(task: Any, label: str, number: int) -> None:
    child = f"{label}/{number}"
    sent = task.app.tasks["own"].delay(child, Work().to_json())
    member = {"label": child, "id": sent.id, "kind": "derived"}
    task.app.site.ledger.note("accepted", label, members=[member], form="child")


def _leave(task: Any, work: Work) -> None:
    """Fail or snooze if that is the plan."""
    if work.hopeless:
        raise Permanent("hopeless by plan")
    if task.attempt <= work.fails:
        raise Transient("fails by plan")
    snoozed = task.checkpoint.load(0) if work.snoozes else 0
    if snoozed < work.snoozes:
        task.checkpoint.save(snoozed + 1)
        task.snooze(0.3)


def _how(exc: BaseException) -> str:
    return next((how for kind, how in _HOWS if isinstance(exc, kind)), "raised")
