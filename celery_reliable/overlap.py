"""Let one job of a kind run at a time: who holds the right, who waits, who is skipped.

The right is a note of the store, one for each overlap key. It belongs to a job, not to a run: it lasts through retries and
their backoff until the job has ended, and ends by itself when it is not renewed. What to do is decided by a pure function
on the board as it was read; it is written only if the board is still the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from celery_reliable.errors import ConfigurationError
from celery_reliable.stores.base import Job, Kind
from celery_reliable.stores.notes import Note, Notes, Write

SHELF = "overlap"
POLICY_HEADER = "reliable_overlap"
KEY_HEADER = "reliable_overlap_key"
"""Headers of one call, or of one entry of a schedule, that win over the options of its task."""

POLL = 1.0
"""Seconds between two looks of a job that waits."""

_STARTED = "overlap.started"
_STARTED_TTL = 86_400.0
_MOST_DISPLACED = 50
_TRIES = 20

Policy = Literal["forbid", "queue", "replace"]
_WORDS = ("allow", "forbid", "queue", "replace")


@dataclass(frozen=True, slots=True)
class Right:
    """A job's right to run or to be the next, until a time of the server's clock in microseconds.

    ``job`` is the digest of its key, ``kind`` and ``stamp`` are what finds its record beside it. ``stop``: a newer job asks it to end. ``resting``: it does not run now, it waits for its next attempt.
    ``life``: the sign of the process that runs it, see `Lives`; "" where that is not looked at.
    """

    job: str
    task_id: str
    until: int
    stop: bool = False
    resting: bool = False
    kind: Kind = "own"
    stamp: int = 0
    life: str = ""

    def known_job(self) -> Job:
        """Return the job, without its key."""
        return Job("", self.kind, self.stamp, bytes.fromhex(self.job))


@dataclass(frozen=True, slots=True)
class Board:
    """What is known under one overlap key: the holder, who waits, and who was displaced by a newer one."""

    holder: Right | None = None
    waiter: Right | None = None
    displaced: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        rights = [one and dataclasses.astuple(one) for one in (self.holder, self.waiter)]
        return json.dumps([*rights, self.displaced], separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Board:
        """Decode what `to_bytes` made."""
        holder, waiter, displaced = json.loads(raw)
        return cls(Right(*holder) if holder else None, Right(*waiter) if waiter else None, tuple(displaced))

    @property
    def ends(self) -> int:
        """When nothing here counts any more."""
        return max((one.until for one in (self.holder, self.waiter) if one), default=0)


@dataclass(frozen=True, slots=True)
class Go:
    """The job has the right."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again in `POLL` seconds."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """The job will not run."""

    reason: str


Step = Go | Wait | Skip


class Lives(Protocol):
    """What can tell whether a process has ended, sooner than its lease does."""

    def sign(self) -> str:
        """Return what names this process, "" when that is not possible now: then its lease alone counts."""
        ...

    def is_gone(self, sign: str) -> bool:
        """Tell whether the process of a sign is known to have ended."""
        ...


class OutspokenLives:
    """Lives that say once why this process cannot sign; from then on its lease alone counts."""

    __slots__ = ("_lives", "_refused", "_tell")

    def __init__(self, lives: Lives, *, tell: Callable[[str], None]) -> None:
        """Take what raises `ConfigurationError` where it cannot sign, and whom to tell."""
        self._lives, self._tell = lives, tell
        self._refused = False

    def sign(self) -> str:
        """See `Lives.sign`."""
        if self._refused:
            return ""
        try:
            return self._lives.sign()
        except ConfigurationError as exc:
            self._refused = True
            self._tell(str(exc))
            return ""

    def is_gone(self, sign: str) -> bool:
        """See `Lives.is_gone`."""
        return self._lives.is_gone(sign)


class Headers(Protocol):
    """A mapping, or Celery's request of a running task."""

    def get(self, name: str, default: Any, /) -> Any:
        """Return a header, or the default."""
        ...


def policy_in(headers: Headers, *, default: str) -> str:
    """Return the policy that headers give, else the default; who sends an unknown word was told."""
    given = headers.get(POLICY_HEADER, None)
    return given if given in _WORDS else default


def job_name(job: Job) -> str:
    """Return what names a job on a board; its stamp is no part of it, for a retry may bring one."""
    return job.digest.hex()


