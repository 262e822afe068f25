"""Keep what is known of one entry: its last slot, whether that was published, and what became of those before."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

HISTORY = 10
"""Outcomes that an entry keeps."""

_TEXT = 200  # characters of a reason or a schedule that are kept

State = Literal["seen", "claimed", "fired", "dropped"]


@dataclass(frozen=True, slots=True)
class Passed:
    """What became of one slot, and when. Times are microseconds of the server's clock."""

    slot: int
    outcome: str
    at: int


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The record of an entry.

    ``schedule_version`` tells one definition of the entry (task, schedule, arguments) from another. ``slot`` is the
    last one that was claimed, or the moment from which slots count (``seen``). ``claimed``: it is not known to be
    published. ``absent`` is since when the entry is disabled or gone, 0 while it is there.
    """

    schedule_version: str
    slot: int
    state: State = "seen"
    epoch: int = 0
    absent: int = 0
    task: str = ""
    schedule: str = ""
    following: int | None = None
    why: str = ""
    history: tuple[Passed, ...] = ()

    def claimed(self, slot: int, *, epoch: int, at: int, following: int | None, missed: int | None) -> SlotRecord:
        """Take a slot, and note that earlier ones were passed over."""
        history = self.history if missed is None else self._with(Passed(missed, "missed", at))
        return replace(
            self, slot=slot, state="claimed", epoch=epoch, following=following, history=history, absent=0, why=""
        )

    def fired(self, *, at: int, epoch: int) -> SlotRecord:
        """Note that the last slot was published, and by the leader of which epoch."""
        return replace(self, state="fired", epoch=epoch, why="", history=self._with(Passed(self.slot, "fired", at)))

    def dropped(self, reason: str, *, at: int) -> SlotRecord:
        """Note that the last slot will not be published, and why."""
        return replace(self, state="dropped", why=reason[:_TEXT], history=self._with(Passed(self.slot, reason, at)))

    def _with(self, passed: Passed) -> tuple[Passed, ...]:
        return (*self.history, passed)[-HISTORY:]

    def to_bytes(self) -> bytes:
        """Encode as JSON; what is empty is left out."""
        history = [(passed.slot, passed.outcome, passed.at) for passed in self.history]
        fields: dict[str, Any] = {
            "v": self.schedule_version,
            "s": self.slot,
            "st": self.state,
            "e": self.epoch,
            "a": self.absent,
            "t": self.task,
            "d": self.schedule[:_TEXT],
            "n": self.following,
            "w": self.why[:_TEXT],
            "h": history,
        }
        return json.dumps({name: value for name, value in fields.items() if value}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> SlotRecord:
        """Decode. Raises ValueError on anything else."""
        try:
            fields = json.loads(raw)
            history = tuple(Passed(slot, outcome, at) for slot, outcome, at in fields.get("h", ()))
            return cls(
                fields["v"],
                int(fields["s"]),
                fields["st"],
                fields.get("e", 0),
                fields.get("a", 0),
                fields.get("t", ""),
                fields.get("d", ""),
                fields.get("n"),
                fields.get("w", ""),
                history,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            msg = f"not the record of an entry: {raw[:40]!r}"
            raise ValueError(msg) from exc
