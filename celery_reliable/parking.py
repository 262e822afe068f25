"""Keep messages that no worker could run yet until one can, on any store.

A parked message is one note, named by its task id. It leaves in two steps, so that whoever dies in between loses nothing:
`take` marks it as being published, for ten seconds to one taker alone; `forget` removes it once the broker has it.
Beside the messages lies one note for each kind of them (task, payload version, queue), so that a worker sees at one
glance whether there is anything that it could run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Final, Literal

from celery_reliable.payloads import RawMessage
from celery_reliable.stores.base import Store
from celery_reliable.stores.notes import Note, Write, every

_MESSAGES: Final = "parked"
_KINDS: Final = "parked.kinds"
_TAKEN_FOR: Final = 10.0  # seconds that a taker has for its publish
_SHORTEST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
_DOUBLINGS: Final = 6

ParkReason = Literal["unregistered", "incompatible"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a worker must know to run a parked message: the task, its payload version, and the queue it consumes."""

    task: str
    version: int
    queue: str

    @property
    def name(self) -> str:
        """The name of its note."""
        text = f"{self.task}\\0{self.version}\\0{self.queue}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """One parked message.

    ``since`` is the first time it was parked, ``at`` the last, ``taken`` the time of a publish that is not known to
    have happened (0: none); unix seconds of the store's clock. ``times`` counts how often it was parked.
    """

    kind: Kind
    task_id: str
    reason: ParkReason
    why: str
    message: RawMessage
    since: float
    at: float
    times: int = 1
    taken: float = 0.0

    def is_due(self, now: float, *, since_up: float = 0.0) -> bool:
        """Tell whether it may go back now: each time it is parked again it waits twice as long, at most a minute.

        For a worker that came up after it was parked (``since_up``) it waits no longer: that is whom it waits for.
        """
        wait = min(_SHORTEST_WAIT * 2 ** min(self.times - 1, _DOUBLINGS), _LONGEST_WAIT)
        return (now >= self.at + wait or self.at < since_up) and now >= self.taken + _TAKEN_FOR

    def header(self, *, spared: bool = False) -> dict[str, float]:
        """Return what the message carries when it goes back; ``spared``: if it is parked again, that is not counted."""
        return {"since": self.since, "times": self.times - spared}

    def is_same(self, other: Parked) -> bool:
        """Tell a message that came again from another one under its id."""
        return self.message.digest == other.message.digest

    def to_bytes(self) -> bytes:
        """Encode as JSON text."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Parked:
        """Decode what `to_bytes` made. Raises ValueError on anything else."""
        try:
            found = json.loads(raw)
            found |= {"kind": Kind(**found["kind"]), "message": RawMessage(**found["message"])}
            return cls(**{field.name: found[field.name] for field in fields(cls)})
        except (TypeError, KeyError, AttributeError) as exc:
            msg = f"not a parked message: {raw[:60]!r}"
            raise ValueError(msg) from exc


@dataclass(frozen=True, slots=True)
class Taken:
    """A parked message that is ours to publish, or to bury, and the version of its note."""

    name: str
    version: int
    parked: Parked


