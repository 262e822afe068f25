"""Keep notes in Redis: a hash for each shelf, and beside it the order in which its notes end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from celery_reliable.stores.notes import BATCH, Note, NotePage, Write
from celery_reliable.stores.redis_keys import Keys
from celery_reliable.stores.redis_link import Link

_ANYTHING = -1
_T = TypeVar("_T")


class RedisNotes:
    """Notes on the server's clock, one script for reading and one for writing."""

    def __init__(self, link: Link, keys: Keys) -> None:
        """Share link and keys with the store."""
        self._link = link
        self._keys = keys

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """See `Notes.read`."""
        found: dict[str, Note] = {}
        for batch in _batches(list(names)):
            flat = self._link.script("read_notes", self._keys.shelf(shelf), batch)
            notes = zip(batch, flat[::2], flat[1::2], strict=True)
            found |= {name: Note(name, value, version) for name, version, value in notes if version}
        return found

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """See `Notes.write`."""
        answers: list[int | None] = []
        for batch in _batches(writes):
            flat = [item for write in batch for item in _arguments(write)]
            answers += [version or None for version in self._link.script("write_notes", self._keys.shelf(shelf), flat)]
        return answers

    def page(self, shelf: str, cursor: str = "", *, limit: int = 500) -> NotePage:
        """See `Notes.page`: in the order of the server's scan."""
        last, flat = self._link.script("page_notes", self._keys.shelf(shelf), (cursor or 0, limit))
        notes = [Note(name.decode(), value, version) for name, version, value in _triples(flat)]
        return NotePage(notes, "" if last == b"0" else last.decode())


def _arguments(write: Write) -> tuple[Any, ...]:
    expected = _ANYTHING if write.expected is None else write.expected
    ttl = 0 if write.value is None else max(int(write.ttl * 1000), 1)
    return (write.name, write.value or b"", ttl, expected, write.keep)


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _triples(flat: Sequence[Any]) -> Iterator[tuple[bytes, int, bytes]]:
    return zip(flat[::3], flat[1::3], flat[2::3], strict=True)
