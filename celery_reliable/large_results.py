"""Bring back a large result of which the result backend has a reference.

A worker stores a `KeptResult` where the result would be. It is a type of its own to kombu's JSON, registered where
``reliable_blob_url`` is set: a process that cannot bring the result back refuses to decode it, and nobody takes the
reference for the result. What is kept aside is read when it is asked for, not with each look at a state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils import json as kombu_json

from celery_reliable import internals
from celery_reliable.blobs import BlobRef
from celery_reliable.errors import Transient
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.blobs import Blobs

MARKER = "large result of celery_reliable (its reader needs reliable_blob_url and a wired app)"
"""What kombu calls the type. It is in the error of a process that does not know it, so it says what to do."""

_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between tries to reach the folder: a chord that cannot be joined fails for good."""
_FOREVER = 100 * 365 * 86_400.0  # seconds: what does not expire in the backend is not swept either
_READS = "reliable_reads_kept_results"


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result that is kept aside."""

    ref: BlobRef

    def to_json(self) -> list[Any]:
        """Return what stands for it in a result backend, some 200 bytes."""
        return list(astuple(self.ref))

    @classmethod
    def from_json(cls, found: Any) -> KeptResult:
        """Read what `to_json` made. Raises ValueError on anything else."""
        path, sha256, size = found
        return cls(BlobRef(str(path), str(sha256), int(size)))


def prepare(app: Celery, backend: Any, *, pauses: Sequence[float] = _PAUSES) -> None:  # Any: backends are not typed
    """Have a new result backend bring back large results. One with another serializer than JSON keeps them whole."""
    if backend.serializer != "json":
        return
    kombu_json.register_type(KeptResult, MARKER, KeptResult.to_json, KeptResult.from_json)
    internals.change_results(backend, partial(_lazy, partial(_whole, app, pauses=pauses)))
    setattr(backend, _READS, True)


def life(backend: Any) -> float:
    """Return for how many seconds a backend may keep a reference; 0: it takes none."""
    if not getattr(backend, _READS, False):
        return 0.0
    return float(backend.expires or _FOREVER)


def reference(backend: Any, ref: BlobRef | None, *, blobs: Blobs | None) -> KeptResult | None:
    """Return what a backend is to store for a result that is kept aside; None: the result itself."""
    lives = life(backend)
    if ref is None or blobs is None or not lives or not blobs.lasts(ref, ttl=lives):
        return None
    return KeptResult(ref)


class _Meta(dict[str, Any]):
    """What a backend knows of a task; its large result is read when it is asked for."""

    def __init__(self, known: Mapping[str, Any], whole: Callable[[KeptResult], Any]) -> None:
        """Take what is known, and what reads a result."""
        super().__init__(known)
        self._whole = whole

    def __getitem__(self, name: str) -> Any:
        """Return what stands under a name. Raises what reading raises."""
        value = super().__getitem__(name)
        if isinstance(value, KeptResult):
            value = self[name] = self._whole(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return what stands under a name."""
        try:
            return self[name]
        except KeyError:
            return default


def _lazy(whole: Callable[[KeptResult], Any], meta: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(meta, _Meta) or not isinstance(meta.get("result"), KeptResult):
        return meta
    return _Meta(meta, whole)


def _whole(app: Celery, kept: KeptResult, *, pauses: Sequence[float]) -> Any:
    """Read a result that is kept aside. Raises `BlobLost`, `ConfigurationError`, and in the end `Transient`."""
    runtime = runtime_of(app)
    for pause in pauses:
        try:
            return kombu_json.loads(runtime.blob(kept.ref))
        except Transient:
            time.sleep(pause)
    return kombu_json.loads(runtime.blob(kept.ref))
