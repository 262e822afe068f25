"""Put leadership over redbeat's scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_reliable.beat.mixin import LeaderMixin


class RedBeatMixin(LeaderMixin):
    """For `redbeat.RedBeatScheduler` (2.4), which has no heap but an order in Redis.

    Its own lock is off: it would end the process of a leader that lost it, and keep a new one out for half an hour.
    """

    lock_key: str | None = None

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        """Switch redbeat's lock off."""
        super().__init__(app, *args, **kwargs)
        self.lock_key = None
        self._read: dict[str, Any] = {}

    @property
    def schedule(self) -> dict[str, Any]:
        """Return the entries that are due and the next one, and remember them."""
        self._read = dict(super().schedule)
        return self._read

    def maybe_due(self, entry: Any, **kwargs: Any) -> float:
        """Fire an entry if one of its slots is due (redbeat asks the entry itself)."""
        due, following = self.is_due(entry)
        if due:
            self.apply_async(entry, **kwargs)
        return float(following)

    def peers_of(self, entry: Any) -> Iterator[Any]:
        """Iterate over what was read with the entry."""
        return (other for other in self._read.values() if other.name != entry.name)

    def reserve(self, entry: Any) -> Any:
        """Move the entry on in Redis, with the slot as its last run."""
        claim = self._claims.get(entry.name)
        if claim is None:
            return entry
        return entry._next_instance(last_run_at=self.slot_as_time(claim.slot, entry=entry))  # noqa: SLF001  # what its next() is

    def entry_named(self, name: str) -> Any:
        """Return one entry from Redis."""
        return self.Entry.from_key(self.Entry.generate_key(self.app, name), app=self.app)

    def is_disabled(self, entry: Any) -> bool:
        """Tell whether the entry is switched off."""
        return not entry.enabled


def __getattr__(name: str) -> Any:
    """Make the class when it is asked for: redbeat is needed by then."""
    if name != "ReliableRedBeatScheduler":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from celery_reliable.beat.wrapping import class_over  # noqa: PLC0415

    return class_over("redbeat:RedBeatScheduler")
