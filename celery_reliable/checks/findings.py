"""Say what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
