"""Know how old the oldest message of a queue may be, where the broker does not show it.

A queue gives out the oldest message first. So whatever waits was submitted after what was received last, and after the last moment
at which the queue was seen empty. The later of the two is shared by the workers that consume the queue, in one note. The oldest
message is not older than that; it is younger by the gap between two submissions, or two looks, at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from celery_reliable.errors import StoreError
from celery_reliable.stores.notes import Notes, Write

SHELF: Final = "ages"
_TTL: Final = 30 * 86_400.0  # seconds, the longest age that a limit can have
_SAME: Final = 500_000  # microseconds by which a moment has to be later to be told


class Ages:
    """What one worker knows of its queues and has to tell. Safe for threads; only `tell` asks the store."""

    __slots__ = ("_known", "_lock", "_notes", "_now", "_unknown")

    def __init__(self, notes: Notes, queues: Iterable[str], *, now: Callable[[], int]) -> None:
        """Take the queues, and the server's clock."""
        self._notes, self._now = notes, now
        self._known = dict.fromkeys(queues, 0)
        self._unknown: set[str] = set()
        self._lock = threading.Lock()

    @property
    def queues(self) -> list[str]:
        """The queues that are watched."""
        return list(self._known)

    def received(self, queue: str, stamp: int) -> None:
        """Note a message that was just received; ``stamp`` 0: nobody knows when it was submitted, so nothing is old."""
        if queue in self._known:
            self._later(queue, stamp)
            if not stamp:
                self._unknown.add(queue)

    def empty(self, queue: str, *, at: int) -> None:
        """Note that nothing waited in a queue at a time."""
        self._later(queue, at)

    def _later(self, queue: str, moment: int) -> None:
        with self._lock:
            self._known[queue] = max(self._known[queue], moment)

    def tell(self) -> None:
        """Share what is later than what the others have told. Raises what the store raises."""
        notes, now = self._notes.read(SHELF, self._known), self._now()
        with self._lock:
            known = {
                queue: now if queue in self._unknown else min(moment, now) for queue, moment in self._known.items()
            }
            self._unknown.clear()
        writes = []
        for queue, moment in known.items():
            note = notes.get(queue)
            if moment > (int(note.value) + _SAME if note else 0):
                expected = note.version if note else 0  # who was quicker knows as much; the next look tells the rest
                writes.append(Write(name=queue, value=b"%d" % moment, ttl=_TTL, expected=expected))
        if writes:
            self._notes.write(SHELF, writes)


class Load(Protocol):
    """What waits in a queue; see `sight.Load`."""

    @property
    def depth(self) -> int:
        """How many messages."""
        ...


def oldest(notes: Notes, loads: Mapping[str, Load]) -> int:
    """Return a stamp that nothing which waits in these queues is older than (microseconds); 0 if nothing waits or is known."""
    filled = [queue for queue, load in loads.items() if load.depth]
    if not filled:
        return 0
    try:
        return min(told(notes, filled).values(), default=0)
    except StoreError:
        return 0  # the depth is known all the same


def told(notes: Notes, queues: Iterable[str]) -> dict[str, int]:
    """Return, of the queues of which workers have told it, a stamp that nothing which waits there is older than."""
    return {queue: int(note.value) for queue, note in notes.read(SHELF, queues).items()}
