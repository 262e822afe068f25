"""Keep the progress of a long task, so that the next run goes on where this one stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from celery_reliable.errors import ConfigurationError

_STATE = "state"


class Holder(Protocol):
    """The run whose progress is kept."""

    @property
    def key(self) -> str:
        """The key of the job."""
        ...

    @property
    def saved(self) -> Mapping[str, bytes]:
        """What earlier runs and this one saved."""
        ...

    def save(self, name: str, body: bytes) -> None:
        """Write one entry, fenced. Raises `LeaseLost`."""
        ...


class Checkpoint:
    """Progress and once-only steps of the job that runs now.

    Guarantee: what `save` returned from is what the next run's `load` gives, and a holder that was replaced is refused
    (`LeaseLost`). Kept until the job is done or its letter is discarded. States and results must be JSON. Outside a
    worker (eager, direct call) nothing is kept: `load` gives the default and steps run each time.

    .. versionadded:: 0.1
    """

    __slots__ = ("_current",)

    def __init__(self, current: Callable[[], Holder | None]) -> None:
        """Take a function that returns the present run."""
        self._current = current

    def load(self, default: Any = None) -> Any:
        """Return the state saved last, by this run or an earlier one, or the default."""
        holder = self._current()
        raw = holder.saved.get(_STATE) if holder else None
        return default if raw is None else json.loads(raw)

    def save(self, state: Any) -> None:
        """Keep a state: one round trip. Raises `LeaseLost`, and `ConfigurationError` for a state that JSON cannot carry."""
        holder = self._current()
        if holder is not None:
            holder.save(_STATE, _encoded(state, what="checkpoint"))

    def once(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the kept result of a step, or run it and keep its result."""
        holder = self._current()
        if holder is None:
            return fn(*args, **kwargs)
        kept = holder.saved.get(f"step:{name}")
        if kept is not None:
            return json.loads(kept)
        body = _encoded(fn(*args, **kwargs), what=f"result of step {name!r}")
        holder.save(f"step:{name}", body)
        return json.loads(body)

    def once_key(self, name: str) -> str:
        """Return an idempotency key for a step: the job's key and the step's name."""
        holder = self._current()
        return f"{holder.key}:{name}" if holder else name


def _encoded(value: Any, *, what: str) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{what}: expected plain data, found {type(value).__qualname__} ({exc}); keep numbers, texts, lists and dicts"
        raise ConfigurationError(msg) from exc
