"""Know of one entry what its firing depends on: its slots, its policy, and who receives its task."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery_reliable import keys
from celery_reliable.beat import schedules
from celery_reliable.errors import ConfigurationError
from celery_reliable.overlap import KEY_HEADER, POLICY_HEADER
from celery_reliable.settings import Settings
from celery_reliable.settings.model import DEFAULTS, RULES
from celery_reliable.slots.planning import Policy
from celery_reliable.slots.sequences import Rhythm, Sequence
from celery_reliable.task import ReliableTask

POLICIES = ("catch_up", "catch_up_window", "start_deadline")
"""Settings that an entry may give in ``options["headers"]``, with ``reliable_`` before the name."""

_HEADERS = {name: f"reliable_{name}" for name in POLICIES}
ZONE_HEADER = "reliable_timezone"
_ON_TIME_TTLS = 2

Complain = Callable[[str, str], None]
"""Told the name of an entry and what is wrong with it."""

_Complain = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read from one definition of an entry, and that definition, to see when it changes.

    ``reliable``: an idempotent consumer receives the task, so publishing twice is harmless. ``words``: the schedule, for people.
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
    words: str
    rhythm: Rhythm
    wrong: tuple[str, ...] = ()
    """Headers that must not travel: what they say of overlap cannot be done."""

    def still_true_of(self, entry: Any) -> bool:
        """Tell whether the entry is defined as it was."""
        return (
            (self.schedule is entry.schedule or self.schedule == entry.schedule)
            and self.task == entry.task
            and (self.args is entry.args or self.args == entry.args)
            and (self.kwargs is entry.kwargs or self.kwargs == entry.kwargs)
            and (self.options is entry.options or self.options == entry.options)
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What is the same for all entries of a task."""

    settings: Settings
    policy: Policy
    reliable: bool


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What is the same for all entries with one schedule."""

    sequence: Sequence
    text: str
    words: str
    rhythm: Rhythm


class Reader:
    """Reads entries. What many of them share - tasks, schedules - is read once, until `forget`."""

    def __init__(self, *, app: Any, settings: Settings, complain: Complain) -> None:
        """Take the app, and whom to tell about wrong policies."""
        self._app, self._settings, self._complain = app, settings, complain
        self._tasks: dict[str, _Task] = {}
        self._schedules: dict[Hashable, _Schedule] = {}

    def forget(self) -> None:
        """Read everything anew."""
        self._tasks.clear()
        self._schedules.clear()

    def facts_of(self, entry: Any) -> Facts:
        """Read an entry. Wrong policies are complained about and replaced; a schedule that raises raises here."""

        def complain(problem: str) -> None:
            self._complain(entry.name, problem)

        headers = (entry.options or {}).get("headers")
        task = self._tasks.get(entry.task) or self._read_task(entry.task, complain)
        zone = _zone(headers, complain) if headers else None
        schedule = self._schedule(entry.schedule, zone=zone)
        return Facts(
            entry.task,
            entry.schedule,
            entry.args,
            entry.kwargs,
            entry.options,
            schedules.version_of(entry, schedule=schedule.text),
            schedule.sequence,
            policy_of(headers, settings=task.settings, complain=complain) if headers else task.policy,
            task.reliable,
            schedule.words,
            schedule.rhythm,
            self._wrong(entry, headers, task, complain) if headers else (),
        )

    def _wrong(self, entry: Any, headers: Mapping[str, Any], task: _Task, complain: _Complain) -> tuple[str, ...]:
        """Return the headers about overlap that are wrong, each complained about."""
        wrong = []
        for header, complaint in self._complaints(entry, headers, reliable=task.reliable):
            if complaint:
                complain(f"{header}: {complaint}")
                wrong.append(header)
        return tuple(wrong)

    def _complaints(
        self, entry: Any, headers: Mapping[str, Any], *, reliable: bool
    ) -> Iterator[tuple[str, str | None]]:
        for header in (POLICY_HEADER, KEY_HEADER):
            if header in headers and not reliable:
                yield (
                    header,
                    f"expected an entry of a ReliableTask, found {entry.task!r}: nothing keeps its runs apart; give it base=ReliableTask",
                )
                return
        if POLICY_HEADER in headers:
            yield POLICY_HEADER, RULES["overlap"].complaint(headers[POLICY_HEADER], default=DEFAULTS["overlap"])
        if KEY_HEADER in headers:
            yield KEY_HEADER, _complaint_about_key(headers[KEY_HEADER], self._app.tasks.get(entry.task))

    def _read_task(self, name: str, complain: _Complain) -> _Task:
        task = self._app.tasks.get(name)
        settings = _settings_of(task, self._settings, complain)
        # Of a task that this process cannot import the app's own kind of task tells.
        reliable = isinstance(task, ReliableTask) if task is not None else issubclass(self._app.Task, ReliableTask)
        found = _Task(settings, policy_of({}, settings=settings, complain=complain), reliable)
        self._tasks[name] = found
        return found

    def _schedule(self, given: Any, *, zone: tzinfo | None) -> _Schedule:
        mark = schedules.mark_of(given)
        known = self._schedules.get((mark, zone)) if mark is not None else None
        if known is not None:
            return known
        sequence, text = schedules.sequence_of(given, zone=zone), schedules.text_of(given, zone=zone)
        found = _Schedule(sequence, text, schedules.words_of(given), sequence.rhythm)
        if mark is not None:
            self._schedules[mark, zone] = found
        return found


def policy_for(task: Any, headers: Mapping[str, Any], *, settings: Settings, complain: _Complain) -> Policy:
    """Return the policy of an entry of this task (None: one that is not registered here)."""
    return policy_of(headers, settings=_settings_of(task, settings, complain), complain=complain)


def overlap_for(task: Any, headers: Mapping[str, Any], *, settings: Settings, complain: _Complain) -> str:
    """Return the policy about overlap of an entry: what its header says, else its task's option, else the setting."""
    of_task = str(_settings_of(task, settings, lambda _: None).overlap)
    if POLICY_HEADER not in headers:
        return of_task
    complaint = RULES["overlap"].complaint(headers[POLICY_HEADER], default=DEFAULTS["overlap"])
    if complaint:
        complain(f"{POLICY_HEADER}: {complaint}")
    return of_task if complaint else str(headers[POLICY_HEADER])


def policy_of(headers: Mapping[str, Any], *, settings: Settings, complain: _Complain) -> Policy:
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


def _complaint_about_key(rule: Any, task: Any) -> str | None:
    if not isinstance(rule, str) or not rule:
        return f"expected a name or a template such as 'import:{{shop}}', found {rule!r}; correct it"
    if not isinstance(task, ReliableTask):
        return None  # the worker that has the task will see
    try:
        signature = task.signature_of_run
        keys.check_rule(rule, task=task.name, signature=signature, option="overlap_key", plain=True)
    except ConfigurationError as exc:
        return str(exc)
    return None


def _settings_of(task: Any, settings: Settings, complain: _Complain) -> Settings:
    if not isinstance(task, ReliableTask):
        return settings
    try:
        return task.reliable_settings
    except ConfigurationError as exc:
        complain(str(exc))
        return settings


def _zone(headers: Mapping[str, Any], complain: _Complain) -> tzinfo | None:
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
