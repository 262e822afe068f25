"""Choose letters: the form above the list, and a look at the store that ends in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django import forms

from celery_reliable.cli.options import STATUSES
from celery_reliable.dead_letters import REASONS, DeadLetter, DeadLetters, Filter, Page

PAGE_SIZE: Final = 100
_AGES: Final = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
_STATUS_WORDS: Final = (
    ("", "open"),
    ("dead", "dead"),
    ("replaying", "replaying"),
    ("replayed", "replayed"),
    ("all", "all"),
)
_AGE_WORDS: Final = (("", "any time"), ("1h", "last hour"), ("24h", "last 24 hours"), ("7d", "last 7 days"))


class FilterForm(forms.Form):
    """What to look for, as it stands in the address of the list."""

    text = forms.CharField(required=False, label="Text", widget=forms.TextInput(attrs={"type": "search"}))
    task = forms.CharField(required=False, widget=forms.TextInput(attrs={"list": "tasks", "placeholder": "shop.*"}))
    error = forms.CharField(
        required=False, label="Error type", widget=forms.TextInput(attrs={"placeholder": "*Timeout"})
    )
    queue = forms.CharField(required=False)
    reason = forms.ChoiceField(required=False, choices=(("", "any"), *((reason, reason) for reason in REASONS)))
    since = forms.ChoiceField(required=False, label="Failed", choices=_AGE_WORDS)
    status = forms.ChoiceField(required=False, choices=_STATUS_WORDS)
    group = forms.CharField(required=False, widget=forms.HiddenInput)

    def wanted(self, *, now: float) -> Filter:
        """Return the filter of a valid form."""
        given: dict[str, Any] = {name: self.cleaned_data[name] or None for name in ("task", "error", "queue", "group")}
        age = _AGES.get(self.cleaned_data["since"])
        return Filter(
            **given,
            text=self.cleaned_data["text"] or None,
            reason=self.cleaned_data["reason"] or None,
            since=None if age is None else now - age,
            statuses=STATUSES[self.cleaned_data["status"] or "open"],
        )

    @property
    def narrows(self) -> bool:
        """Whether anything but the status is asked for."""
        return any(value for name, value in self.cleaned_data.items() if name != "status")


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in the time there was: ``looked`` letters were seen, ``cursor`` is where to go on, "" at the end."""

    letters: tuple[DeadLetter, ...] = ()
    cursor: str = ""
    looked: int = 0


def look(letters: DeadLetters, wanted: Filter, cursor: str, *, enough: int, seconds: float) -> Look:
    """Look at letters, newest first, until enough were found or the time is over. At least one page is looked at."""
    found: list[DeadLetter] = []
    looked = 0
    for page in pages_in_time(letters, wanted, cursor, seconds=seconds):
        found += page.letters
        looked, cursor = looked + page.looked, page.cursor
        if len(found) >= enough:
            break
    return Look(tuple(found), cursor, looked)


def pages_in_time(letters: DeadLetters, wanted: Filter, cursor: str, *, seconds: float) -> Iterator[Page]:
    """Iterate over pages of the store until the time is over."""
    deadline = time.monotonic() + seconds
    for page in letters.pages(wanted, cursor, size=PAGE_SIZE):
        yield page
        if time.monotonic() > deadline:
            return


def cursor_of(text: str) -> str:
    """Return a cursor from an address; what is none begins at the newest."""
    return text if text.isascii() and text.isdigit() and len(text) < _LONGEST_CURSOR else ""


_LONGEST_CURSOR: Final = 20
