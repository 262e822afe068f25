"""Edit the arguments of a letter."""

from __future__ import annotations

import json
from typing import Any

from django import forms

from celery_reliable.dead_letters import DeadLetter

_PARTS = ("args", "kwargs")
_AREA = {"rows": 8, "cols": 80, "class": "vLargeTextField reliable-json", "spellcheck": "false"}


class EditForm(forms.Form):
    """The arguments as JSON. Characters beyond ASCII stand as escapes, so that nothing is lost on the way."""

    args = forms.CharField(label="args (a JSON list)", widget=forms.Textarea(attrs=_AREA), strip=False)
    kwargs = forms.CharField(label="kwargs (a JSON object)", widget=forms.Textarea(attrs=_AREA), strip=False)
    force = forms.BooleanField(
        required=False, label="Force", help_text="Also a call that this site's code could not run."
    )
    sign = forms.BooleanField(
        required=False,
        label="Sign",
        help_text="Also a call that nobody is known to have signed: you know where it comes from.",
    )

    def __init__(self, given: Any, *, letter: DeadLetter, seen: DeadLetter, signs: bool) -> None:
        """Show the arguments of the letter; of one that cannot be read, and of what `seen` hides a part of, nothing.

        ``signs``: this project signs its messages.
        """
        self._before = letter.arguments()
        before = dict(zip(_PARTS, self._before or (), strict=False))
        visible = dict(zip(_PARTS, seen.arguments() or (), strict=False))
        hidden = [name for name in before if json.dumps(before[name]) != json.dumps(visible.get(name))]
        initial = {name: json.dumps(value, indent=2) for name, value in before.items() if name not in hidden}
        super().__init__(given, initial=initial)
        if not signs:
            del self.fields["sign"]
        for name in hidden:
            self.fields[name].required = False
            self.fields[name].help_text = "Parts of it are hidden (reliable_redact). Empty: it stays as it is."

    def clean_args(self) -> Any:
        """Return the list, None for a hidden one that stays."""
        if not self.cleaned_data["args"]:
            return None
        found = _json(self.cleaned_data["args"])
        if not isinstance(found, list):
            raise forms.ValidationError('Expected a JSON list, such as [12, "EUR"].')
        return found

    def clean_kwargs(self) -> Any:
        """Return the object, None for a hidden one that stays."""
        if not self.cleaned_data["kwargs"]:
            return None
        found = _json(self.cleaned_data["kwargs"])
        if not isinstance(found, dict):
            raise forms.ValidationError('Expected a JSON object, such as {"amount": 12}.')
        return found

    def changes(self) -> dict[str, Any]:
        """Return what differs from the letter: nothing, and the call stays as it is, byte for byte."""
        given = {name: self.cleaned_data[name] for name in _PARTS if self.cleaned_data[name] is not None}
        before = dict(zip(_PARTS, self._before or (None, None), strict=True))
        # Not as Python values: 1, 1.0 and true are equal there.
        return {name: value for name, value in given.items() if json.dumps(value) != json.dumps(before[name])}


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise forms.ValidationError(f"This is no JSON: {exc}") from exc


def _refuse(name: str) -> Any:
    msg = f"{name} is a number in JavaScript, not in JSON"
    raise ValueError(msg)
