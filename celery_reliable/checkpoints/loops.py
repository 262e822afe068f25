"""Iterate over many items, and go on after the last finished one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from celery_reliable.checkpoints.entries import Position, encoded
from celery_reliable.checkpoints.progress import Progress
from celery_reliable.errors import ConfigurationError, Draining

T = TypeVar("T")
_SCALARS = (str, int, float, bool, type(None))
_LONGEST_MARK = 200
_LONGEST_KEY = 512


@dataclass(frozen=True, slots=True)
class Loop:
    """What a body asks of `Checkpoint.iterate`."""

    name: str
    every: int
    key: Callable[[Any], Any] | None
    state: Callable[[], Any] | None
    draining: Callable[[], bool]


def check(items: object, *, every: object, name: object) -> None:
    """Raise `ConfigurationError` for what could not go on at the same place."""
    if isinstance(items, AbstractSet) and not hasattr(items, "mapping"):  # the views of a dict have its order
        msg = "checkpoint.iterate: expected items in an order, found a set, whose order differs from process to process; sort it"
        raise ConfigurationError(msg)
    if not isinstance(items, Iterable):
        msg = f"checkpoint.iterate: expected something to iterate over, found {type(items).__qualname__}"
        raise ConfigurationError(msg)
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        msg = f"checkpoint.iterate: every: expected a number of items, at least 1, found {every!r}"
        raise ConfigurationError(msg)
    if not isinstance(name, str) or len(name) > _LONGEST_MARK:
        msg = f"checkpoint.iterate: name: expected a text of up to {_LONGEST_MARK} characters, found {str(name)[:80]!r}"
        raise ConfigurationError(msg)


def run(loop: Loop, items: Iterable[T], *, progress: Progress) -> Iterator[T]:
    """Yield the items that are not done yet; save as asked, and stop where the worker has to."""
    start = progress.begin(loop.name)
    if start.ended:
        return
    inner, saved, last, item = progress.begun, start.count, start, None

    def save(position: Position, item: Any) -> None:
        progress.finished(_marked(loop, position, item), inner=inner, state=loop.state)

    for upcoming, position in _remaining(loop, items, start=start):
        if loop.draining():
            if last.count > saved:
                save(last, item)
            raise Draining
        yield upcoming
        last, item = position, upcoming
        if last.count - saved >= loop.every or progress.begun > inner:
            save(last, item)
            saved = last.count
        elif loop.state is None:
            progress.postpone(partial(save, last, item))
    progress.finished(Position(loop.name, last.count, ended=True), inner=inner, state=loop.state)


def _remaining(loop: Loop, items: Iterable[T], *, start: Position) -> Iterator[tuple[T, Position]]:
    """Iterate over what is not done, each item with the position that its end will be."""
    return _after_key(loop, items, start=start) if loop.key else _after_count(loop, items, start=start)


def _after_count(loop: Loop, items: Iterable[T], *, start: Position) -> Iterator[tuple[T, Position]]:
    rest = itertools.islice(items, max(start.count - 1, 0), None)
    if start.count:
        last = next(rest, _NOTHING)
        if last is _NOTHING or (start.mark is not None and _mark(last) != start.mark):
            raise _changed(loop, start, found=last)
    for count, item in enumerate(rest, start.count + 1):
        yield item, Position(loop.name, count)


_NOTHING: Any = object()


def _changed(loop: Loop, start: Position, *, found: Any) -> ConfigurationError:
    now = "fewer items" if found is _NOTHING else f"{str(_mark(found))[:80]} there"
    return ConfigurationError(
        f"checkpoint.iterate {loop.name!r}: expected item {start.count} to be {str(start.mark)[:80]}, as it was when the last run "
        f"stopped there, found {now}: the items changed between the runs; sort them by something that grows and give it "
        "as key=, or iterate over a list that stays"
    )


def _after_key(loop: Loop, items: Iterable[T], *, start: Position) -> Iterator[tuple[T, Position]]:
    """Skip what is not above the last finished key; see that keys grow, on which this rests."""
    last: Any = None
    for item in items:
        key = _key(loop, item)
        if last is not None and not _grows(loop, last, key):
            msg = (
                f"checkpoint.iterate {loop.name!r}: expected keys that grow from item to item, found {str(key)[:80]} after "
                f"{str(last)[:80]}; sort the items by the key"
            )
            raise ConfigurationError(msg)
        last = key
        if start.count and not _grows(loop, start.mark, key):
            continue
        start = Position(loop.name, start.count + 1, key)
        yield item, start


def _key(loop: Loop, item: Any) -> Any:
    """Return the key as it will come back from the store: a tuple as a list."""
    made = loop.key(item) if loop.key else None
    text = encoded(made, what=f"key of loop {loop.name!r}")
    if made is None or len(text) > _LONGEST_KEY:
        found = "None" if made is None else f"{len(text)} bytes"
        msg = f"checkpoint.iterate {loop.name!r}: key: expected a number or a short text for each item, found {found}"
        raise ConfigurationError(msg)
    return made if isinstance(made, int | str) else json.loads(text)


def _grows(loop: Loop, before: Any, key: Any) -> bool:
    try:
        return bool(key > before)
    except TypeError as exc:
        msg = f"checkpoint.iterate {loop.name!r}: key: expected keys of one type, found {before!r} and {key!r}"
        raise ConfigurationError(msg) from exc


def _marked(loop: Loop, position: Position, item: Any) -> Position:
    return position if loop.key else Position(position.name, position.count, _mark(item))


def _mark(item: Any) -> Any:
    """Return what tells a plain item from another; None for one that the body may have changed meanwhile."""
    if type(item) is str:
        return f"str:{item[:_LONGEST_MARK]}"
    if type(item) in _SCALARS:
        return f"{type(item).__name__}:{item}"
    if type(item) is tuple and all(type(part) in _SCALARS for part in item):
        return f"tuple:{item!r}"[:_LONGEST_MARK]
    return None