class Parking:
    """The parked messages of one store. Each stays for at most ``ttl`` seconds; its note lives ``spare`` longer.

    Every verb raises what the store raises.
    """

    def __init__(self, store: Store, *, ttl: float, spare: float) -> None:
        """Take the store and the limits; nothing connects."""
        self._store = store
        self._notes = store.notes
        self._ttl = ttl
        self._spare = spare

    def now(self) -> float:
        """Return the store's time in unix seconds."""
        return self._store.now() / 1e6

    def has_expired(self, since: float) -> bool:
        """Tell whether a message first parked then has been kept long enough."""
        return self.now() >= since + self._ttl

    def park(self, parked: Parked) -> None:
        """Keep a message. The same one twice is kept once; two different ones under one id are kept both.

        Its kind is noted after it, so that a kind that is found empty and removed meanwhile is noted again.
        """
        if not self._kept(parked.task_id, parked):
            self._kept(f"{parked.task_id}/{parked.message.digest}", parked, sure=True)
        known = json.dumps(asdict(parked.kind)).encode()
        self._notes.write(_KINDS, [Write(name=parked.kind.name, value=known, ttl=self._life)])

    def _kept(self, name: str, parked: Parked, *, sure: bool = False) -> bool:
        """Write the note unless another message has its name (``sure``: none can); a lost race is tried again."""
        while True:
            there = self._notes.read(_MESSAGES, [name]).get(name)
            before = _read(there) if there else None
            if there and not sure and not (before and before.parked.is_same(parked)):
                return False
            since = min(parked.since, before.parked.since) if before else parked.since
            value, expected = replace(parked, since=since).to_bytes(), there.version if there else 0
            if self._notes.write(_MESSAGES, [Write(name=name, value=value, ttl=self._life, expected=expected)]) != [
                None
            ]:
                return True

    @property
    def _life(self) -> float:
        return self._ttl + self._spare

    # --- out again

    def kinds(self) -> dict[Kind, int]:
        """Return what is parked, with the versions of the notes that say so."""
        return {Kind(**json.loads(note.value)): note.version for note in every(self._notes, _KINDS).values()}

    def take(self, kinds: Iterable[Kind], *, limit: int, since_up: float = 0.0) -> list[Taken]:
        """Take up to ``limit`` messages of these kinds that are due, for ten seconds. Kinds found empty are removed.

        ``since_up``: when the worker that asks came up, as long as it has not asked for all that was parked before.
        """
        wanted = self.kinds()
        wanted = {kind: wanted[kind] for kind in kinds if kind in wanted}
        now, seen, found = self.now(), set(), list[Taken]()
        for taken in self._all():
            seen.add(taken.parked.kind)
            if taken.parked.kind in wanted and taken.parked.is_due(now, since_up=since_up):
                found.append(taken)
            if len(found) == limit:
                return self._marked(found, now=now)
        empty = [Write(name=kind.name, value=None, ttl=1.0, expected=wanted[kind]) for kind in wanted.keys() - seen]
        self._notes.write(_KINDS, empty)
        return self._marked(found, now=now)

    def take_expired(self, *, limit: int) -> list[Taken]:
        """Take up to ``limit`` messages whose time is over, for ten seconds."""
        now, found = self.now(), list[Taken]()
        for taken in self._all():
            parked = taken.parked
            if now >= parked.since + self._ttl and now >= parked.taken + _TAKEN_FOR:
                found.append(taken)
            if len(found) == limit:
                break
        return self._marked(found, now=now)

    def _marked(self, found: list[Taken], *, now: float) -> list[Taken]:
        """Return those that nobody else has taken, or parked again, since they were read; the oldest first."""
        ordered = sorted(found, key=lambda taken: taken.parked.since)
        marked = [replace(one, parked=replace(one.parked, taken=now)) for one in ordered]
        writes = [
            Write(name=one.name, value=one.parked.to_bytes(), ttl=self._life, expected=one.version) for one in marked
        ]
        versions = self._notes.write(_MESSAGES, writes)
        return [replace(one, version=version) for one, version in zip(marked, versions, strict=True) if version]

    def forget(self, taken: Iterable[Taken]) -> None:
        """Remove messages that were published or buried; one that was parked again meanwhile stays."""
        writes = [Write(name=one.name, value=None, ttl=1.0, expected=one.version) for one in taken]
        self._notes.write(_MESSAGES, writes)

    # --- looking

    def among(self, task_ids: Iterable[str]) -> set[str]:
        """Return those of the task ids whose message is parked."""
        return set(self._notes.read(_MESSAGES, task_ids))

    def everything(self) -> Iterator[Parked]:
        """Iterate over all parked messages, in no order."""
        return (taken.parked for taken in self._all())

    def _all(self) -> Iterator[Taken]:
        cursor = ""
        while True:
            page = self._notes.page(_MESSAGES, cursor)
            yield from filter(None, map(_read, page.notes))
            cursor = page.cursor
            if not cursor:
                return


def _read(note: Note) -> Taken | None:
    try:
        return Taken(note.name, note.version, Parked.from_bytes(note.value))
    except ValueError:
        return None  # of another version: its own workers will read it
