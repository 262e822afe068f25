"""Say what was found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

_BRIEF: Final = 200  # characters

Severity = Literal["error", "warning", "info"]
"""``info`` is what somebody may have meant so: it never makes a check fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One danger. ``code`` is stable; ``message`` says what is wrong, what will come of it, and what to do.

    .. versionadded:: 0.1
    """

    code: str
    severity: Severity
    message: str

    @property
    def brief(self) -> str:
        """The message's first sentence, which has problem and consequence, in at most 200 characters."""
        first = re.split(r"[.;] (?=[A-Z`])", self.message, maxsplit=1)[0].rstrip(".")
        return first if len(first) <= _BRIEF else f"{first[: _BRIEF - 1]}…"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return errors, then warnings, then what is only information; each in the order given."""
    return sorted(findings, key=lambda one: get_args(Severity).index(one.severity))
