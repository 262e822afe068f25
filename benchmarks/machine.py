"""Read from /proc who used the processors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING = 3, 4  # columns of the first line of /proc/stat


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU since the start: of each process asked for, of everybody, and all there was to have."""

    processes: tuple[float, ...]
    everybody: float
    capacity: float

    def foreign_since(self, before: Usage) -> float:
        """Return the share of the machine that other processes used meanwhile, 0 to 1."""
        busy = self.everybody - before.everybody
        ours = sum(self.processes) - sum(before.processes)
        return max(busy - ours, 0.0) / max(self.capacity - before.capacity, 1e-9)


def usage(pids: Iterable[int]) -> Usage:
    """Read it now."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    total = sum(fields)
    return Usage(tuple(map(_cpu, pids)), (total - fields[_IDLE] - fields[_WAITING]) / _TICKS, total / _TICKS)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> float:
    """Return the megabytes of a process, pages shared with n others counted as one n-th (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    msg = f"/proc/{pid}/smaps_rollup has no line Pss; Linux 4.14 or later is needed"
    raise OSError(msg)
