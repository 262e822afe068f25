"""Put the wall clock of a process forward or back, with libfaketime and nothing else of the machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from celery_reliable.testing.servers import debian
from celery_reliable.testing.servers.binaries import Lookup

_PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_INSIDE = "vendor/libfaketime/src/libfaketime.so.1"
_PACKAGE = "libfaketime"
_UNPACKED = "usr/lib/*/faketime/libfaketimeMT.so.1"
_REMEDY = "pip install libfaketime (it needs a C compiler), or apt-get install faketime"


class FakeClock:
    """The clock of one party: its processes look at a file for how far they are off. Monotonic clocks go right."""

    def __init__(self, directory: Path, party: str) -> None:
        """Go right; `set` sets it wrong."""
        self._file = directory / f"{party}.clock"
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Put the clock so far ahead of the true time, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.1f}s\n")
        new.rename(self._file)

    def environment(self) -> Mapping[str, str]:
        """Return what a process needs to look at it."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@cache
def library() -> Path:
    """Find libfaketime: the package from PyPI, the system's, or Debian's package unpacked beside the servers.

    The first under which a process can sleep, else the first: what never sleeps in Python runs under that one, too.
    """
    found = [*_found()]
    if not found:
        message = f"expected libfaketime for processes with wrong clocks, found none; {_REMEDY}"
        raise FileNotFoundError(message)
    return next((path for path in found if not _sleeps_under(path)), found[0])


def check() -> None:
    """Raise FileNotFoundError unless processes with wrong clocks can sleep."""
    if said := _sleeps_under(library()):
        message = f"expected a libfaketime under which a process can sleep, found {library()} ({said}); {_REMEDY}"
        raise FileNotFoundError(message)


def _found() -> Iterator[Path]:
    found = importlib.util.find_spec("libfaketime")
    if found is not None and found.origin is not None and (inside := Path(found.origin).parent / _INSIDE).exists():
        yield inside
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    yield from sorted(_unpacked().glob(_UNPACKED))


def _sleeps_under(path: Path) -> str:
    """Return why a process cannot sleep: Python 3.11 and later say when to wake, which 0.9.10 (Debian 12) gets wrong."""
    environment = {**os.environ, "LD_PRELOAD": str(path), "FAKETIME": "+60s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    command = [sys.executable, "-c", "import time; time.sleep(0.001)"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return run.stderr.strip().rpartition("\n")[2]


def _unpacked() -> Path:
    lookup = Lookup.from_environment()
    root = lookup.cache / debian.release() / _PACKAGE
    if lookup.download:
        with suppress(debian.PackagesUnavailable):
            debian.unpack((_PACKAGE,), into=root, search_path=lookup.search_path)
    return root
