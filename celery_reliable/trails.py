"""Note what was unusual in the life of a job, so that it can be told later.

A job that is claimed once and ends well leaves no trail, and costs nothing: what is usual about it stands in its record.
Every other event is one line, added in one round trip by whoever met it; the last save of a checkpoint goes with the next
line. Lines lie in 65,536 places by the hash of their
key, a thousand bytes in each by default: trails are bounded by construction, at 64 MiB, however many jobs fail; the
newest lines win.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.errors import StoreError
from celery_reliable.events import EVENTS as EVENT_TABLE
from celery_reliable.stores.base import Job
from celery_reliable.stores.notes import Write

if TYPE_CHECKING:
    from celery_reliable.stores.notes import Notes

SHELF: Final = "trails"
KEPT: Final = 7 * 86_400.0
"""Seconds that a trail outlives its last line."""

EVENTS: Final = frozenset(
    {
        *("existing", "child_known", "withdrawn", "withdraw_failed"),
        *("claimed_again", "busy", "not_yet", "replayed_outcome", "already_committed", "overlap_waits", "overlap_lost"),
        *("queue_waits", "breaker_waits", "limit_waits", "rate_waits", "budget_waits"),
        *("skipped", "over", "quarantined", "poisoned", "mismatch"),
        *("recovered", "retried", "snoozed", "interrupted", "buried", "reported_again", "stale", "lost_writes"),
        *("publish_failed", "backend_unavailable", "blob_failed", "evidence", "parked", "unparked", "refused"),
        *("lease_lost", "runtime_exceeded", "restored", "stolen", "published_again", "lost"),
        *("letter_replayed", "letter_discarded", "saved"),
    }
)
"""What is noted. Not that the store was away: there is nowhere to note it then."""

_OFTEN: Final = frozenset(
    {
        *("existing", "child_known", "busy", "not_yet", "replayed_outcome", "overlap_waits", "snoozed", "restored"),
        *("queue_waits", "breaker_waits", "limit_waits", "rate_waits", "budget_waits"),
        *("publish_failed", "backend_unavailable", "parked", "unparked"),
    }
)
"""What may come again and again: noted the first, second, fourth, eighth time ... that one process meets it."""

_SAVED: Final = "saved"
"""What is only remembered, and the last one of a job written with whatever is noted of it next: no round trip of its own."""

_LEFT_OUT: Final = frozenset({"task", "task_id", "key", "fingerprint"})
_DEFAULTS: Final = ("", "", 1)  # of a line's task, task id and times
_TEXT: Final = 80  # characters of a fact
_HOST: Final = 40
_REMEMBERED: Final = 1000
_PAUSE: Final = 5.0  # seconds without a try after the store was away
_KEY_FORMAT: Final = "\0"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened: ``at`` is unix seconds by the store's clock, ``place`` the host and process."""

    at: float
    event: str
    place: str
    task: str = ""
    task_id: str = ""
    times: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self, tag: str) -> bytes:
        """Encode as one line, that of the job with this tag: facts in the order of `events.EVENTS`, no names."""
        facts = [self.facts.get(name) for name in _names_of(self.event)]
        while facts and facts[-1] is None:
            facts.pop()
        parts = [tag, round(self.at * 1000), self.event, self.place, facts, self.task, self.task_id, self.times]
        while parts[-1] in _DEFAULTS:
            parts.pop()
        return json.dumps(parts, separators=(",", ":"), default=str).encode() + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes) -> tuple[str, Line] | None:
        """Decode tag and line; None for what is left of one that was cut."""
        try:
            parts: list[Any] = json.loads(raw)  # whatever it holds
            tag, at, event, place, values = parts[:5]
            names: list[Any] = [*parts[5:], *_DEFAULTS[len(parts) - 5 :]]
            task, task_id, times = names
            named = zip(_names_of(event), values, strict=False)  # a later version may note more
            facts = {name: value for name, value in named if value is not None}
            return str(tag), cls(at / 1000, str(event), str(place), str(task), str(task_id), int(times), facts)
        except (ValueError, TypeError, KeyError):
            return None


