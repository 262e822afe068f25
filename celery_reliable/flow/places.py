"""Let so many runs of one key happen at a time in the whole fleet: who has a place, who is next.

A place belongs to a run and lasts as long as the claim of its job: nobody renews it. Whoever finds all places taken looks
whether the claims behind them are still alive, each again when its lease would end. So a place whose holder died is free when
the lease of its claim is over, and a place that nobody waits for costs nothing while it is held.

Who has to wait asks again, the oldest submissions more often: they are on a short list, and a free place goes to one of them.
The oldest one that has been on it for long has a place kept for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from celery_reliable.flow.chance import Random
from celery_reliable.stores.base import Job, Kind
from celery_reliable.stores.notes import Notes, Write

SHELF = "places"
MOST = 1000
"""Places of one key: all of them are written at each change."""

LISTED_WAIT = (1.0, 1.5)
UNLISTED_WAIT = (5.0, 15.0)
"""Seconds between which the time to the next question is drawn."""

_SECOND = 1_000_000
_FEWEST_LISTED, _MOST_LISTED = 20, 100
_LISTED_PER_PLACE = 10
_FORGOTTEN_AFTER = 10 * _SECOND  # who has not asked for so long is off the list
_SEEN_AGAIN = 4 * _SECOND
_KEPT_AFTER = 10 * _SECOND  # on the list: then the oldest has a place kept for it
_NOTE_TTL = 86_400.0
_TRIES = 20
_LOOKS = 20  # at claims, in one question


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that has a place, by the claim ``token``. That is looked at after ``look_at`` (microseconds of the server's clock)."""

    job: str
    look_at: int
    token: str
    kind: Kind = "own"
    stamp: int = 0

    def known_job(self) -> Job:
        """Return the job, without its key."""
        return Job("", self.kind, self.stamp, bytes.fromhex(self.job))


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job on the list: when it was submitted, since when it is on it, when it asked last."""

    job: str
    stamp: int
    since: int
    seen: int


@dataclass(frozen=True, slots=True)
class Board:
    """What is known under one key."""

    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        both = [[dataclasses.astuple(one) for one in some] for some in (self.holders, self.waiters)]
        return json.dumps(both, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Board:
        """Decode what `to_bytes` made."""
        holders, waiters = json.loads(raw)
        return cls(tuple(Holder(*one) for one in holders), tuple(Waiter(*one) for one in waiters))


@dataclass(frozen=True, slots=True)
class Asker:
    """A run that asks for a place of ``name``, of which there are ``limit``; its claim's token, and ``ttl`` in seconds."""

    name: str
    limit: int
    job: Job
    stamp: int
    token: str
    ttl: float

    @property
    def id(self) -> str:
        """What names the job on a board."""
        return self.job.digest.hex()


@dataclass(frozen=True, slots=True)
class Full:
    """There is no place; ask again in so many seconds."""

    seconds: float


# --- decide


def decide(board: Board, me: Asker, *, now: int) -> tuple[bool, bool, Board]:
    """Say whether a run gets a place, whether it is on the list if not, and what the board is then."""
    holders = tuple(one for one in board.holders if one.job != me.id)
    known = tuple(one for one in board.waiters if abs(now - one.seen) < _FORGOTTEN_AFTER)  # also if the clock went back
    others = tuple(one for one in known if one.job != me.id)
    before = next((one for one in known if one.job == me.id), None)
    mine = before or Waiter(me.id, me.stamp, now, now)
    if _may_take(me.limit - len(holders), mine, others, listed=before is not None, now=now):
        held = Holder(me.id, now + int(me.ttl * _SECOND), me.token, me.job.kind, me.job.stamp)
        return True, False, Board((*holders, held), others)
    if now - mine.seen > _SEEN_AGAIN:
        mine = replace(mine, seen=now)
    waiters = tuple(sorted((*others, mine), key=lambda one: one.stamp)[: _room(me.limit)])
    return False, mine in waiters, Board(holders, waiters)


def _may_take(free: int, mine: Waiter, others: Sequence[Waiter], *, listed: bool, now: int) -> bool:
    """Decide about a run when so many places are free. Listed ones need not come in order, or places would stand empty."""
    if free <= 0:
        return False
    older = [one for one in others if one.stamp < mine.stamp]
    if len(older) < free:
        return True
    kept = any(now - one.since > _KEPT_AFTER for one in older)
    return listed and not (kept and free == 1)


def _room(limit: int) -> int:
    return min(max(_LISTED_PER_PLACE * limit, _FEWEST_LISTED), _MOST_LISTED)


# --- act


class Places:
    """The places kept in one store. They raise what the store raises."""

    __slots__ = ("_claim_ends", "_may_seize", "_notes", "_now", "_random")

    def __init__(
        self,
        notes: Notes,
        *,
        now: Callable[[], int],
        claim_ends: Callable[[Job], int],
        may_seize: Callable[[], bool],
        random: Random,
    ) -> None:
        """Take the notes, the server's clock, and what tells until when a job is claimed (0: it is not).

        ``may_seize`` is asked before a place is taken from a job whose claim is over: no while the fleet's renewals were away.
        """
        self._notes, self._now, self._claim_ends = notes, now, claim_ends
        self._may_seize, self._random = may_seize, random

    def enter(self, me: Asker) -> Full | None:
        """Ask for a place; None: it is taken."""
        for _ in range(_TRIES):
            board, version = self._read(me.name)
            now = self._now()
            known = self._looked_at(board, me, now=now)
            taken, listed, after = decide(known, me, now=now)
            if after == board or self._write(me.name, after, expected=version):
                return None if taken else Full(self._random.uniform(*(LISTED_WAIT if listed else UNLISTED_WAIT)))
        return Full(self._random.uniform(*LISTED_WAIT))

    def leave(self, me: Asker) -> None:
        """Give a place back; one that a later run of the same job has is not touched."""
        for _ in range(_TRIES):
            board, version = self._read(me.name)
            after = replace(board, holders=tuple(one for one in board.holders if one.token != me.token))
            if after == board or self._write(me.name, after, expected=version):
                return

    def _looked_at(self, board: Board, me: Asker, *, now: int) -> Board:
        """Drop holders whose claims are over, if their places are needed."""
        if len(board.holders) < me.limit:
            return board
        due = [one for one in board.holders if one.look_at <= now and one.job != me.id][:_LOOKS]
        ends = {one.job: self._claim_ends(one.known_job()) for one in due}
        if any(end <= now for end in ends.values()) and not self._may_seize():
            return board
        alive = (one for one in board.holders if ends.get(one.job, now + 1) > now)
        return replace(board, holders=tuple(replace(one, look_at=ends.get(one.job, one.look_at)) for one in alive))

    # --- notes

    def _read(self, name: str) -> tuple[Board, int]:
        note = self._notes.read(SHELF, [name]).get(name)
        return (Board(), 0) if note is None else (Board.from_bytes(note.value), note.version)

    def _write(self, name: str, board: Board, *, expected: int) -> bool:
        value = None if board == Board() else board.to_bytes()
        return self._notes.write(SHELF, [Write(name=name, value=value, ttl=_NOTE_TTL, expected=expected)]) != [None]
