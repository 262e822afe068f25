"""Signal a process together with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PS = ("ps", "-A", "-o", "pid=,ppid=,pgid=,state=")

# Reads from a pipe whose other end only our process holds: when we die, in whatever way, the read ends and the process
# group is killed with its files.
REAPER = 'cat >/dev/null; kill -s KILL -- "-$1" 2>/dev/null; rm -rf -- "$2"'


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the process table."""

    pid: int
    parent: int
    group: int
    state: str


def family(pid: int) -> list[int]:
    """List `pid`, the living members of its process group and all their living descendants, parents first.

    The group alone is not enough: PostgreSQL puts every backend into a session of its own.
    """
    table = process_table()
    members = [entry.pid for entry in table if pid in (entry.pid, entry.group)]
    for member in members:
        members += [entry.pid for entry in table if entry.parent == member and entry.pid not in members]
    return members


def children(pid: int) -> list[int]:
    """List the living direct children of `pid`, oldest first."""
    return sorted(entry.pid for entry in process_table() if entry.parent == pid)


def signal_family(pid: int, signum: signal.Signals) -> None:
    """Send `signum` to the whole family of `pid`; members that are gone already are passed over.

    The head gets it first and the table is read after that, so a stopped or killed head starts no further members.
    """
    _refuse_ourselves(pid, signum)
    members = family(pid)
    send(pid, signum)
    for member in dict.fromkeys([*members, *family(pid)]):
        send(member, signum)


def send(pid: int, signum: signal.Signals) -> None:
    """Send `signum` to one process, or nothing if it is gone. Refuses our own process and what is no single process."""
    _refuse_ourselves(pid, signum)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _refuse_ourselves(pid: int, signum: signal.Signals) -> None:
    if pid <= 1 or pid == os.getpid():
        message = f"refused to send {signum.name} to {pid}: expected another process than our own, {os.getpid()}"
        raise ValueError(message)


def send_to_group(leader: int, signum: signal.Signals) -> None:
    """Send `signum` to the group that `leader` leads, as a terminal does. Refuses our own group."""
    if leader <= 1 or leader == os.getpgrp():
        message = f"refused to send {signum.name} to group {leader}: expected another one than our own, {os.getpgrp()}"
        raise ValueError(message)
    os.killpg(leader, signum)


def reap_after_us(pid: int, *, directory: Path) -> subprocess.Popen[bytes]:
    """Have the group that `pid` leads killed, and its directory deleted, when our process ends in whatever way.

    Kill the process that is returned to call it off.
    """
    return subprocess.Popen(
        ("/bin/sh", "-c", REAPER, "reaper", str(pid), str(directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=os.sep,
        start_new_session=True,
    )


def process_table() -> list[Entry]:
    """Read the table of living processes (zombies left out), from /proc or else from ps."""
    rows = _rows_of_proc() if (PROC / "self/stat").exists() else _rows_of_ps()
    return [entry for entry in rows if entry.state not in ("Z", "X")]


def _rows_of_proc() -> list[Entry]:
    return [row for path in PROC.glob("[0-9]*/stat") if (row := _row_of_proc(path)) is not None]


def _row_of_proc(path: Path) -> Entry | None:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None  # ended between the listing and the read
    # The command name stands in parentheses and may itself contain spaces and parentheses.
    state, parent, group = text.rpartition(")")[2].split()[:3]
    return Entry(int(path.parent.name), int(parent), int(group), state)


def _rows_of_ps() -> list[Entry]:
    listing = subprocess.run(PS, check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in listing.splitlines())
    return [Entry(int(pid), int(parent), int(group), state[0]) for pid, parent, group, state in rows]
