"""Keep numbers that are added to, in each process of a worker, and sum them up for whoever asks.

A pool child counts what its tasks do, and only its parent is scraped. Each process has a file of its own that it maps into
memory, so that counting is a write to memory, takes no lock of another process and survives the death of its child. The
sum is read from all files; those of dead children are added to the reader's own and removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

Name = tuple[str, ...]

_BETWEEN: Final = "\x1f"


class Cells:
    """Numbers by name. Before `share` they are kept in the process alone, and a child begins with none.

    Safe for threads and for a fork.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._directory: Path | None = None
        self._owner = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._values: dict[Name, float] = {}
        self._names: dict[Name, str] = {}
        self._file: Any = None  # MmapedDict, which is imported where it is used

    def share(self) -> None:
        """Let the children that are forked from now on count into the same sum. Call it before they are."""
        if self._directory is None:
            self._directory, self._owner = Path(tempfile.mkdtemp(prefix="celery-reliable-metrics-")), os.getpid()

    @property
    def is_shared_by_another(self) -> bool:
        """Whether this process counts into the sum of another one, whose child it is."""
        return self._directory is not None and self._owner != os.getpid()

    def close(self) -> None:
        """Remove the files, in the process that shared them. May be called twice."""
        directory, self._directory = self._directory, None
        if directory is not None and self._owner == os.getpid():
            self._file = None
            shutil.rmtree(directory, ignore_errors=True)

    def add(self, *changes: tuple[Name, float]) -> None:
        """Add to numbers."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            for name, amount in changes:
                self._values[name] = value = self._values.get(name, 0.0) + amount
                if self._directory is not None:
                    self._write(self._directory, name, value)

    def _write(self, directory: Path, name: Name, value: float) -> None:
        if self._file is None:
            self._open(directory)
        text = self._names.get(name)
        if text is None:
            text = self._names[name] = _BETWEEN.join(name)
        self._file.write_value(text, value, 0.0)

    def _open(self, directory: Path) -> None:
        from prometheus_client.mmap_dict import MmapedDict  # noqa: PLC0415  # an extra

        made: Any = MmapedDict  # untyped
        self._file = made(str(directory / f"{self._pid}-{secrets.token_hex(4)}.db"))
        for name, value in self._values.items():  # what was counted before it was shared
            self._file.write_value(_BETWEEN.join(name), value, 0.0)

    def total(self) -> dict[Name, float]:
        """Return the sums over all processes, dead ones included."""
        if self._directory is None or self.is_shared_by_another:
            return dict(self._values)
        self._take_over(self._directory)
        sums: Counter[Name] = Counter()
        for path in self._directory.glob("*.db"):
            sums.update(_read(path))
        return dict(sums)

    def _take_over(self, directory: Path) -> None:
        """Add what dead processes have counted to our own, and remove their files."""
        for path in directory.glob("*.db"):
            pid = int(path.name.partition("-")[0])
            if pid != self._pid and not _lives(pid):
                found = _read(path)
                path.unlink()
                self.add(*found.items())


def _read(path: Path) -> dict[Name, float]:
    from prometheus_client.mmap_dict import MmapedDict  # noqa: PLC0415  # an extra

    try:
        return {tuple(text.split(_BETWEEN)): value for text, value, *_ in _values(MmapedDict, path)}
    except (OSError, ValueError, IndexError):
        return {}  # being made at this moment


def _values(kind: Any, path: Path) -> Iterator[Any]:
    yield from kind.read_all_values_from_file(str(path))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
