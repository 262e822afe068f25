"""Find letters: what to look for, and what many of them have in common."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from celery_reliable.dead_letters.record import DeadLetter, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to look for: every given part must fit.

    ``task`` is a glob. ``error`` is a glob over the error's type, with or without its module. ``since`` and ``until``
    are unix seconds of the last failure. ``text`` is looked for in arguments, message, ids and key, whatever the case.
    ``group`` begins an `error_fingerprint`; each of ``ids`` begins a letter's id or a task id. ``statuses`` are what
    still waits for a decision unless told otherwise.
    """

    task: str | None = None
    reason: str | None = None
    error: str | None = None
    since: float | None = None
    until: float | None = None
    queue: str | None = None
    tenant: str | None = None
    text: str | None = None
    group: str | None = None
    ids: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ("dead", "replaying")

    def matches(self, letter: DeadLetter) -> bool:
        """Tell whether a letter fits."""
        return (
            letter.status in self.statuses
            and self._same(letter)
            and self._in_time(letter)
            and (self.task is None or fnmatchcase(letter.task, self.task))
            and (self.error is None or _type_fits(letter.error_type, self.error))
            and (self.group is None or letter.error_fingerprint.startswith(self.group))
            and (not self.ids or any(_id_fits(letter, start) for start in self.ids))
            and (self.text is None or self.text.casefold() in _searched(letter))
        )

    def fits_label(self, label: str) -> bool:
        """Tell whether a letter with this `DeadLetter.label` may fit; so may one whose label says nothing."""
        try:
            status, task, reason, error, queue, group, tenant = json.loads(label)
        except (ValueError, TypeError):
            return True
        return (
            status in self.statuses
            and (self.reason is None or reason == self.reason)
            and (self.queue is None or queue == self.queue)
            and (self.tenant is None or tenant == self.tenant)
            and (self.task is None or fnmatchcase(task, self.task))
            and (self.error is None or _type_fits(error, self.error))
            and (self.group is None or group.startswith(self.group))
        )

    def _same(self, letter: DeadLetter) -> bool:
        return (
            (self.reason is None or letter.reason == self.reason)
            and (self.queue is None or letter.queue == self.queue)
            and (self.tenant is None or letter.tenant == self.tenant)
        )

    def _in_time(self, letter: DeadLetter) -> bool:
        return (self.since is None or letter.last_failure >= self.since) and (
            self.until is None or letter.last_failure <= self.until
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Letters with one `error_fingerprint`: how many, of which tasks and releases, since when, the newest as an example."""

    fingerprint: str
    count: int
    tasks: tuple[str, ...]
    first: float
    last: float
    sample: DeadLetter
    releases: tuple[str, ...] = ()

    @classmethod
    def of(cls, letter: DeadLetter) -> Group:
        """Begin a group."""
        releases = (letter.worker.release,) if letter.worker.release else ()
        return cls(
            letter.error_fingerprint, 1, (letter.task,), letter.first_failure, letter.last_failure, letter, releases
        )

    def plus(self, letter: DeadLetter) -> Group:
        """Return the group with one more letter."""
        newest = letter if letter.last_failure > self.last else self.sample
        release = letter.worker.release
        return Group(
            self.fingerprint,
            self.count + 1,
            self.tasks if letter.task in self.tasks else (*self.tasks, letter.task),
            min(self.first, letter.first_failure),
            max(self.last, letter.last_failure),
            newest,
            tuple(sorted({*self.releases, release} - {""})),
        )


@dataclass(frozen=True, slots=True)
class Page:
    """What fits among some letters of the store: ``looked`` of them, and ``cursor`` where to look on, "" at the end."""

    letters: tuple[DeadLetter, ...]
    cursor: str
    looked: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts: the store's since ever (``kept buried replayed discarded trimmed``), and of the letters now kept."""

    store: Mapping[str, int]
    statuses: Mapping[str, int]
    reasons: Mapping[str, int]
    tasks: Mapping[str, int]
    queues: Mapping[str, int]
    groups: tuple[Group, ...] = field(default=())

    @classmethod
    def of(cls, letters: Iterable[DeadLetter], *, store: Mapping[str, int]) -> Stats:
        """Count letters in one pass; reasons, tasks, queues and groups count what still waits for a decision."""
        counts: dict[str, Counter[str]] = {name: Counter() for name in ("statuses", "reasons", "tasks", "queues")}
        groups: dict[str, Group] = {}
        for letter in letters:
            counts["statuses"][letter.status] += 1
            if letter.status == "replayed":
                continue
            counts["reasons"][letter.reason] += 1
            counts["tasks"][letter.task] += 1
            counts["queues"][letter.queue] += 1
            add(groups, letter)
        return cls(store, **counts, groups=largest(groups))


def add(groups: dict[str, Group], letter: DeadLetter) -> None:
    """Count a letter into its group."""
    known = groups.get(letter.error_fingerprint)
    groups[letter.error_fingerprint] = known.plus(letter) if known else Group.of(letter)


def largest(groups: Mapping[str, Group]) -> tuple[Group, ...]:
    """Return the groups, largest first; of two equal ones the newer first."""
    return tuple(sorted(groups.values(), key=lambda group: (-group.count, -group.last)))


def _type_fits(error_type: str, pattern: str) -> bool:
    return fnmatchcase(error_type, pattern) or fnmatchcase(error_type.rpartition(".")[2], pattern)


def _id_fits(letter: DeadLetter, start: str) -> bool:
    return letter.id.startswith(start) or letter.task_id.startswith(start)


def _searched(letter: DeadLetter) -> str:
    found = letter.arguments()
    shown = json.dumps(found, ensure_ascii=False) if found else ""
    return f"{letter.id}\n{letter.task_id}\n{letter.key}\n{letter.error_message}\n{shown}".casefold()