class Trails:
    """Note events of jobs; an event hook. Best effort: a store that is away loses lines and delays nothing for long.

    ``share`` of the jobs are noted, chosen by their keys, so that a job has its whole trail or none.
    """

    events = EVENTS

    def __init__(self, notes: Notes, *, now: Callable[[], int], host: str, size: int, share: float) -> None:
        """Take where to write, and the store's clock in microseconds."""
        self._notes, self._now, self._host = notes, now, host[:_HOST]
        self._size, self._share = size, share
        self._met: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._saved: OrderedDict[str, tuple[float, Mapping[str, Any]]] = OrderedDict()
        self._away_until = float("-inf")

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Note one event."""
        self.note_all(event, [fields])

    def note_all(self, event: str, several: Iterable[Mapping[str, Any]]) -> None:
        """Note one event of several jobs, in one round trip."""
        if event == _SAVED:
            self._remember(several)
            return
        if time.monotonic() < self._away_until:
            return
        writes = [write for fields in several for write in self._writes(event, fields)]
        try:
            if writes:
                self._notes.write(SHELF, writes)
        except StoreError:
            self._away_until = time.monotonic() + _PAUSE

    def _remember(self, several: Iterable[Mapping[str, Any]]) -> None:
        for fields in several:
            key = str(fields.get("key") or "")
            self._saved.pop(key, None)
            self._saved[key] = time.monotonic(), fields
            if len(self._saved) > _REMEMBERED:
                self._saved.popitem(last=False)

    def _writes(self, event: str, fields: Mapping[str, Any]) -> list[Write]:
        task_id = str(fields.get("task_id") or "")
        key = str(fields.get("key") or task_id)
        place = Place.of(key)
        if not key or place.share >= self._share:
            return []
        times = self._times(event, key) if event in _OFTEN else 1
        if times & (times - 1):  # no power of two
            return []
        other_id = task_id if task_id != key else ""
        # A line of a process that has written one of this submission already saves the bytes of its names.
        first = self._times("", f"{key}{_KEY_FORMAT}{other_id}") == 1
        names = (str(fields.get("task") or "")[:_TEXT], other_id) if first else ("", "")
        now, where = self._now() / 1e6, f"{self._host}:{os.getpid()}"
        lines = [*self._last_save(key, now, where), Line(now, event, where, *names, times, _facts(fields))]
        value = b"".join(line.to_bytes(place.tag) for line in lines)
        return [Write(name=place.name, value=value, ttl=KEPT, keep=self._size), *_id_writes(key, other_id)]

    def _last_save(self, key: str, now: float, where: str) -> Iterator[Line]:
        at, fields = self._saved.pop(key, (0.0, None))
        if fields is not None:
            yield Line(now - (time.monotonic() - at), _SAVED, where, facts=_facts(fields))

    def _times(self, event: str, key: str) -> int:
        times = self._met[event, key] = self._met.pop((event, key), 0) + 1
        if len(self._met) > _REMEMBERED:
            self._met.popitem(last=False)
        return times


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lines of a key lie (``name``), and how they are told from those of others there (``tag``)."""

    name: str
    tag: str
    share: float

    @classmethod
    def of(cls, key: str) -> Place:
        """Find the place by the hash of the key."""
        digest = Job(key).digest
        return cls(digest[:2].hex(), digest[2:6].hex(), int.from_bytes(digest[6:10], "big") / 2**32)


def _id_writes(key: str, task_id: str) -> Iterator[Write]:
    if task_id:
        value = f"{task_id}{_KEY_FORMAT}{key}".encode(errors="surrogatepass")
        yield Write(name=_id_name(task_id), value=value, ttl=KEPT)


def key_of(notes: Notes, task_id: str) -> str:
    """Return the key of the job that has this task id, as far as it is noted: "" when it is not."""
    note = notes.read(SHELF, [_id_name(task_id)]).get(_id_name(task_id))
    found, _, key = note.value.decode(errors="surrogatepass").partition(_KEY_FORMAT) if note else ("", "", "")
    return key if found == task_id else ""


def lines_of(notes: Notes, keys: Iterable[str]) -> list[Line]:
    """Return what is noted under any of the keys, oldest first."""
    places = [Place.of(key) for key in keys]
    notes_found = notes.read(SHELF, {place.name for place in places})
    tags = {(place.name, place.tag) for place in places}
    found = [line for note in notes_found.values() for tag, line in _read(note.value) if (note.name, tag) in tags]
    return sorted(found, key=lambda line: line.at)


def is_cut(notes: Notes, keys: Iterable[str]) -> bool:
    """Tell whether older lines have gone from where those of these keys lie: what is left of one is at the beginning.

    Limit: a cut between two lines leaves nothing of either.
    """
    found = notes.read(SHELF, {Place.of(key).name for key in keys})
    beginnings = [note.value.partition(b"\n")[0] for note in found.values()]
    return any(one and Line.from_bytes(one) is None for one in beginnings)


def _read(value: bytes) -> Iterator[tuple[str, Line]]:
    return (found for raw in value.splitlines() if (found := Line.from_bytes(raw)) is not None)


def _names_of(event: str) -> list[str]:
    return [name for name in EVENT_TABLE[event].fields if name not in _LEFT_OUT]


def _id_name(task_id: str) -> str:
    return f"i{Place.of(task_id).name}"


def _facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _short(value) for name, value in fields.items() if name not in _LEFT_OUT and value not in ("", None)}


def _short(value: Any) -> Any:  # Any: a fact of an event
    if isinstance(value, float):
        return round(value, 3)
    return value if isinstance(value, int | bool) else str(value)[:_TEXT]
