"""Know how far one run is: the state it saved, and where its loops are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from celery_reliable.blobs import BlobRef
from celery_reliable.checkpoints.entries import Entry, Position, Room, encoded, put_aside, taken_back
from celery_reliable.errors import ConfigurationError, LeaseLost, Snooze

STATE = "state"
MOST_STEPS = 1000
MOST_LOOPS = 100
_NEWER_WAIT = 10.0  # seconds that a run waits for a worker that knows its checkpoint


class Holder(Protocol):
    """The run whose progress is kept."""

    @property
    def key(self) -> str:
        """The key of the job."""
        ...

    @property
    def saved(self) -> Mapping[str, bytes]:
        """What earlier runs and this one saved."""
        ...

    def save(self, name: str, body: bytes) -> None:
        """Write one entry, fenced. Raises `LeaseLost`."""
        ...

    @property
    def room(self) -> Room:
        """Where values go."""
        ...

    @property
    def version(self) -> int:
        """The version of the states that this code writes."""
        ...

    @property
    def progress(self) -> Progress:
        """The progress of this run."""
        ...


class Progress:
    """The state and the positions of one run; one entry of the store, so that both are saved in one step."""

    __slots__ = ("_begun", "_entry", "_holder", "_unsaved")

    def __init__(self, holder: Holder) -> None:
        """Take the run. What was saved is decoded when it is first asked for."""
        self._holder = holder
        self._entry: Entry | None = None
        self._begun: list[str] = []
        self._unsaved: Callable[[], None] | None = None

    @property
    def entry(self) -> Entry:
        """What was saved last."""
        if self._entry is None:
            raw = self._holder.saved.get(STATE)
            self._entry = Entry() if raw is None else Entry.from_bytes(raw)
        return self._entry

    # --- the state

    def state(self, default: Any, *, upgrade: Callable[[Any, int], Any] | None) -> Any:
        """Return the state, brought to this code's version."""
        entry = self.entry
        state = self._value(entry) if entry.has_state else default
        if upgrade is None or not self._is_older(entry):
            self._check_version(entry)
            return state
        state = upgrade(state, entry.version)
        # The next save writes it; a blob stays until then.
        text = encoded(state, what="upgraded checkpoint")
        self._entry = replace(entry, version=self._holder.version, text=text, blob=None)
        return state

    def _is_older(self, entry: Entry) -> bool:
        return entry.has_content and entry.version < self._holder.version

    def _check_version(self, entry: Entry) -> None:
        if entry.has_content and entry.version > self._holder.version:
            raise Snooze(_NEWER_WAIT)
        if self._is_older(entry):
            raise self._outdated(entry)

    def _value(self, entry: Entry) -> Any:
        text = entry.text if entry.blob is None else taken_back(entry.blob, room=self._holder.room)
        return json.loads(text or b"null")

    def _outdated(self, entry: Entry) -> ConfigurationError:
        return ConfigurationError(
            f"checkpoint of {self._holder.key!r}: expected version {self._holder.version} (checkpoint_version), found "
            f"version {entry.version}; convert it with self.checkpoint.load(upgrade=function_of_state_and_version), then "
            "replay the dead letter: its checkpoint is kept"
        )

    def save_state(self, state: Any) -> None:
        """Write a state beside the positions of finished items."""
        self._write(self._with_state(state))

    def _with_state(self, state: Any) -> Entry:
        text = encoded(state, what="checkpoint")
        return replace(self.entry, text=text, blob=None, version=self._holder.version)

    def _write(self, entry: Entry) -> None:
        self._entry = write(self._holder, STATE, entry, what="checkpoint")
        self._unsaved = None

    # --- loops

    def begin(self, name: str) -> Position:
        """Return where a loop goes on. Raises `ConfigurationError` for a second loop of the same name."""
        self._check_version(self.entry)  # positions of another version are as foreign as its state
        if name in self._begun:
            msg = (
                f"checkpoint.iterate: expected one loop named {name!r}, found a second one in the same run; give each loop "
                'of a body a name of its own: iterate(items, name="...")'
            )
            raise ConfigurationError(msg)
        self._begun.append(name)
        return next((one for one in self.entry.positions if one.name == name), Position(name))

    def finished(self, position: Position, *, inner: int, state: Callable[[], Any] | None) -> None:
        """Save that an item is done; loops that began inside it, after ``inner`` others, are over with it.

        An item in which loops ran has to be saved at once: their positions belong to it.
        """
        del self._begun[inner:]
        self._write(self._moved(position, state))

    def postpone(self, save: Callable[[], None]) -> None:
        """Save later, or when an exception of the body ends the loop."""
        self._unsaved = save

    def _moved(self, position: Position, state: Callable[[], Any] | None) -> Entry:
        entry = self.entry if state is None else self._with_state(state())
        others = [one for one in entry.positions if one.name != position.name and one.name in self._begun]
        if len(others) >= MOST_LOOPS:
            msg = f"checkpoint.iterate: expected at most {MOST_LOOPS} loops in one body, found more; join some"
            raise ConfigurationError(msg)
        return replace(entry, positions=(*others, position), version=self._holder.version)

    @property
    def begun(self) -> int:
        """How many loops have begun and are not over with an outer item."""
        return len(self._begun)

    def flush(self) -> None:
        """Save the finished items of a loop that an exception ends. Raises `LeaseLost`."""
        if self._unsaved is not None:
            self._unsaved()


def write(holder: Holder, name: str, entry: Entry, *, what: str) -> Entry:
    """Save an entry, its value aside if that is large; then drop the blob of the one before. A stale holder drops its own."""
    if entry.text is not None:
        blob = put_aside(entry.text, what=what, kind="checkpoints", room=holder.room)
        entry = replace(entry, text=None, blob=blob) if blob else entry
    before = holder.saved.get(name)
    old = Entry.from_bytes(before).blob if before is not None else None
    try:
        holder.save(name, entry.to_bytes())
    except LeaseLost:
        _drop(entry.blob, kept=old, holder=holder)
        raise
    _drop(old, kept=entry.blob, holder=holder)
    return entry


def _drop(ref: BlobRef | None, *, kept: BlobRef | None, holder: Holder) -> None:
    blobs = holder.room.blobs
    if ref is not None and ref != kept and blobs is not None:
        blobs.remove(ref)
