"""Keep signs of life in files that probes read.

A sign of life is one JSON record. A worker writes it, only upon evidence, to a file for probes and to the store for the
fleet; a beat writes such a file, too. `celery_reliable.probe` judges it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from celery_reliable import probe, processes

SHELF = "workers"
"""The shelf of the store's notes that has every worker's sign, named by its owner token."""

FORMAT = f"{probe.FORMAT}1"
_BEGIN = f'{{"format": "{probe.FORMAT}'.encode()
_ABANDONED = 3  # intervals without a new sign
_LONGEST_INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """What tells a process from every other one. Where the system does not say, a field is empty."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        """Describe the calling process."""
        pid = os.getpid()
        place = (socket.gethostname(), processes.boot_id(), processes.pid_namespace())
        return cls(*place, pid, processes.start_time(pid))

    def is_gone(self) -> bool:
        """Tell whether there is proof that it has ended: only from within the same boot and pid namespace."""
        return processes.is_gone(boot=self.boot_id, namespace=self.pid_namespace, pid=self.pid, started=self.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSign:
    """What a worker or beat says of itself.

    ``owner`` is a random token of the process, ``at`` the wall time and ``clock`` the monotonic time of the sign,
    ``interval`` the seconds until the next one. ``waiting`` counts the messages in the worker's queues, None when it did
    not look. ``busy`` counts what runs, by the queue it came from. ``stopped`` are queues that it does not consume because
    of a kill switch. ``runtimes`` has by queue and task how many of its last runs are known, their median and the longest;
    ``ended`` has by queue how many runs ended (well, failed) in the last minute; both are not in files. ``broker`` is the address of its broker, without a password; ``probed``: it writes a file for
    probes, or answers them.

    .. versionadded:: 0.1
    """

    role: str
    node: str
    state: str
    owner: str
    process: Process
    at: float
    clock: float
    interval: float
    queues: tuple[str, ...] = ()
    pool: str = ""
    concurrency: int = 0
    running: int = 0
    received: int = 0
    waiting: int | None = None
    busy: Mapping[str, int] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    runtimes: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    ended: Mapping[str, Sequence[int]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    broker: str = ""
    probed: bool = True

    def to_json(self) -> str:
        """Return one line of JSON that begins with the format."""
        return json.dumps(self.facts()) + "\n"

    def facts(self) -> dict[str, Any]:
        """Return what `celery_reliable.probe` judges."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, text: str | bytes) -> LifeSign:
        """Read what `to_json` wrote, in this or a later version. Raises ValueError that says what is wrong."""
        facts = probe.parsed(text)
        return cls(**{**_known(cls, facts), "process": Process(**_known(Process, facts["process"]))})


class HeartbeatFile:
    """The file of one process: replaced as a whole, so that a reader never sees half a sign.

    It never takes the file of another living process, nor one that holds anything else than a sign of life. Safe for one
    thread.

    .. versionadded:: 0.1
    """

    def __init__(self, path: str | Path) -> None:
        """Take the path; nothing is written yet."""
        self.path = Path(path)
        self._owner: str | None = None
        self._other: tuple[LifeSign, float] | None = None

    def write(self, sign: LifeSign) -> LifeSign | None:
        """Replace the file and return None; or leave it and return the sign of the living process that keeps it.

        A process that is gone keeps nothing; one that cannot be seen keeps its file until it left out three signs.
        Raises OSError when the file cannot be written, or holds something else.
        """
        other = self._keeper(sign)
        if other is not None:
            return other
        _replace(self.path, sign.to_json().encode())
        self._owner = sign.owner
        return None

    def remove(self) -> None:
        """Remove the file, unless another process keeps it by now. May be called twice, and without a write."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        try:
            if read_sign(self.path).owner == owner:
                self.path.unlink(missing_ok=True)
        except (OSError, ValueError):
            return  # it is away, or not ours any more

    def _keeper(self, sign: LifeSign) -> LifeSign | None:
        found = _found(self.path)
        if found is None or found.owner == sign.owner or found.process.is_gone():
            return None
        if self._other is None or self._other[0] != found:
            self._other = (found, sign.clock)
        patience = _ABANDONED * max(sign.interval, min(found.interval, _LONGEST_INTERVAL))
        return None if sign.clock - self._other[1] > patience else found


def read_sign(path: str | Path) -> LifeSign:
    """Read a heartbeat file. Raises OSError, or ValueError that says what it holds instead."""
    return LifeSign.from_json(probe.read(os.fspath(path)))


def _found(path: Path) -> LifeSign | None:
    """Return the sign in a file; None for a missing or empty file and for the rest of a sign. Raises for all else."""
    try:
        raw = probe.read(os.fspath(path))
    except FileNotFoundError:
        return None
    if not raw.strip() or (raw.startswith(_BEGIN) and not raw.endswith(b"}\n")):
        return None
    try:
        return LifeSign.from_json(raw)
    except ValueError as exc:
        raise FileExistsError(errno.EEXIST, f"left as it is: {exc}; name another file", str(path)) from exc


def _replace(path: Path, content: bytes) -> None:
    """Put the content in the file's place, as one step for every reader."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(beside, flags, 0o644), "wb") as file:  # noqa: PTH123  # a descriptor, which follows no link
            file.write(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _known(kind: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this version knows of a record that a later one may have written."""
    names = {item.name for item in fields(kind)}
    known = {name: value for name, value in facts.items() if name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
