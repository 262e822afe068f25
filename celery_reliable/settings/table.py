"""Describe the settings for the reference documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_reliable.settings.model import DEFAULTS, RULES
from celery_reliable.settings.names import PREFIX


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as the documentation shows it. ``per_task``: also a task attribute and decorator option."""

    name: str
    default: Any
    meaning: str
    unit: str
    expected: str
    per_task: bool


def describe() -> list[Setting]:
    """Return every setting, in the order of the reference page."""
    return [
        Setting(PREFIX + name, DEFAULTS[name], rule.meaning, rule.unit, rule.expected, rule.per_task)
        for name, rule in RULES.items()
    ]
