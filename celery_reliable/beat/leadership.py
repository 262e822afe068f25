"""Decide which of several beats leads: a lease in the store, renewed by a thread as long as the loop goes on."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from celery_reliable.errors import StoreError
from celery_reliable.events import Events
from celery_reliable.stores.notes import Note, Notes, Write, every

LEADER_SHELF = "beat.leader"
MEMBER_SHELF = "beat.members"
LEADER = "leader"

_LEASE_SHARE = 5 / 6  # of the ttl; the rest is for a standby to notice that the lease has ended
_RENEWALS = 3  # in a ttl
_LONGEST_POLL = 1.0
_SHORTEST_PAUSE = 0.05
_MEMBER_TTLS = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A beat as the others see it. ``since`` is the start of its process, in seconds since the epoch."""

    token: str
    host: str
    pid: int
    since: float
    lease: float
    epoch: int = 0
    """Of its present leadership."""

    @classmethod
    def here(cls, *, lease: float) -> Member:
        """Describe this process."""
        return cls(secrets.token_urlsafe(9), socket.gethostname(), os.getpid(), time.time(), lease)

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps([self.token, self.host, self.pid, self.since, self.lease, self.epoch]).encode()

    @classmethod
    def from_note(cls, note: Note) -> Member | None:
        """Decode, None when it is not ours."""
        try:
            token, host, pid, since, lease, epoch = json.loads(note.value)
            return cls(str(token), str(host), int(pid), float(since), float(lease), int(epoch))
        except (ValueError, TypeError):
            return None


class Leadership:
    """The lease of one beat.

    Guarantee: while `holds` is true no other beat with the same store leads, as long as the store keeps its writes and
    this process is not frozen between asking and acting. ``epoch`` grows with each leadership, in the whole fleet. The
    lease ends within ``ttl`` of the last renewal, by this process's monotonic clock before it does in the store.
    """

    def __init__(
        self, notes: Notes, *, ttl: float, events: Events, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the store's notes; nothing happens before `poll`."""
        self.ttl, self.lease = ttl, ttl * _LEASE_SHARE
        self.me = Member.here(lease=self.lease)
        self.epoch = 0
        self.reason = "not elected"
        self.store_away = False
        self._notes, self._events, self._clock = notes, events, clock
        self._until = self._due_by = self._announced = float("-inf")
        self._version = 0
        self._leader_ends: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def holds(self) -> bool:
        """Tell whether this beat leads now. Costs nothing; ask before each publish."""
        return self._clock() < self._until

    def expect(self, seconds: float) -> None:
        """Announce that the loop comes back within so many seconds; else leadership is given up."""
        self._due_by = self._clock() + seconds

    # --- standing by

    def poll(self) -> bool:
        """Take the lease if nobody has it. True when this beat leads, now or already."""
        if self.holds():
            return True
        self._end_thread()
        try:
            self._announce()
            leads = self._try_to_lead()
        except StoreError as exc:
            self.reason, self._leader_ends, self.store_away = f"store away: {exc}", None, True
            return False
        self.store_away = False
        return leads

    def pause(self) -> float:
        """Return how long a standby waits before it asks again: until the leader's lease ends, or a second."""
        longest = min(_LONGEST_POLL, self.ttl / 6)
        if self._leader_ends is None:
            return longest
        return min(longest, max(self._leader_ends - self._clock(), _SHORTEST_PAUSE))

    def _try_to_lead(self) -> bool:
        sent = self._clock()
        write = Write(name=LEADER, value=self.me.to_bytes(), ttl=self.lease, expected=0)
        version = self._notes.write(LEADER_SHELF, [write])[0]
        if version is None:
            version = self._mine()  # an earlier write whose answer was lost
        if version is None:
            self.reason = "another beat leads"
            return False
        self.epoch, self._version, self._until = version, version, sent + self.lease
        self.me = replace(self.me, epoch=version)
        self.expect(self.ttl)
        self.renew()
        if not self.holds():
            return False
        self._begin_thread()
        return True

    def _mine(self) -> int | None:
        """Return the version of the leader's note if it is of this beat; else remember when it ends."""
        note = self._notes.read(LEADER_SHELF, [LEADER]).get(LEADER)
        if note is None:
            self._leader_ends = self._clock()
            return None
        found = Member.from_note(note)
        if found is not None and found.token == self.me.token:
            return note.version
        self._leader_ends = None
        return None

    def _announce(self) -> None:
        """Tell the fleet, now and then, that this beat is there."""
        if self._clock() - self._announced < self.ttl / _RENEWALS:
            return
        ttl = self.ttl * _MEMBER_TTLS
        self._notes.write(MEMBER_SHELF, [Write(name=self.me.token, value=self.me.to_bytes(), ttl=ttl)])
        self._announced = self._clock()

    # --- leading

    def _begin_thread(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, args=(self._stop,), name="reliable-leader", daemon=True)
        self._thread.start()

    def _end_thread(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        self._thread = None

    def _keep(self, stop: threading.Event) -> None:
        """Renew every third of the ttl until the lease is lost, given up or no longer wanted."""
        while not stop.wait(self.ttl / _RENEWALS) and self.holds():
            if self._clock() > self._due_by:
                self._events.emit("beat_stalled", overdue=self._clock() - self._due_by)
                self.give_up("the scheduler's loop stalled")
                return
            try:
                self.renew()
                self._announce()
            except StoreError as exc:
                self._events.emit("leader_renew_failed", left=self._until - self._clock(), error=str(exc))

    def renew(self) -> None:
        """Extend the lease once. A lease that somebody else has, or nobody, is lost."""
        sent = self._clock()
        version = self._renewed() or (self._adopt() and self._renewed())
        if version:
            self._version, self._until = version, sent + self.lease
        else:
            self.reason, self._until = "the lease was lost", float("-inf")

    def _renewed(self) -> int | None:
        write = Write(name=LEADER, value=self.me.to_bytes(), ttl=self.lease, expected=self._version)
        return self._notes.write(LEADER_SHELF, [write])[0]

    def _adopt(self) -> bool:
        """Take over the version of a renewal whose answer was lost."""
        version = self._mine()
        self._version = version or self._version
        return version is not None

    def give_up(self, reason: str) -> None:
        """Stop leading now, and let others know. Best effort: without the store the lease runs out by itself."""
        self.reason, held, self._until = reason, self.holds(), float("-inf")
        if held:
            self._remove([Write(name=LEADER, value=None, ttl=0.0, expected=self._version)], shelf=LEADER_SHELF)

    def resign(self) -> None:
        """Leave: end the thread, free the lease and go from the list of beats. May be called twice."""
        self._end_thread()
        self.give_up("stopped")
        self._remove([Write(name=self.me.token, value=None, ttl=0.0)], shelf=MEMBER_SHELF)

    def _remove(self, writes: list[Write], *, shelf: str) -> None:
        try:
            self._notes.write(shelf, writes)
        except StoreError:
            return


def leader_and_members(notes: Notes) -> tuple[Member | None, Mapping[str, Member]]:
    """Return who leads, and all beats by token."""
    note = notes.read(LEADER_SHELF, [LEADER]).get(LEADER)
    leader = Member.from_note(note) if note else None
    members = {name: Member.from_note(found) for name, found in every(notes, MEMBER_SHELF).items()}
    known = {name: member for name, member in members.items() if member is not None}
    return leader, known