# --- decide


def decide(board: Board, me: Right, *, policy: Policy, started: Callable[[], bool], now: int) -> tuple[Step, Board]:
    """Say what a job may do, and what the board is then. ``started``: the job has run before, so it cannot be skipped."""
    if me.job in board.displaced:
        rest = tuple(one for one in board.displaced if one != me.job)
        return Skip("a newer one took its place"), replace(board, displaced=rest)
    board = _present(board, me, now=now)
    holder = board.holder
    if holder is not None and holder.job == me.job and holder.stop:
        return Skip(_REPLACED), board
    if holder is None or holder.job == me.job:
        return Go(), replace(board, holder=me, waiter=None if _is(board.waiter, me) else board.waiter)
    return _meet(board, me, holder, policy=policy, started=started)


_REPLACED = "a newer one replaces it"


def _present(board: Board, me: Right, *, now: int) -> Board:
    """Drop who is over. Who waits moves up before anybody who comes now."""
    holder, waiter = (
        one if one and (one.until > now or one.job == me.job) else None for one in (board.holder, board.waiter)
    )
    if holder is None and waiter is not None and waiter.job != me.job:
        holder, waiter = waiter, None
    return replace(board, holder=holder, waiter=waiter)


def _is(right: Right | None, me: Right) -> bool:
    return right is not None and right.job == me.job


def _meet(board: Board, me: Right, holder: Right, *, policy: Policy, started: Callable[[], bool]) -> tuple[Step, Board]:
    """Decide about a job that meets another one."""
    runs, waiter = f"task {holder.task_id} runs", board.waiter
    if waiter is not None and waiter.job == me.job:
        return Wait(runs), replace(board, waiter=me)
    if policy == "replace" and not started():
        displaced = board.displaced if waiter is None else (*board.displaced, waiter.job)[-_MOST_DISPLACED:]
        return Wait(runs), Board(replace(holder, stop=True), me, displaced)
    if policy == "queue" and waiter is None:
        return Wait(runs), replace(board, waiter=me)
    if started():
        return Wait(runs), board
    return Skip(runs if policy == "forbid" or waiter is None else f"task {waiter.task_id} waits already"), board


# --- act


@dataclass(frozen=True, slots=True)
class Claimant:
    """A job that asks under an overlap key, and how long its right lasts without a renewal (seconds)."""

    name: str
    job: Job
    task_id: str
    ttl: float

    def right(self, *, now: int, seconds: float | None = None) -> Right:
        """Return the right as it is from now on."""
        lasts = self.ttl if seconds is None else seconds
        until = now + int(lasts * 1e6)
        return Right(job_name(self.job), self.task_id, until, kind=self.job.kind, stamp=self.job.stamp)


