"""Look up a key or a task id in the admin, and release the lease of one that is stuck."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.http import HttpResponseRedirect
from django.utils.http import urlencode

from celery_reliable.cli.screens import age, printable
from celery_reliable.dead_letters.record import reliable_header
from celery_reliable.django.admin.audit import Audited, history_of
from celery_reliable.django.admin.pages import StoreAdmin, View
from celery_reliable.heartbeats import SHELF, LifeSign
from celery_reliable.keys import identity_of, owner_of
from celery_reliable.payloads import Envelope
from celery_reliable.stores.base import Job, Store
from celery_reliable.stores.notes import every

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest

_LOOK_SECONDS: Final = 1.0
_KEEP: Final = 7 * 86_400.0  # seconds that the evidence of a release stays with the key
_SHOWN: Final = ("state", "task_id", "life", "attempt", "delivery", "snoozes", "checks", "fence", "reason", "letter_id")


@dataclass(frozen=True, slots=True)
class Found:
    """A job, and what the store knows of its key."""

    job: Job
    task: str
    record: Mapping[str, str]

    @property
    def holder(self) -> str:
        """The token of the claim while it runs."""
        return self.record.get("holder", "")


@dataclass(frozen=True, slots=True)
class Sign:
    """A worker's last sign of life, in words."""

    node: str
    state: str
    running: int
    age: str
    owner: str


class KeyAdmin(StoreAdmin):
    """One page: look up, see, release."""

    def routes(self) -> Iterator[tuple[str, View, str]]:
        """See `StoreAdmin.routes`."""
        yield "", self.look_page, "changelist"
        yield "release/", self.release_page, "release"
        yield "<path:object_id>/change/", self.key_page, "change"

    def key_page(self, request: HttpRequest, *, object_id: str) -> Any:
        """Lead from the log to the key."""
        return HttpResponseRedirect(self._address(object_id))

    def look_page(self, request: HttpRequest) -> Any:
        """Show what the store knows of a key or task id, and which workers there are."""
        store, name = self.project.store, request.GET.get("q", "").strip()
        signs = list(_signs(store))
        found, whole = find(store, name) if name else (None, True)
        return self.page(
            request,
            "keys",
            title="Keys and leases",
            name=name,
            found=found,
            facts=[
                (label.replace("_", " "), printable(found.record[label])) for label in _SHOWN if found.record.get(label)
            ]
            if found
            else [],
            key=printable(found.job.key) if found else "",
            task=printable(found.task) if found else "",
            whole=whole,
            holder=_holder(found, signs) if found else None,
            signs=signs,
            history=[(one.action_time, one.user.get_username(), one.change_message) for one in _log(self.model, found)],
            can_release=self.may(request, "can_release"),
        )

    def release_page(self, request: HttpRequest) -> Any:
        """End the lease that was shown, if that claim still has it."""
        name = request.POST.get("q", "")
        if request.method != "POST":
            return HttpResponseRedirect(self.url("changelist"))
        self.demand(request, "can_release")
        store = self.project.store
        found, _ = find(store, name)
        shown = request.POST.get("holder", "")
        if found is None or not shown or found.holder != shown:
            messages.warning(request, "Not released: that claim has ended, or another one was made meanwhile.")
            return HttpResponseRedirect(self._address(name))
        self._release(request, store, found)
        return HttpResponseRedirect(self._address(name))

    def _release(self, request: HttpRequest, store: Store, found: Found) -> None:
        key, who = found.job.key, request.user.get_username()
        line = Audited(request, self.model, key, name=key, flag=CHANGE, asked="Release asked for.")
        evidence = json.dumps({"released_by": who, "at": store.now() / 1e6, "holder": found.holder})
        freed = store.free(found.job, token=found.holder, evidence=evidence.encode(), keep=_KEEP)
        line.ended(f"Released from {found.holder}." if freed else "Not released: that claim has ended.")
        if freed:
            messages.success(request, "Released. The next delivery of its message runs the job.")
        else:
            messages.warning(request, "Not released: that claim has ended meanwhile.")

    def _address(self, name: str) -> str:
        return f"{self.url('changelist')}?{urlencode({'q': name})}"


def find(store: Store, name: str) -> tuple[Found | None, bool]:
    """Find a job by its key, or by the id of a submission that the ledger still has.

    Also tell whether the whole ledger was looked through: on Redis the record of an id without a key of its own can be
    found only with what its submission says.
    """
    record = store.inspect(Job(name, "declared"))
    if record:
        return Found(Job(name, "declared"), "", record), True
    deadline = time.monotonic() + _LOOK_SECONDS
    for task_id, raw in store.ledger():
        if task_id == name:
            return _of_entry(store, raw), True
        if time.monotonic() > deadline:
            return None, False
    return None, True


def _of_entry(store: Store, raw: bytes) -> Found | None:
    """Read an entry of the ledger; None for one that stands for no call of ours."""
    try:
        envelope = Envelope.from_bytes(raw)
    except ValueError:
        return None
    identity = identity_of(dict(reliable_header(envelope)), task_id=envelope.task_id)
    if identity is None:
        return None
    # Most submissions have no record before their claim: that they wait is known from the ledger alone.
    return Found(identity.job, envelope.task, store.inspect(identity.job) or {"state": "waiting"})


def _signs(store: Store) -> Iterator[Sign]:
    """Iterate over the workers that gave a sign of life."""
    now = time.time()
    for note in every(store.notes, SHELF).values():
        try:
            sign = LifeSign.from_json(note.value)
        except (ValueError, KeyError, TypeError):
            continue  # a later version's
        yield Sign(printable(sign.node), printable(sign.state), sign.running, age(max(now - sign.at, 0.0)), sign.owner)


def _holder(found: Found, signs: list[Sign]) -> tuple[str, Sign | None] | None:
    """Return the token that holds the lease, and the sign of its worker."""
    if not found.holder:
        return None
    owner = owner_of(found.holder)
    return printable(found.holder), next((sign for sign in signs if owner and sign.owner == owner), None)


def _log(model: Any, found: Found | None) -> list[Any]:
    return history_of(model, found.job.key) if found else []
