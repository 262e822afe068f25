"""Show dead letters in the admin, replay and discard them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.signing import BadSignature
from django.http import HttpResponseRedirect, QueryDict

from celery_reliable.cli.screens import printable
from celery_reliable.dead_letters.search import add, largest
from celery_reliable.django.admin import batches, showing
from celery_reliable.django.admin.acts import Acts
from celery_reliable.django.admin.audit import history_of
from celery_reliable.django.admin.batches import Batch
from celery_reliable.django.admin.choosing import PAGE_SIZE, FilterForm, Look, cursor_of, look, pages_in_time
from celery_reliable.django.admin.editing import EditForm
from celery_reliable.django.admin.pages import StoreAdmin, View

if TYPE_CHECKING:
    from django.http import HttpRequest

    from celery_reliable.dead_letters import DeadLetter, DeadLetters, Group

_LIST_SECONDS: Final = 0.15  # of looking for letters that fit; an unfiltered list needs one page of the store
_GROUPS_SECONDS: Final = 2.0
_GROUPS_SHOWN: Final = 100
_EXAMPLES: Final = 10
_PERMISSIONS: Final = {"replay": "can_replay", "dry_run": "can_replay", "discard": "can_discard"}
_TITLES: Final = {"replay": "Replay", "dry_run": "Dry run of a replay", "discard": "Discard"}


class DeadLetterAdmin(StoreAdmin):
    """List, groups, one letter, its edit, and what is done to many."""

    def routes(self) -> Iterator[tuple[str, View, str]]:
        """See `StoreAdmin.routes`."""
        yield "", self.list_page, "changelist"
        yield "groups/", self.groups_page, "groups"
        yield "ask/", self.ask_page, "ask"
        yield "run/", self.run_page, "run"
        yield "<path:object_id>/edit/", self.edit_page, "edit"
        yield "<path:object_id>/change/", self.letter_page, "change"

    # --- look

    def list_page(self, request: HttpRequest) -> Any:
        """Show letters, newest first: a page of them, or as many as were found in the time there is."""
        letters, form = self.project.letters, FilterForm(request.GET)
        now, after = letters.now(), cursor_of(request.GET.get("after", ""))
        found = Look()
        if form.is_valid():
            found = look(letters, form.wanted(now=now), after, enough=PAGE_SIZE, seconds=_LIST_SECONDS)
        return self.page(
            request,
            "letters",
            title="Dead letters",
            form=form,
            rows=[self._row(letter, now=now) for letter in found.letters],
            found=found,
            older=_address(request, after=found.cursor) if found.cursor else "",
            newest=_address(request, after=None) if after else "",
            **self._around_list(request, letters, form),
        )

    def groups_page(self, request: HttpRequest) -> Any:
        """Show groups of letters with one error in one place, largest first, among the newest letters."""
        letters, form = self.project.letters, FilterForm(request.GET)
        now, groups, looked, cursor = letters.now(), dict[str, "Group"](), 0, ""
        if form.is_valid():
            for page in pages_in_time(letters, form.wanted(now=now), "", seconds=_GROUPS_SECONDS):
                looked, cursor = looked + page.looked, page.cursor
                for letter in page.letters:
                    add(groups, letter)
        return self.page(
            request,
            "groups",
            title="Groups of dead letters",
            form=form,
            groups=[showing.GroupRow.of(group, now=now) for group in largest(groups)[:_GROUPS_SHOWN]],
            count=len(groups),
            looked=looked,
            is_part=bool(cursor),
            **self._around_list(request, letters, form),
        )

    def letter_page(self, request: HttpRequest, *, object_id: str) -> Any:
        """Show everything about one letter; of one that is gone, what the log has."""
        letters = self.project.letters
        letter = letters.show(object_id)
        log = history_of(self.model, object_id)
        if letter is None:
            return self.page(request, "gone", title=f"Dead letter {object_id}", status=404, history=_told(log))
        return self.page(
            request,
            "letter",
            title=f"{letter.task or 'Dead letter'} {letter.id}",
            letter=letter,
            row=self._row(letter, now=letters.now()),
            facts=list(showing.facts(letter)),
            payload=list(showing.payload(self.project.seen(letter))),
            traceback=printable(letter.traceback),
            history=showing.history(letter, _told(log)),
            edit_url=self.url("edit", letter.id) if letter.envelope else "",
            **self._rights(request),
        )

    # --- act

    def edit_page(self, request: HttpRequest, *, object_id: str) -> Any:
        """Change the arguments of one letter, and replay it."""
        self.demand(request, "can_replay")
        letters = self.project.letters
        letter = letters.show(object_id)
        if letter is None or letter.envelope is None:
            return HttpResponseRedirect(self.url("change", object_id))
        seen, signs = self.project.seen(letter), self.project.signs
        form = EditForm(request.POST or None, letter=letter, seen=seen, signs=signs)
        if request.method == "POST" and form.is_valid() and self._edited(request, letters, letter, form):
            return HttpResponseRedirect(self.url("change", object_id))
        title = f"Edit and replay {letter.task} {letter.id}"
        back = self.url("change", object_id)
        return self.page(request, "edit", title=title, form=form, letter=letter, letter_url=back)

    def _edited(self, request: HttpRequest, letters: DeadLetters, letter: DeadLetter, form: EditForm) -> bool:
        """Replay with the form's arguments; a refusal is an error of the form."""
        sign = form.cleaned_data.get("sign", False)
        acts = Acts(request, self.model, letters, force=form.cleaned_data["force"], sign=sign)
        refused = acts.replay(letter.id, **form.changes())
        if refused is None:
            messages.success(request, f"Replayed with other arguments: {letter.id}")
            return True
        form.add_error(None, printable(str(refused)))
        return False

    def ask_page(self, request: HttpRequest) -> Any:
        """Ask whether what was chosen is meant; a dry run asks nothing."""
        if request.method != "POST":
            return HttpResponseRedirect(self.url("changelist"))
        batch = self._chosen(request)
        if batch is None:
            messages.warning(request, "No letters were chosen.")
            return HttpResponseRedirect(self.url("changelist"))
        if batch.action == "dry_run":
            return self._stepped(request, batch)
        known = [self.project.letters.show(letter_id) for letter_id in batch.pending[:_EXAMPLES]]
        now = self.project.letters.now()
        return self.page(
            request,
            "ask",
            title=_TITLES[batch.action],
            batch=batch,
            token=batch.signed(),
            rows=[self._row(letter, now=now) for letter in known if letter],
            more=max(len(batch.pending) - _EXAMPLES, 0),
            signs=self.project.signs,
            query=request.POST.get("query", ""),
        )

    def run_page(self, request: HttpRequest) -> Any:
        """Work on a batch for a second, and show how far it is."""
        if request.method != "POST":
            return HttpResponseRedirect(self.url("changelist"))
        try:
            batch = Batch.from_signed(request.POST.get("batch", ""))
        except BadSignature as exc:
            raise BadRequest("expected a batch that this site has signed") from exc
        if batch.user != str(request.user.pk):
            raise PermissionDenied
        self.demand(request, _PERMISSIONS[batch.action])
        force, sign = batch.force or "force" in request.POST, batch.sign or "sign" in request.POST
        return self._stepped(request, replace(batch, force=force, sign=sign))

    def _stepped(self, request: HttpRequest, batch: Batch) -> Any:
        letters = self.project.letters
        acts = Acts(request, self.model, letters, force=batch.force, sign=batch.sign)
        act = {"replay": acts.replay, "dry_run": acts.check, "discard": acts.discard}[batch.action]
        after, stopped = batches.step(batch, letters, act)
        return self.page(
            request,
            "batch",
            title=_TITLES[batch.action],
            status=503 if stopped else 200,
            batch=after,
            token=after.signed(),
            refused=[(one.reason, one.count, printable(one.example)) for one in after.refused],
            kept=letters.counts()["kept"] if after.wanted else 0,
            stopped=printable(stopped),
        )

    def _chosen(self, request: HttpRequest) -> Batch | None:
        """Return the batch that a list's form asks for, None when it names no letters."""
        action = request.POST.get("action", "")
        if action not in _PERMISSIONS:
            raise BadRequest("expected one of the actions replay, dry_run, discard")
        self.demand(request, _PERMISSIONS[action])
        batch = Batch(action=action, user=str(request.user.pk))
        if "everything" in request.POST:
            form = FilterForm(QueryDict(request.POST.get("query", "")))
            if not form.is_valid():
                return None
            now = self.project.letters.now()
            return replace(batch, wanted=replace(form.wanted(now=now), until=now), searching=True)
        chosen = tuple(dict.fromkeys(request.POST.getlist("selected")))
        return replace(batch, pending=chosen) if chosen else None

    # --- parts of pages

    def _row(self, letter: DeadLetter, *, now: float) -> showing.Row:
        return showing.Row.of(self.project.seen(letter), url=self.url("change", letter.id), now=now)

    def _around_list(self, request: HttpRequest, letters: DeadLetters, form: FilterForm) -> dict[str, Any]:
        return {
            "kept": letters.counts()["kept"],
            "query": _address(request, after=None).lstrip("?"),
            "narrowed": form.is_valid() and form.narrows,
            "tasks": self.project.task_names,
            "groups_url": self.url("groups"),
            **self._rights(request),
        }

    def _rights(self, request: HttpRequest) -> dict[str, bool]:
        return {name: self.may(request, name) for name in ("can_replay", "can_discard")}


def _address(request: HttpRequest, *, after: str | None) -> str:
    """Return the query of this page from another cursor on; what is empty is left out."""
    query = QueryDict(mutable=True)
    for name in FilterForm.base_fields:
        if value := request.GET.get(name):
            query[name] = value
    if after:
        query["after"] = after
    return f"?{query.urlencode()}"


def _told(log: list[Any]) -> list[tuple[Any, str, str]]:
    """Return lines of the admin's log as (when, who, what)."""
    return [(entry.action_time, entry.user.get_username(), entry.change_message) for entry in log]
