"""Offer a task its saved progress and its once-only steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from celery_reliable.checkpoints import loops
from celery_reliable.checkpoints.entries import Entry, encoded, taken_back
from celery_reliable.checkpoints.progress import MOST_STEPS, Holder, write
from celery_reliable.errors import ConfigurationError

T = TypeVar("T")


def _never() -> bool:
    return False


class Checkpoint:
    """Progress and once-only steps of the job that runs now.

    Guarantee: what `save` returned from is what the next run's `load` gives, and a holder that was replaced is refused
    (`LeaseLost`). Kept until the job is done or its letter is discarded. States and results must be JSON; above
    ``claim_check_threshold`` they are kept below ``reliable_blob_url``. Outside a worker (eager, direct call) nothing is
    kept: `load` gives the default, loops begin at the beginning and steps run each time.

    .. versionadded:: 0.1
    """

    __slots__ = ("_current", "_draining")

    def __init__(self, current: Callable[[], Holder | None], *, draining: Callable[[], bool] = _never) -> None:
        """Take a function that returns the present run, and one that says whether it has to stop."""
        self._current = current
        self._draining = draining

    def load(self, default: Any = None, *, upgrade: Callable[[Any, int], Any] | None = None) -> Any:
        """Return the state saved last, by this run or an earlier one, or the default.

        ``upgrade(state, version)`` converts one that code with a smaller ``checkpoint_version`` saved; without it such a
        state is a `ConfigurationError`. One of a larger version makes the run wait for a worker that knows it. Raises
        `BlobLost` when a state that was kept aside is missing or was altered.
        """
        holder = self._current()
        return default if holder is None else holder.progress.state(default, upgrade=upgrade)

    def save(self, state: Any) -> None:
        """Keep a state: one round trip. Raises `LeaseLost`, and `ConfigurationError` for one that JSON cannot carry.

        Too large a state without ``reliable_blob_url`` is a `ConfigurationError`, too. When the folder of blobs cannot be
        reached it raises `Transient`: the next attempt goes on from the state before.
        """
        holder = self._current()
        if holder is not None:
            holder.progress.save_state(state)

    def iterate(
        self,
        items: Iterable[T],
        *,
        every: int = 1,
        key: Callable[[T], Any] | None = None,
        state: Callable[[], Any] | None = None,
        name: str = "",
    ) -> Iterator[T]:
        """Iterate, save after ``every`` so many items, stop between two items when the worker has to, and go on there.

        The next run begins after the last item that was finished and saved. Only a position is kept, never items: the
        number of items done and, where they are plain, the last one, so that a list that changed is noticed
        (`ConfigurationError`). ``key`` gives something that grows from item to item; then the next run begins above the last
        key, whatever was added or removed. A generator is run through again up to the position. ``state`` is called at each
        save: what it returns is saved with the position in one step and is what `load` gives. An exception of the body saves
        the finished items, unless there is a ``state``. A second loop of the same body needs a ``name``.
        """
        loops.check(items, every=every, name=name)
        holder = self._current()
        if holder is None:
            return iter(items)
        loop = loops.Loop(name, every, key, state, self._draining)
        return loops.run(loop, items, progress=holder.progress)

    def once(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the kept result of a step, or run it and keep its result. At most 1000 steps a job."""
        holder = self._current()
        if holder is None:
            return fn(*args, **kwargs)
        entry_name, what = f"step:{name}", f"result of step {name!r}"
        kept = holder.saved.get(entry_name)
        if kept is not None:
            return _result(Entry.from_bytes(kept), holder)
        _refuse_too_many(holder)
        text = encoded(fn(*args, **kwargs), what=what)
        write(holder, entry_name, Entry(text), what=what)
        return json.loads(text)

    def once_key(self, name: str) -> str:
        """Return an idempotency key for a step: the job's key and the step's name."""
        holder = self._current()
        return f"{holder.key}:{name}" if holder else name


def _result(entry: Entry, holder: Holder) -> Any:
    text = entry.text if entry.blob is None else taken_back(entry.blob, room=holder.room)
    return json.loads(text or b"null")


def _refuse_too_many(holder: Holder) -> None:
    """Every claim hands out all steps, so they have a limit."""
    if sum(name.startswith("step:") for name in holder.saved) >= MOST_STEPS:
        msg = f"self.once: expected at most {MOST_STEPS} steps in one job, found more; iterate with self.checkpoint.iterate"
        raise ConfigurationError(msg)
