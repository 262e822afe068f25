"""Know of one entry what its firing depends on: its slots, its policy, and who receives its task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery_reliable.beat import schedules
from celery_reliable.errors import ConfigurationError
from celery_reliable.settings import Settings
from celery_reliable.settings.model import DEFAULTS, RULES
from celery_reliable.slots.planning import Policy
from celery_reliable.slots.sequences import Sequence
from celery_reliable.task import ReliableTask

POLICIES = ("catch_up", "catch_up_window", "start_deadline")
"""Settings that an entry may give in ``options["headers"]``, with ``reliable_`` before the name."""

_HEADERS = {name: f"reliable_{name}" for name in POLICIES}
ZONE_HEADER = "reliable_timezone"
_ON_TIME_TTLS = 2

Complain = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read from one definition of an entry, and that definition, to see when it changes.

    ``reliable``: an idempotent consumer receives the task, so publishing twice is harmless.
    """

    task: str
    schedule: Any
    args: Any
    kwargs: Any
    options: Any
    version: str
    sequence: Sequence
    policy: Policy
    reliable: bool

    def still_true_of(self, entry: Any) -> bool:
        """Tell whether the entry is defined as it was."""
        return (
            (self.schedule is entry.schedule or self.schedule == entry.schedule)
            and self.task == entry.task
            and (self.args is entry.args or self.args == entry.args)
            and (self.kwargs is entry.kwargs or self.kwargs == entry.kwargs)
            and (self.options is entry.options or self.options == entry.options)
        )


def facts_of(entry: Any, *, app: Any, settings: Settings, complain: Complain) -> Facts:
    """Read an entry. Wrong policies are complained about and replaced; a schedule that raises raises here."""
    headers = (entry.options or {}).get("headers") or {}
    task = app.tasks.get(entry.task)
    zone = _zone(headers, complain)
    return Facts(
        entry.task,
        entry.schedule,
        entry.args,
        entry.kwargs,
        entry.options,
        schedules.version_of(entry, zone=zone),
        schedules.sequence_of(entry.schedule, zone=zone),
        policy_of(headers, settings=_settings_of(task, settings, complain), complain=complain),
        # Of a task that this process cannot import the app's own kind of task tells.
        isinstance(task, ReliableTask) if task is not None else issubclass(app.Task, ReliableTask),
    )


def policy_of(headers: Mapping[str, Any], *, settings: Settings, complain: Complain) -> Policy:
    """Return the policy of an entry: what its headers say, else its task's options, else the settings."""
    given: dict[str, Any] = {"catch_up": settings.catch_up, "catch_up_window": settings.catch_up_window}
    given["start_deadline"] = settings.start_deadline
    for name, header in _HEADERS.items() if headers else ():
        if header not in headers:
            continue
        complaint = RULES[name].complaint(headers[header], default=DEFAULTS[name])
        if complaint:
            complain(f"{header}: {complaint}")
        else:
            given[name] = RULES[name].convert(headers[header])
    return Policy(
        catch_up=given["catch_up"],
        window=given["catch_up_window"],
        deadline=given["start_deadline"],
        on_time=_ON_TIME_TTLS * settings.leader_ttl,
    )


def _settings_of(task: Any, settings: Settings, complain: Complain) -> Settings:
    if not isinstance(task, ReliableTask):
        return settings
    try:
        return task.reliable_settings
    except ConfigurationError as exc:
        complain(str(exc))
        return settings


def _zone(headers: Mapping[str, Any], complain: Complain) -> tzinfo | None:
    name = headers.get(ZONE_HEADER)
    if name is None:
        return None
    try:
        found = ZoneInfo(name) if re.fullmatch(r"[A-Za-z0-9_+/-]+", name) else None
    except (TypeError, ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        found = None
    if found is None:
        complain(f"{ZONE_HEADER}: expected the name of a time zone such as 'Europe/Berlin', found {name!r}; correct it")
    return found
