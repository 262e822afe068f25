"""Keep what is known of one entry: its last slot, whether that was published, and what became of those before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

HISTORY = 10
"""Outcomes that an entry keeps."""

_TEXT = 200  # characters of a reason or a schedule that are kept

State = Literal["seen", "claimed", "fired", "dropped"]

_encoder, _decoder = json.JSONEncoder(separators=(",", ":")), json.JSONDecoder()


class Passed(NamedTuple):  # not a dataclass: a new leader reads ten for each of a hundred thousand entries
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

    def with_skips(self, skips: Iterable[Passed]) -> SlotRecord:
        """Return the record as it is after workers skipped some of its published slots."""
        by_slot = {skip.slot: skip for skip in skips}
        history = tuple(by_slot.get(one.slot, one) if one.outcome == "fired" else one for one in self.history)
        last = by_slot.get(self.slot)
        return replace(self, history=history, why=self.why or (last.outcome if last and self.state == "fired" else ""))

    def _with(self, passed: Passed) -> tuple[Passed, ...]:
        return (*self.history, passed)[-HISTORY:]

    def to_bytes(self) -> bytes:
        """Encode as JSON; what is empty is left out."""
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
            "h": self.history,
        }
        return _encoder.encode({name: value for name, value in fields.items() if value}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> SlotRecord:
        """Decode. Raises ValueError on anything else."""
        try:
            fields = _decoder.decode(raw.decode())
            history = tuple(Passed(*passed) for passed in fields["h"]) if "h" in fields else ()
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