class Rights:
    """The rights kept in one store. A method is one read and at most one write, more only when others write meanwhile."""

    __slots__ = ("_has_ended", "_lives", "_may_seize", "_notes", "_now")

    def __init__(
        self,
        notes: Notes,
        *,
        now: Callable[[], int],
        has_ended: Callable[[Job], bool],
        may_seize: Callable[[], bool],
        lives: Lives | None = None,
    ) -> None:
        """Take the notes, the server's clock, and what tells whether a job has ended.

        ``may_seize`` is asked before a right is taken that ended by itself: no while the fleet's renewals were away.
        ``lives`` lets a right be taken at once whose holder's process has ended.
        """
        self._notes, self._now = notes, now
        self._has_ended, self._may_seize = has_ended, may_seize
        self._lives = lives

    def enter(self, me: Claimant, *, policy: Policy, has_run: bool) -> Step:
        """Ask for the right. ``has_run``: it is known that the job has run before."""
        for _ in range(_TRIES):
            board, version = self._read(me.name)
            now = self._now()
            known = self._without_ended(board, me)
            right = me.right(now=now)
            step, after = decide(
                known, right, policy=policy, started=lambda: has_run or self._has_started(me.job), now=now
            )
            if _seizes(known, after, now=now) and not self._may_seize():
                return Wait("the fleet's renewals were away")
            if self._lives is not None and isinstance(step, Go):
                after = replace(after, holder=replace(right, life=self._lives.sign()))
            if after == board or self._write(me.name, after, expected=version, now=now):
                return step
        return Wait("many ask at once")

    def _without_ended(self, board: Board, me: Claimant) -> Board:
        """Drop a holder that has ended without giving its right back.

        One that rests was revoked, expired or purged; one that runs has lost its process.
        """
        holder = board.holder
        if holder is None or holder.job == job_name(me.job):
            return board
        if holder.resting:
            return replace(board, holder=None) if self._has_ended(holder.known_job()) else board
        is_gone = self._lives is not None and holder.life and self._lives.is_gone(holder.life)
        return replace(board, holder=None) if is_gone else board

    def leave(self, me: Claimant) -> None:
        """Give the right back: the job has ended."""
        self._change(me, lambda _: None)

    def rest(self, me: Claimant, *, seconds: float, has_run: bool) -> None:
        """Keep the right until the next attempt, due in ``seconds``. ``has_run``: remember that it may not be skipped."""
        if has_run:
            self._notes.write(_STARTED, [Write(name=job_name(me.job), value=b"1", ttl=_STARTED_TTL)])
        self._change(me, lambda now: replace(me.right(now=now, seconds=seconds + me.ttl), resting=True))

    def _change(self, me: Claimant, right: Callable[[int], Right | None]) -> None:
        for _ in range(_TRIES):
            board, version = self._read(me.name)
            now = self._now()
            after = _with(board, job_name(me.job), right(now))
            if after == board or self._write(me.name, after, expected=version, now=now):
                return

    def _has_started(self, job: Job) -> bool:
        name = job_name(job)
        return name in self._notes.read(_STARTED, [name])

    # --- many at once, for who renews

    def renew(self, held: Sequence[Claimant]) -> dict[str, Right | None]:
        """Renew the rights that are due; return each job's right by its name, None where another job has it or nobody."""
        notes = self._notes.read(SHELF, [one.name for one in held])
        now = self._now()
        found: dict[str, Right | None] = {}
        writes = []
        for one in held:
            board = _board(notes.get(one.name))
            right = board.holder if board.holder and board.holder.job == job_name(one.job) else None
            found[job_name(one.job)] = right
            if right is not None and right.until - now < one.ttl * _RENEW_BELOW * 1e6:
                renewed = replace(board, holder=replace(one.right(now=now), stop=right.stop, life=right.life))
                writes.append(_set(one.name, renewed, expected=notes[one.name].version, now=now))
        if writes:
            self._notes.write(SHELF, writes)  # what somebody else changed meanwhile is renewed at the next beat
        return found

    def foresee(self, me: Claimant, *, policy: Policy) -> str:
        """Say why a job that is submitted now would be skipped; "" if it may run. Changes nothing."""
        board, now = self._without_ended(self._read(me.name)[0], me), self._now()
        step, _ = decide(board, me.right(now=now), policy=policy, started=lambda: False, now=now)
        return step.reason if isinstance(step, Skip) else ""

    # --- notes

    def _read(self, name: str) -> tuple[Board, int]:
        note = self._notes.read(SHELF, [name]).get(name)
        return _board(note), note.version if note else 0

    def _write(self, name: str, board: Board, *, expected: int, now: int) -> bool:
        return self._notes.write(SHELF, [_set(name, board, expected=expected, now=now)]) != [None]


_RENEW_BELOW = 0.7  # share of the ttl


def _board(note: Note | None) -> Board:
    return Board() if note is None else Board.from_bytes(note.value)


def _set(name: str, board: Board, *, expected: int, now: int) -> Write:
    value = None if board == Board() else board.to_bytes()
    return Write(name=name, value=value, ttl=max(board.ends - now, 0) / 1e6 + _KEPT_LONGER, expected=expected)


_KEPT_LONGER = 86_400.0  # seconds that a board outlives its rights: an outage of the store must not end them


def _seizes(before: Board, after: Board, *, now: int) -> bool:
    old, new = before.holder, after.holder
    return old is not None and old.until <= now and (new is None or new.job != old.job)


def _with(board: Board, job: str, right: Right | None) -> Board:
    """Return the board with a holder's right changed, or with a job taken off it."""
    holder = board.holder
    if right is not None:
        return replace(board, holder=replace(right, stop=holder.stop)) if holder and holder.job == job else board
    holder, waiter = (None if one and one.job == job else one for one in (holder, board.waiter))
    return Board(holder, waiter, tuple(one for one in board.displaced if one != job))
