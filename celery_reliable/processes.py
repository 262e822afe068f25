"""Tell processes apart, and whether one is gone. Only ``os``, so that the probe starts in milliseconds.

Process ids are counted anew in every container and after every boot. So a process is told by the boot, the pid namespace,
its id and its start time, in the kernel's own words. Where the system does not name one of them it is empty.
"""

from __future__ import annotations

import os

_START_TIME = 19  # its place behind the command name in /proc/PID/stat
_DEAD = ("Z", "X")


def boot_id() -> str:
    """Return what no other boot of any host has."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def pid_namespace() -> str:
    """Return the name space in which this process's id counts: a container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # pathlib costs the probe 20 ms
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return when a process began, in ticks since the boot."""
    return _status(pid)[1]


def resident_memory(pid: int) -> int | None:
    """Return how many bytes of memory a process has in use; None when that cannot be seen."""
    pages = _text(f"/proc/{pid}/statm").split()[1:2]
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else None


def is_gone(*, boot: str, namespace: str, pid: int, started: str) -> bool:
    """Tell whether there is proof that a process has ended.

    Only the same boot and the same pid namespace can prove it; for all others the answer is no.
    """
    if not boot or not namespace or (boot, namespace) != (boot_id(), pid_namespace()):
        return False
    state, began = _status(pid)
    if not state:  # hidden from us, or gone
        return not _answers(pid)
    return state in _DEAD or began != started


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _status(pid: int) -> tuple[str, str]:
    """Return state and start time of a process; empty when it cannot be seen."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[_START_TIME]) if len(fields) > _START_TIME else ("", "")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # likewise
            return file.read()
    except OSError:
        return ""
