"""Show the entries of the schedule: policy, last and next slots, and why one did not run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.urls import NoReverseMatch, reverse

from celery_reliable.beat.facts import overlap_for, policy_for
from celery_reliable.beat.leadership import Member, leader_and_members
from celery_reliable.cli.screens import age, printable
from celery_reliable.django.admin.pages import StoreAdmin, View
from celery_reliable.django.admin.showing import moment
from celery_reliable.runtime import runtime_of
from celery_reliable.slots.desk import SHELF
from celery_reliable.slots.reasons import MEANINGS, reasons
from celery_reliable.slots.records import SlotRecord
from celery_reliable.slots.skips import SHELF as SKIPS
from celery_reliable.slots.skips import by_entry
from celery_reliable.stores.notes import Note, every

if TYPE_CHECKING:
    from celery import Celery
    from django.http import HttpRequest

_SECOND: Final = 1_000_000
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry in words."""

    name: str
    url: str
    task: str
    schedule: str
    policy: str
    wrong: tuple[str, ...]
    last: str
    following: str
    outcome: str
    is_bad: bool


class BeatEntryAdmin(StoreAdmin):
    """The list with who leads, and one entry."""

    def routes(self) -> Iterator[tuple[str, View, str]]:
        """See `StoreAdmin.routes`."""
        yield "", self.list_page, "changelist"
        yield "<path:object_id>/change/", self.entry_page, "change"

    def list_page(self, request: HttpRequest) -> Any:
        """Show who leads and the entries that come next; those that are gone or disabled on demand."""
        store, text = self.project.store, request.GET.get("q", "").strip()
        leader, members = leader_and_members(store.notes)
        known, now = _records(every(store.notes, SHELF), every(store.notes, SKIPS)), store.now()
        found = {name: one for name, one in known.items() if text.casefold() in name.casefold()}
        shown = {name: one for name, one in found.items() if "all" in request.GET or not one.absent}
        ordered = sorted(shown.items(), key=lambda item: (item[1].following or 1 << 62, item[0]))[:_SHOWN]
        headers = _headers(self.project.app, [name for name, _ in ordered])
        return self.page(
            request,
            "entries",
            title="Beat entries",
            text=text,
            leader=_words(leader, now=now) if leader else "",
            followers=len(members) - (leader is not None and leader.token in members),
            entries=[self._entry(name, record, headers[name], now=now) for name, record in ordered],
            count=len(shown),
            hidden=len(found) - len(shown),
        )

    def entry_page(self, request: HttpRequest, *, object_id: str) -> Any:
        """Say why an entry did not run, and what became of its last slots."""
        store = self.project.store
        notes = store.notes
        record = _records(notes.read(SHELF, [object_id]), notes.read(SKIPS, [object_id])).get(object_id)
        if record is None:
            return self.page(request, "entry", title=f"Beat entry {object_id}", status=404, entry=None)
        now = store.now()
        led = leader_and_members(store.notes)[0] is not None
        return self.page(
            request,
            "entry",
            title=f"Beat entry {object_id}",
            entry=self._entry(object_id, record, _headers(self.project.app, [object_id])[object_id], now=now),
            reasons=[printable(reason) for reason in reasons(record, led=led, now=now)],
            history=[
                (
                    moment(one.slot / _SECOND),
                    MEANINGS.get(one.outcome, printable(one.outcome)),
                    moment(one.at / _SECOND),
                )
                for one in reversed(record.history)
            ],
            row_url=_row_url(object_id),
        )

    def _entry(self, name: str, record: SlotRecord, headers: Mapping[str, Any], *, now: int) -> Entry:
        policy, wrong = _policy(self.project.app, record, headers)
        last = next((passed for passed in reversed(record.history) if passed.outcome == "fired"), None)
        return Entry(
            name=printable(name),
            url=self.url("change", name),
            task=printable(record.task),
            schedule=printable(record.schedule),
            policy=policy,
            wrong=wrong,
            last=_distance(last.slot, now=now) if last else "never",
            following="" if record.absent or record.following is None else _distance(record.following, now=now),
            outcome=printable(_outcome(record)),
            is_bad=bool(record.why) or record.state in {"claimed", "dropped"},
        )


def _records(notes: Mapping[str, Note], skips: Mapping[str, Note]) -> dict[str, SlotRecord]:
    found: dict[str, SlotRecord] = {}
    skipped = by_entry(skips)
    for name, note in notes.items():
        try:
            found[name] = SlotRecord.from_bytes(note.value).with_skips(skipped.get(name, ()))
        except ValueError:
            continue  # a later version's
    return found


def _words(leader: Member, *, now: int) -> str:
    led = age(max((now - leader.epoch) / _SECOND, 0.0))
    return printable(f"{leader.host} pid {leader.pid} leads for {led}")


def _outcome(record: SlotRecord) -> str:
    if record.absent:
        return "disabled, or gone"
    state = record.history[-1].outcome if record.history else "not due yet"
    return (
        f"{state}: {record.why}"
        if record.why and record.why != state
        else "not published yet"
        if record.state == "claimed"
        else state
    )


def _distance(moment_: int, *, now: int) -> str:
    seconds = (moment_ - now) / _SECOND
    return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"


# --- policies


def _policy(app: Celery, record: SlotRecord, headers: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the policy of an entry in words, and what is wrong with what it says."""
    wrong: list[str] = []
    settings = runtime_of(app).settings
    task = app.tasks.get(record.task)
    policy = policy_for(task, headers, settings=settings, complain=wrong.append)
    overlap = overlap_for(task, headers, settings=settings, complain=wrong.append)
    words = f"catch up: {policy.catch_up}"
    if policy.catch_up != "skip":
        words += f", within {age(policy.window)}"
    if policy.deadline is not None:
        words += f", starts within {age(policy.deadline)}"
    if overlap != "allow":
        words += f", overlap: {overlap}"
    return words, tuple(printable(text) for text in wrong)


def _headers(app: Celery, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the headers of entries: of their rows where there are some, else of ``beat_schedule``."""
    found = {name: _headers_of(app, name) for name in names}
    return found | {row.name: _object(row.headers) for row in _rows(names)}


def _headers_of(app: Celery, name: str) -> Mapping[str, Any]:
    entry = (app.conf.beat_schedule or {}).get(name)
    options = entry.get("options") if isinstance(entry, dict) else getattr(entry, "options", None)
    found = (options or {}).get("headers")
    return found if isinstance(found, Mapping) else {}


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows(names: Sequence[str]) -> list[Any]:
    """Return django-celery-beat's rows of entries."""
    if not apps.is_installed("django_celery_beat"):
        return []
    return list(apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name__in=names))


def _row_url(name: str) -> str:
    for row in _rows([name]):
        try:
            return str(reverse("admin:django_celery_beat_periodictask_change", args=[row.pk]))
        except NoReverseMatch:  # a site on which that app's pages are not registered
            break
    return ""
