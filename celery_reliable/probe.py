"""Judge a sign of life, for Kubernetes, Docker and scripts: ``python -m celery_reliable.probe FILE``.

Of the standard library it imports only what costs next to nothing (no argparse, no dataclasses): a probe runs every few
seconds beside the worker, and most of its time is Python's own start.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time

from celery_reliable.processes import boot_id, is_gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FORMAT = "celery_reliable.heartbeat/"
MAX_AGE = 30.0

READY = ("idle", "consuming", "busy", "leading", "standby")
"""States in which a process does its work: it passes liveness and readiness."""

DEAD = ("stuck",)
"""States that only a restart ends: neither alive nor ready. All others are alive and not ready."""

OK, NOT_ALIVE, NOT_READY, NO_SIGN, USAGE = 0, 1, 3, 4, 64

HELP = f"""\
usage: python -m celery_reliable.probe FILE [--max-age SECONDS] [--ready]

Judge the file named by reliable_heartbeat_file, and print why.

  --max-age SECONDS  age of the last sign above which the process is not alive
                     (default {MAX_AGE:g}, and three times reliable_heartbeat_interval if that is more)
  --ready            ask whether it takes work now, not only whether it lives

exit codes:
  0   alive; with --ready: takes work
  1   not alive: the sign is too old, its process is gone, or it is stuck; a restart is the remedy
  3   with --ready: alive, takes no work now: it drains, or its broker or store is away; a restart cures nothing
  4   no sign of life: the file is missing, empty, cut off or something else
  64  wrong arguments
"""
_LARGEST = 65_536
_MISSED = 3  # signs
_EARLY = 1.0  # seconds that a sign may lie ahead of its reader


class UsageError(Exception):
    """The arguments are wrong."""


def main(arguments: Sequence[str]) -> int:
    """Print one line and return the exit code."""
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(HELP)
        return OK
    try:
        path, max_age, ready = _parsed(list(arguments))
    except UsageError as exc:
        sys.stderr.write(f"{HELP}\n{exc}\n")
        return USAGE
    code, text = _probed(path, max_age=max_age, ready=ready)
    sys.stdout.write(f"{text}\n")
    return code


def _probed(path: str, *, max_age: float | None, ready: bool) -> tuple[int, str]:
    try:
        facts = parsed(read(path))
    except (OSError, ValueError) as exc:
        return NO_SIGN, f"no sign of life in {path}: {exc}"
    alive, takes_work, why = judge(facts, clock=time.monotonic(), max_age=max_age)
    if not alive:
        return NOT_ALIVE, f"not alive: {why}"
    return (NOT_READY, f"not ready: {why}") if ready and not takes_work else (OK, f"ok: {why}")


def judge(facts: Mapping[str, Any], *, clock: float, max_age: float | None = None) -> tuple[bool, bool, str]:
    """Return whether a sign proves life, whether its process takes work, and why.

    ``clock`` is the reader's monotonic time, which all processes of one boot share and no change of the date moves.
    """
    process, age = facts["process"], clock - facts["clock"]
    limit = max_age or max(MAX_AGE, _MISSED * facts["interval"])
    name = f"{facts['role']} {facts['node']} is {facts['state']}"
    if process["boot_id"] != boot_id():
        return False, False, f"{name}: written before this boot, or on another host"
    if _is_gone(process):
        return False, False, f"{name}: its process {process['pid']} is gone"
    if not -_EARLY <= age <= limit:
        return False, False, f"{name}: the sign is {age:.1f} s old, expected at most {limit:g}"
    return facts["state"] not in DEAD, facts["state"] in READY, f"{name}, {max(age, 0.0):.1f} s ago"


def _is_gone(process: Mapping[str, Any]) -> bool:
    place = {"boot": process["boot_id"], "namespace": process["pid_namespace"]}
    return is_gone(**place, pid=process["pid"], started=process["started"])


def read(path: str) -> bytes:
    """Read a regular file, and nothing that could block or never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # pathlib costs 20 ms
        raise OSError("expected a regular file, found something else")
    with open(path, "rb") as file:  # noqa: PTH123  # likewise
        return file.read(_LARGEST)


def parsed(raw: bytes | str) -> dict[str, Any]:
    """Return the facts of a sign of life, of this or a later version. Raises ValueError that says what is wrong."""
    if not raw.strip():
        raise ValueError("it is empty")
    try:
        facts = json.loads(raw)
        _check(facts, facts["process"])
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"expected {FORMAT}1 in JSON, found something else ({exc!r})") from exc
    return dict(facts)


def _check(facts: Mapping[str, Any], process: Mapping[str, Any]) -> None:
    texts = [facts[name] for name in ("format", "role", "node", "state", "owner")]
    texts += [process[name] for name in ("host", "boot_id", "pid_namespace", "started")]
    numbers = [facts["at"], facts["clock"], facts["interval"], process["pid"]]
    if not all(isinstance(one, str) for one in texts) or not texts[0].startswith(FORMAT):
        raise ValueError("no sign of life")
    if not all(isinstance(one, (int, float)) for one in numbers) or not isinstance(process["pid"], int):
        raise ValueError("times and pid must be numbers")


def _parsed(arguments: list[str]) -> tuple[str, float | None, bool]:
    ready = "--ready" in arguments
    rest, max_age = _taken_max_age([argument for argument in arguments if argument != "--ready"])
    if len(rest) != 1 or rest[0].startswith("-"):
        raise UsageError(f"expected one FILE, found {' '.join(rest) or 'none'}")
    return rest[0], max_age, ready


def _taken_max_age(arguments: list[str]) -> tuple[list[str], float | None]:
    words = [word for argument in arguments for word in argument.split("=", 1 if argument.startswith("--") else 0)]
    if "--max-age" not in words:
        return arguments, None
    place = words.index("--max-age")
    given = words[place + 1] if len(words) > place + 1 else ""
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:  # not a number is no age, either
        raise UsageError(f"expected seconds above 0 behind --max-age, found {given or 'nothing'}")
    return words[:place] + words[place + 2 :], seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
