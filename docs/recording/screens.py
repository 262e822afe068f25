"""Record every screen of the command line: ``python -m docs.recording.screens``, each as a picture and as text."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.text import Text

from celery_reliable.cli.letters import who
from docs.recording.fleet import ROOT, Fleet, custom, running, submit, wait_until

FOLDER: Final = ROOT / "docs" / "_static" / "screens"
_WIDTH: Final = 108
_ORDERS: Final = 90
_DEAD: Final = 7  # an order whose payment failed
_LETTERS: Final = 12  # of those orders, at least

_SVG: Final = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, arial, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def main() -> None:
    """Let the shop have its day, and record what an operator sees of it."""
    FOLDER.mkdir(exist_ok=True)
    with running() as fleet:
        for number in range(1, _ORDERS):
            submit(fleet, number)
        wait_until(lambda: _json(fleet, "status")["deaths"]["counts"].get("kept", 0) >= _LETTERS)
        wait_until(lambda: _json(fleet, "status")["leader"])
        group = _json(fleet, "dlq", "groups")
        letter = _json(fleet, "dlq", "list")
        _record(fleet, "dlq-list", "dlq", "list", "--limit", "8")
        _record(fleet, "dlq-show", "dlq", "show", letter["id"])
        _record(fleet, "dlq-stats", "dlq", "stats")
        _record(fleet, "dlq-groups", "dlq", "groups")
        _record(fleet, "dlq-dry-run", "dlq", "replay", "--group", group["group"], "--dry-run")
        fleet.app.tasks["shop.charge"].delay(_DEAD, 12.5)  # its customer orders again: that letter is out of date
        _run(fleet, "breaker", "open", "payments")
        _record(fleet, "dlq-dry-run-of-many", "dlq", "replay", "--all", "--dry-run")
        _run(fleet, "breaker", "close", "payments")
        _record(fleet, "dlq-replay", "dlq", "replay", "--group", group["group"], "--canary", "3")
        _record(fleet, "dlq-runs", "dlq", "runs")
        _record(fleet, "explain", "explain", letter["task_id"])
        _record(fleet, "beat", "beat")
        _record(fleet, "beat-why", "beat", "why", "nightly")
        wait_until(lambda: "overlap: " in _run(fleet, "beat", "why", "digest").lower())
        _record(fleet, "beat-why-skipped", "beat", "why", "digest")
        _run(fleet, "breaker", "open", "payments")
        _record(fleet, "breaker-list", "breaker", "list")
        _run(fleet, "kill-switch", "stop", "reports", "--for", "15m")
        _record(fleet, "kill-switch-list", "kill-switch", "list")
        _run(fleet, "kill-switch", "start", "reports")
        _record_compat(fleet)
        _record(fleet, "check-live", "check", "--live")
        with custom(fleet, orders=_ORDERS, a_second=60):
            wait_until(lambda: _json(fleet, "status")["running"])  # a fleet that works
            _record(fleet, "status", "status")
            with _frozen(fleet, "shop@web-2"):
                _record(fleet, "status-sick", "status")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "Europe/Berlin"}
    _keep("check", "celery -A shop reliable check", _seen(environment, "docs.recording.plain", "check"))


@contextmanager
def _frozen(fleet: Fleet, node: str) -> Iterator[None]:
    """Let a worker stand still during a block, from when the fleet takes it for silent."""
    [pid] = [one["process"]["pid"] for one in _json(fleet, "status")["workers"] if one["node"] == node]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "silent" in {one["state"] for one in _json(fleet, "status")["workers"]})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _record_compat(fleet: Fleet) -> None:
    """Show what a deploy would break that takes a task away."""
    known = json.loads(_run(fleet, "compat", "snapshot"))
    known["tasks"]["shop.refund"] = {"parameters": [], "version": 1}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as snapshot:
        snapshot.write(json.dumps(known))
        snapshot.flush()
        seen = _seen(fleet.environment, "docs.recording.shop", "compat", "check", snapshot.name)
    _keep("compat", "celery -A shop reliable compat check payloads.json", seen.replace(snapshot.name, "payloads.json"))


def _record(fleet: Fleet, name: str, *words: str) -> None:
    title = " ".join(["celery -A shop reliable", *words])
    _keep(name, title, _seen(fleet.environment, "docs.recording.shop", *words))


def _seen(environment: dict[str, str], app: str, *words: str) -> str:
    """Run a command on a terminal of its own, and return what it writes there."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, _WIDTH, 0, 0))
    command = (sys.executable, "-m", "celery", "-A", app, "reliable", *words)
    colours = {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with subprocess.Popen(command, cwd=ROOT, env=colours, stdout=its, stderr=subprocess.DEVNULL, stdin=its) as process:
        os.close(its)
        text = b"".join(iter(lambda: _read(mine), b""))
        process.wait(60)
    os.close(mine)
    return text.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # its other end is closed
        return b""


def _keep(name: str, title: str, seen: str) -> None:
    """Write the picture, and the text beside it."""
    text = Text.from_ansi(_said_neutrally(seen).strip("\n"))
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    svg = console.export_svg(title=title, unique_id=name, code_format=_SVG)
    (FOLDER / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    (FOLDER / f"{name}.txt").write_text("\n".join(line.rstrip() for line in text.plain.splitlines()) + "\n")
    sys.stderr.write(f"{name}\n")


def _said_neutrally(seen: str) -> str:
    """Leave out what tells of this machine: users, folders, ports."""
    seen = re.sub(r"docs\.recording\.\w+", "shop", seen)
    seen = seen.replace(f"{ROOT}/docs/recording", "/srv/shop")
    seen = seen.replace(str(ROOT), "/srv/venv")
    seen = re.sub(rf"{re.escape(who())}", lambda found: f"{'ann@ops-1':<{len(found[0])}}"[: len(found[0])], seen)
    return re.sub(r"127\.0\.0\.1:\d+", "redis:6379", seen)


def _run(fleet: Fleet, *words: str) -> str:
    command = (sys.executable, "-m", "celery", "-A", "docs.recording.shop", "reliable", *words)
    done = subprocess.run(command, cwd=ROOT, env=fleet.environment, capture_output=True, text=True, check=True)
    return done.stdout


def _json(fleet: Fleet, *words: str) -> dict:
    time.sleep(0.2)
    lines = _run(fleet, *words, "--json").splitlines()
    return json.loads(lines[0]) if lines else {}


if __name__ == "__main__":
    main()
