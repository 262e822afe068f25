"""Say in which order a worker looks for its next message: in turns over queues and lanes, and now and then from below.

A queue that was served goes to the end, and within it the lane that was served. So a queue gets its turn once all others that
have messages had theirs, however many lanes they have, and a lane once all others of its queue had theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class Turns:
    """The order of one consumer. ``every``: each so-manieth message is looked for in lower priorities first (None: never).

    Of every ``every`` messages one is thus taken from a lower priority, if any waits there; at which it begins goes round. With
    ``n`` lower priorities the ``p``-th message of one of them is among the next ``every * n * p``. Not safe for threads.
    """

    __slots__ = ("_every", "_queue_of", "_queues", "_served")

    def __init__(self, *, queue_of: Callable[[str], str], every: int | None = None) -> None:
        """Take what tells the queue of a lane."""
        self._queue_of, self._every = queue_of, every
        self._queues: dict[str, list[str]] = {}
        self._served = 0

    # --- queues: the three verbs that kombu asks of a cycle

    def update(self, names: Iterable[str]) -> None:
        """Take what is consumed from now on; what is known keeps its turn."""
        wanted = dict.fromkeys(names)
        before = [name for name in self.consume() if name in wanted]
        self._queues = {}
        for name in dict.fromkeys((*before, *wanted)):
            self._queues.setdefault(self._queue_of(name), []).append(name)

    def consume(self, most: int | None = None) -> list[str]:
        """Return the order in which to look."""
        return [name for lanes in self._queues.values() for name in lanes][:most]

    def rotate(self, name: str) -> str:
        """Note from where a message came."""
        self._served += 1
        queue = self._queue_of(name)
        lanes = self._queues.pop(queue, None)
        if lanes is not None:
            self._queues[queue] = [*(lane for lane in lanes if lane != name), *(lane for lane in lanes if lane == name)]
        return name

    # --- priorities

    def steps(self, steps: Sequence[int]) -> list[int]:
        """Return the order of priorities for the next message, given from the highest to the lowest."""
        highest, lower = list(steps[:1]), list(steps[1:])
        if self._every is None or not lower or (self._served + 1) % self._every:
            return [*highest, *lower]
        begin = self._served // self._every % len(lower)
        return [*lower[begin:], *lower[:begin], *highest]
