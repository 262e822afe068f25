"""Say what there is to see at one moment, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from example_project.ledger import Row
from example_project.verdict import Run, runs

State = Literal["starting", "working", "draining", "left", "killed"]
Mood = Literal["plain", "act", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the shop."""

    name: str
    pid: int
    state: State


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a task, with its progress if it has any."""

    run: Run
    total: int

    @property
    def progress(self) -> float:
        """Return the share that is done."""
        if self.run.checkpoints:
            return self.run.checkpoints[-1] / self.total
        return float(self.run.outcome == "done")

    @property
    def state(self) -> str:
        """Return how the run stands, in a word."""
        words = {"": "running", "Draining": "handed over", "done": "done", "killed": "killed"}
        return words.get(self.run.outcome, "refused")


@dataclass(frozen=True, slots=True)
class Key:
    """One idempotency key: how often it was asked for, ran, and took effect."""

    key: str
    asked: int
    runs: int
    effects: int
    fence: int
    state: str


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    key: str
    letter_id: str
    reason: str
    error: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence of the story; ``act`` is the step to which it belongs."""

    seconds: float
    act: str
    text: str
    mood: Mood = "plain"


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything on the screen."""

    seconds: float
    act: str
    processes: Sequence[Process] = ()
    jobs: Sequence[Job] = ()
    keys: Sequence[Key] = ()
    letters: Sequence[Letter] = ()
    said: Sequence[Said] = ()
    fired: int = 0
    busy: dict[str, str] = field(default_factory=dict)


def picture(
    rows: Sequence[Row], *, seconds: float, act: str, processes: Sequence[Process], said: Sequence[Said], sections: int
) -> Picture:
    """Draw the moment from the ledger and from what the demo knows of its processes."""
    executions = runs(rows)
    named = [run for run in executions if ":" in run.key]
    return Picture(
        seconds=seconds,
        act=act,
        processes=processes,
        jobs=[Job(run, sections) for run in named],
        keys=_keys(rows, named),
        letters=_letters(rows),
        said=said,
        fired=len(executions) - len(named),
        busy={run.worker: run.key for run in named if not run.outcome},
    )


def _keys(rows: Sequence[Row], named: Sequence[Run]) -> list[Key]:
    asked = Counter(row.key for row in rows if row.event == "submit")
    ran = Counter(run.key for run in named)
    effects = Counter(row.key for row in rows if row.event == "effect")
    last = {run.key: run for run in named}
    dead = {letter.key for letter in _letters(rows) if not letter.replayed}
    return [
        Key(key, asked[key], ran[key], effects[key], last[key].fence if key in last else 0, _state(key, last, dead))
        for key in dict.fromkeys([*asked, *last])
    ]


def _state(key: str, last: dict[str, Run], dead: set[str]) -> str:
    if key in dead:
        return "dead letter"
    if key not in last:
        return "waiting"
    return {"": "running", "done": "done"}.get(last[key].outcome, "waiting")


def _letters(rows: Sequence[Row]) -> list[Letter]:
    replayed = {row.detail.get("letter_id") for row in rows if row.event == "replay"}
    return [
        Letter(
            row.key,
            row.detail["letter_id"],
            row.detail["reason"],
            row.detail["error"],
            replayed=row.detail["letter_id"] in replayed,
        )
        for row in rows
        if row.event == "letter"
    ]
