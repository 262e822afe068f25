"""The app of beats and workers in `tests.chaos.beats`: its tasks note which slot they ran for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.schedules import crontab

from celery_reliable import ReliableTask
from tests.chaos.app import CONF
from tests.chaos.site import Site
from tests.chaos.slots import ENTRIES, Entry


def make_app(site: Site) -> Celery:
    """Return the app, in a worker as in a beat."""
    app = Celery("beats", broker=site.broker, backend=site.backend)
    app.config_from_object("celery_reliable.presets")
    hook = _hook(site)
    app.conf.update({**CONF, "reliable_store_url": site.store, "reliable_event_hooks": (hook,), **site.conf})
    app.conf.beat_schedule = {name: _as_celery(name, entry) for name, entry in ENTRIES.items()}
    app.conf.task_ignore_result = True
    app.site = site
    app.task(shared=False, base=ReliableTask, bind=True, name="reliable")(run)
    app.task(shared=False, bind=True, name="plain")(run)
    return app


def _as_celery(name: str, entry: Entry) -> dict[str, Any]:
    schedule = crontab() if entry.seconds == 60 else float(entry.seconds)  # a minute
    options = {"headers": {"reliable_catch_up": entry.policy}}
    return {"task": entry.task, "schedule": schedule, "args": (name,), "options": options}


def _hook(site: Site) -> Any:
    def hook(event: str, fields: Mapping[str, Any]) -> None:
        if event == "leading":
            site.ledger.note("elected", site.party, epoch=fields["epoch"])

    return hook


def run(self: Any, name: str) -> None:
    """Note the slot: the header is there for every kind of task."""
    self.app.site.ledger.note("start", name, slot=self.request.reliable_slot, task_id=self.request.id)


app = make_app(Site.from_environment())
