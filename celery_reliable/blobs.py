"""Keep large payloads aside, in a folder that fsspec can reach.

A blob is written once, under a name of its own, and never changed. Its name begins with the day after which nobody can
refer to it any more, so a sweep needs no look at the store and two projects that share a folder leave each other's blobs
alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from celery_reliable.errors import BlobLost, ConfigurationError, Transient
from celery_reliable.settings import mask_secrets

_DAY_FOLDER = re.compile(r"\d{4}-\d\d-\d\d")
_PATH = re.compile(r"[a-z]+/\d{4}-\d\d-\d\d/[0-9a-f]+")
_DAY = 86_400.0
_LOCAL = ("file", "local")
MARK = b"!blob "
"""Begins a value that is a `BlobRef`."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Where a blob is, below the folder of the project, and what it must be."""

    path: str
    sha256: str
    size: int

    def to_bytes(self) -> bytes:
        """Return what stands for the blob in a store."""
        return MARK + json.dumps([self.path, self.sha256, self.size], separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> BlobRef:
        """Read what `to_bytes` made."""
        return cls(*json.loads(raw.removeprefix(MARK)))


class Cipher(Protocol):
    """What keeps a folder's contents from whoever can read it, such as ``cryptography.fernet.MultiFernet``."""

    def encrypt(self, data: bytes, /) -> bytes:
        """Return what is written."""
        ...

    def decrypt(self, token: bytes, /) -> bytes:
        """Return what `encrypt` took; raise anything for what it did not make."""
        ...


class Blobs:
    """The blobs of one project, in any folder that fsspec can reach.

    Guarantee: what `get` returns is, by its SHA-256, what `put` took. Raises `BlobLost` for a blob that is missing or was
    altered, `Transient` when the folder cannot be reached.
    """

    __slots__ = ("_cipher", "_now", "_url")

    def __init__(self, url: str, *, now: Callable[[], int], cipher: Cipher | None = None) -> None:
        """Take the folder's URL and the server's clock (microseconds). Nothing is imported or reached before it is used."""
        self._url = url
        self._now = now
        self._cipher = cipher

    def check(self) -> None:
        """Raise `ConfigurationError` when no blob could ever be kept: fsspec or the driver of the URL is missing."""
        fsspec = _fsspec()
        protocol = fsspec.core.split_protocol(self._url)[0] or "file"
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as exc:
            msg = (
                f"reliable_blob_url: expected a folder that fsspec can reach, found protocol {protocol!r} ({exc}); "
                "install its driver, or correct the URL"
            )
            raise ConfigurationError(msg) from exc

    def put(self, body: bytes, *, kind: str, ttl: float) -> BlobRef:
        """Write a blob that is kept for ``ttl`` seconds at least; ``kind`` is a lower-case word."""
        body = self._cipher.encrypt(body) if self._cipher else body
        ref = BlobRef(f"{kind}/{self._day(ttl)}/{secrets.token_hex(16)}", hashlib.sha256(body).hexdigest(), len(body))
        self._reach("written", lambda filesystem, root: filesystem.pipe_file(f"{root}/{ref.path}", body))
        return ref

    def get(self, ref: BlobRef) -> bytes:
        """Return what was put. Raises `BlobLost` and `Transient`."""
        if not _PATH.fullmatch(ref.path):
            msg = f"blob {ref.path!r}: expected the name of a blob, found another path; it was not read"
            raise BlobLost(msg)
        try:
            body: bytes = self._reach("read", lambda filesystem, root: filesystem.cat_file(f"{root}/{ref.path}"))
        except FileNotFoundError as exc:
            msg = f"blob {ref.path}: expected {ref.size} bytes below reliable_blob_url, found nothing; {_REMEDY}"
            raise BlobLost(msg) from exc
        if len(body) != ref.size or hashlib.sha256(body).hexdigest() != ref.sha256:
            msg = f"blob {ref.path}: expected {ref.size} bytes with SHA-256 {ref.sha256}, found {len(body)} others; {_REMEDY}"
            raise BlobLost(msg)
        return self._decrypted(body, ref)

    def _decrypted(self, body: bytes, ref: BlobRef) -> bytes:
        if self._cipher is None:
            return body
        try:
            return self._cipher.decrypt(body)
        except Exception as exc:  # a project's cipher has errors of its own
            msg = (
                f"blob {ref.path}: expected what reliable_blob_cipher can decrypt, found other bytes ({type(exc).__name__}); "
                "give it the key with which the blob was written"
            )
            raise BlobLost(msg) from exc

    def lasts(self, ref: BlobRef, *, ttl: float) -> bool:
        """Tell whether a blob is kept for so many seconds from now."""
        return ref.path.split("/")[1] >= self._day(ttl)

    def remove(self, ref: BlobRef) -> None:
        """Remove a blob that nobody refers to any more. Best effort: the sweep takes what stays."""
        try:
            self._reach("removed", lambda filesystem, root: filesystem.rm_file(f"{root}/{ref.path}"))
        except (FileNotFoundError, Transient):
            return

    def sweep(self, *, limit: int = 1000) -> int:
        """Remove up to ``limit`` blobs whose last day was over a day ago; returns how many. Raises `Transient`."""
        return int(self._reach("swept", lambda filesystem, root: _sweep(filesystem, root, self._day(-_DAY), limit)))

    def _day(self, ttl: float) -> str:
        return datetime.fromtimestamp(self._now() / 1e6 + ttl, timezone.utc).date().isoformat()

    def _reach(self, what: str, action: Callable[[Any, str], Any]) -> Any:  # Any: fsspec is not typed
        """Act on the file system, which fsspec itself keeps from call to call, one for each process and thread."""
        fsspec = _fsspec()
        protocol = fsspec.core.split_protocol(self._url)[0] or "file"
        options = {"auto_mkdir": True} if protocol in _LOCAL else {}
        try:
            filesystem, root = fsspec.core.url_to_fs(self._url, **options)
            return action(filesystem, root.rstrip("/"))
        except FileNotFoundError:
            raise
        except Exception as exc:  # every driver has errors of its own, and most of them pass
            msg = f"a blob could not be {what} below reliable_blob_url ({type(exc).__name__}: {mask_secrets(str(exc))}); trying again may help"
            raise Transient(msg) from exc


_REMEDY = "somebody removed or changed it; bring it back, or submit the work again"


def _fsspec() -> Any:
    try:
        import fsspec  # noqa: PLC0415  # only projects with a blob folder have it
        import fsspec.core  # noqa: PLC0415
    except ImportError as exc:
        msg = "reliable_blob_url needs fsspec, which is not installed; install celery-reliable[claim-check]"
        raise ConfigurationError(msg) from exc
    return fsspec


def _sweep(filesystem: Any, root: str, today: str, limit: int) -> int:
    removed = 0
    for folder in _overdue(filesystem, root, today):
        removed += _empty(filesystem, folder, limit - removed)
        if removed >= limit:
            break
    return removed


def _overdue(filesystem: Any, root: str, today: str) -> Iterator[str]:
    """Iterate over the folders of days before ``today``."""
    filesystem.invalidate_cache()
    for kind in _names(filesystem, root):
        days = (path for path in _names(filesystem, kind) if _DAY_FOLDER.fullmatch(path.rpartition("/")[2]))
        yield from sorted(path for path in days if path.rpartition("/")[2] < today)


def _names(filesystem: Any, folder: str) -> list[str]:
    try:
        return [
            str(entry["name"]).rstrip("/")
            for entry in filesystem.ls(folder, detail=True)
            if entry["type"] == "directory"
        ]
    except FileNotFoundError:
        return []


def _empty(filesystem: Any, folder: str, limit: int) -> int:
    blobs = [entry["name"] for entry in filesystem.ls(folder, detail=True) if entry["type"] == "file"]
    for path in blobs[:limit]:
        with suppress(FileNotFoundError):  # another worker sweeps, too
            filesystem.rm_file(path)
    if len(blobs) <= limit:
        _drop_folder(filesystem, folder)
    return min(len(blobs), limit)


def _drop_folder(filesystem: Any, folder: str) -> None:
    """Remove an empty folder, where there are such things."""
    try:
        filesystem.rmdir(folder)
    except Exception:  # noqa: BLE001  # it is of no use and does no harm, and drivers disagree about the error
        return
