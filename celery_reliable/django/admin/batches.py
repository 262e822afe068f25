"""Do something to many letters, a second's work at a time.

A batch is a value that travels in the page, signed: the server keeps nothing between two steps, any process may do the
next one, and closing the page stops it. Repeating a step does nothing twice, for a letter that was replayed or discarded is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from django.core import signing
from kombu.exceptions import OperationalError

from celery_reliable.dead_letters import DeadLetters, Filter
from celery_reliable.django.admin.choosing import look
from celery_reliable.errors import ReliableError, ReplayRefused

STEP: Final = 1.0
"""Seconds that one step takes, and at least one letter."""

_SALT: Final = "celery_reliable.batch"
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Refusals:
    """Letters that were refused for one reason, with the text about the first of them."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is to be done, and how far it is.

    ``pending`` are the ids that are next. ``wanted``: all that fits, looked for from ``cursor`` on while ``searching``.
    ``user`` is who began it: nobody else may go on.
    """

    action: str
    user: str
    pending: tuple[str, ...] = ()
    wanted: Filter | None = None
    cursor: str = ""
    searching: bool = False
    force: bool = False
    sign: bool = False
    looked: int = 0
    done: int = 0
    refused: tuple[Refusals, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        return not self.pending and not self.searching

    @property
    def refused_count(self) -> int:
        """How many letters were refused."""
        return sum(one.count for one in self.refused)

    @property
    def settled(self) -> int:
        """How many letters were done or refused."""
        return self.done + self.refused_count

    @property
    def total(self) -> int:
        """How many letters there are as far as is known."""
        return self.settled + len(self.pending)

    def signed(self) -> str:
        """Return it as a text that only we can make."""
        return str(signing.dumps(asdict(self), salt=_SALT, compress=True))

    @classmethod
    def from_signed(cls, text: str) -> Batch:
        """Read such a text. Raises `django.core.signing.BadSignature`."""
        found: dict[str, Any] = signing.loads(text, salt=_SALT)
        wanted = found["wanted"]
        known = {**wanted, "ids": tuple(wanted["ids"]), "statuses": tuple(wanted["statuses"])} if wanted else None
        refused = tuple(Refusals(**one) for one in found["refused"])
        parts = {"pending": tuple(found["pending"]), "refused": refused, "wanted": known and Filter(**known)}
        return cls(**{**found, **parts})

    def plus(self, refusal: ReplayRefused | None) -> Batch:
        """Take the first pending letter off, as done or as refused."""
        rest = self.pending[1:]
        if refusal is None:
            return replace(self, pending=rest, done=self.done + 1)
        counts = {one.reason: one for one in self.refused}
        known = counts.get(refusal.reason, Refusals(refusal.reason, 0, str(refusal)))
        counts[refusal.reason] = replace(known, count=known.count + 1)
        return replace(self, pending=rest, refused=tuple(counts.values()))


Act = Callable[[str], "ReplayRefused | None"]


def step(batch: Batch, letters: DeadLetters, act: Act) -> tuple[Batch, str]:
    """Work for a second; return the batch as it is then, and what stopped it before its time, "" if nothing did."""
    deadline = time.monotonic() + STEP
    try:
        batch = batch if batch.pending or not batch.searching else _more(batch, letters)
        while batch.pending:
            batch = batch.plus(act(batch.pending[0]))
            if time.monotonic() > deadline:
                break
    except (ReliableError, OperationalError) as exc:
        return batch, str(exc)
    return batch, ""


def _more(batch: Batch, letters: DeadLetters) -> Batch:
    """Look for the next letters."""
    found = look(letters, batch.wanted or Filter(), batch.cursor, enough=1, seconds=_LOOK_SECONDS)
    return replace(
        batch,
        pending=tuple(letter.id for letter in found.letters),
        cursor=found.cursor,
        searching=bool(found.cursor),
        looked=batch.looked + found.looked,
    )
