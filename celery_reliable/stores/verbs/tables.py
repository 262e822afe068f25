"""Say what the verbs need of whatever keeps their state, and run a verb as one atomic step over it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from celery_reliable.stores.base import Job, LetterPage
from celery_reliable.stores.pulse import Pulse
from celery_reliable.stores.records import Record

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``life`` is 0 for one that was kept without a claim."""

    body: bytes
    life: int = 0
    status: Literal["dead", "replayed"] = "dead"
    new_id: str = ""
    new_life: int = 0
    label: str = ""


class Tables(Protocol):
    """The state during one verb: what one verb reads and writes here, no other changes meanwhile.

    Verbs that touch several things take them in this order, so that two never wait for each other: record, ledger
    entry, letters, then pulse or role.
    """

    @property
    def now(self) -> float:
        """The server's clock in seconds, read once a verb, and not before its record is ours."""
        ...

    # --- records

    def record(self, job: Job) -> Record | None:
        """Return the record of a key; None when there is none or its time is over."""
        ...

    def keep(self, job: Job, record: Record) -> Record:
        """Write the record of a key, and return it."""
        ...

    def forget(self, job: Job) -> None:
        """Remove the record of a key."""
        ...

    def extend(self, claims: Sequence[tuple[Job, str, float]]) -> list[str]:
        """Let running records that have these tokens, and were not freed, live for a ttl more; return the other keys."""
        ...

    # --- the ledger

    def has_entry(self, task_id: str) -> bool:
        """Say whether the ledger has an entry of this submission."""
        ...

    def keep_entry(self, task_id: str, envelope: bytes) -> None:
        """Write an entry; one that was there is replaced, and counts as never published again."""
        ...

    def drop_entry(self, task_id: str) -> None:
        """Remove an entry, if there is one."""
        ...

    def resent(self, task_id: str) -> tuple[int, float] | None:
        """Return how often, and when last, an entry was published again; None when there is no entry."""
        ...

    def note_resent(self, task_id: str, times: int, at: float) -> None:
        """Note that an entry is published again."""
        ...

    # --- dead letters

    def letter(self, letter_id: str, *, to_change: bool = False) -> Letter | None:
        """Return a letter; None when it is gone or its time is over."""
        ...

    def put_letter(self, letter_id: str, letter: Letter, *, ttl: float, limit: int) -> int:
        """Keep a letter unless it is there; return how many old ones had to go."""
        ...

    def mark_replayed(self, letter_id: str, letter: Letter, *, again: bool) -> None:
        """Note under which id and life the letter's job goes on; ``again``: that was known, only body and label are new."""
        ...

    def discard_letter(self, letter_id: str) -> None:
        """Drop a letter by hand."""
        ...

    def letter_page(self, cursor: str, *, limit: int, labels: Collection[str] | None) -> LetterPage:
        """Return letters older than the cursor (microseconds of a burial), of these labels if any are given, newest first."""
        ...

    def letter_labels(self) -> Sequence[str] | None:
        """Return the labels that letters have; None when there are very many."""
        ...

    def letter_counts(self) -> Mapping[str, int]:
        """Return ``kept buried replayed discarded trimmed``, after forgetting the old."""
        ...

    # --- the fleet

    def pulse(self, *, to_change: bool = False) -> Pulse:
        """Return the fleet's pulse."""
        ...

    def keep_pulse(self, pulse: Pulse) -> None:
        """Write the fleet's pulse."""
        ...

    def role(self, role: str) -> tuple[str, float] | None:
        """Return who has a role, and until when."""
        ...

    def keep_role(self, role: str, token: str, ends: float) -> None:
        """Give a role."""
        ...


class Verbs:
    """A store whose verbs are steps over `Tables`."""

    def _atomically(self, work: Callable[[Tables], T]) -> T:
        """Do ``work`` as one step, alone on what it touches. It may be done again from the start, so it has no other effect."""
        raise NotImplementedError


def verb(body: Callable[Concatenate[Any, Tables, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that takes `Tables` a verb: callers leave them out, the store gives them."""

    @functools.wraps(body)
    def call(self: Verbs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._atomically(lambda tables: body(self, tables, *args, **kwargs))

    return call


def end_record(tables: Tables, job: Job, record: Record, *, task_id: str) -> Record:
    """Keep the record of an ended submission and drop its ledger entry."""
    kept = tables.keep(job, record)
    tables.drop_entry(task_id)
    return kept
