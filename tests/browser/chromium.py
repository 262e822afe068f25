"""Drive a headless Chromium over its own pipe: DevTools messages, JSON, a NUL after each.

No port, no websocket, no driver that must fit the browser's version: two file descriptors that Chromium reads and writes
with ``--remote-debugging-pipe``.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL: Final = "no Chromium was found: apt-get install chromium, or name one with CR_TEST_CHROMIUM=/path/to/chrome"
DEADLINE: Final = 30.0
_CHUNK: Final = 1 << 16
# Puts two descriptors where Chromium expects them, 3 to read and 4 to write, and becomes it.
_MOVE: Final = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class ChromiumMissing(Exception):
    """There is no browser; the text says how to get one."""


class PageError(Exception):
    """The browser refused a command, or a script of the page raised."""


def find() -> str:
    """Return the path of a Chromium. Raises `ChromiumMissing`."""
    named = os.environ.get("CR_TEST_CHROMIUM")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        raise ChromiumMissing(INSTALL)
    return found


class Browser:
    """One page of one browser."""

    def __init__(self, *, width: int = 1280, height: int = 800) -> None:
        """Start it, with a profile of its own that goes with it."""
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._session: str | None = None
        self._process, self._to, self._from = _started(find(), profile=self._profile.name, size=f"{width},{height}")
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come meanwhile are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._received()).get("id") != number:
            self._events.append(answer)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        with self.loading():
            self.send("Page.navigate", url=url)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Wait until the page that the block asks for is loaded."""
        self._events.clear()
        yield
        deadline = time.monotonic() + DEADLINE
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            if time.monotonic() > deadline:
                raise PageError(f"no page was loaded within {DEADLINE:g} s, at {self.run('location.href')}")
            self._events.append(self._received())

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(str(answer["exceptionDetails"].get("exception", answer["exceptionDetails"])))
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Poll an expression until it is true; return its value."""
        deadline = time.monotonic() + DEADLINE
        while not (found := self.run(script)):
            if time.monotonic() > deadline:
                raise PageError(f"not within {DEADLINE:g} s: {script}\n{self.run('document.body.innerText')}")
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """Return what a reader of the page sees."""
        return str(self.run("document.body.innerText"))

    def click(self, selector: str) -> None:
        """Click as a mouse does, and wait for the page that comes."""
        with self.loading():
            self.press(selector)

    def press(self, selector: str) -> None:
        """Click as a mouse does, in the middle of the element; no page needs to come."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(() => {{ const b = {where}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def fill(self, selector: str, text: str) -> None:
        """Put the cursor into a field, and type a text in place of what is there."""
        self.run(f"(() => {{ const f = document.querySelector({json.dumps(selector)}); f.focus(); f.select(); }})()")
        self.send("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose in a list."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))")

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Write what is seen as PNG, from the top down to ``height``."""
        size = self.run("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
        shot = self.send(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True, optimizeForSpeed=False
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def _received(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], DEADLINE)
            chunk = os.read(self._from, _CHUNK) if ready else b""
            if not chunk:
                raise PageError(f"Chromium said nothing for {DEADLINE:g} s, or has ended ({self._process.poll()})")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


def _started(path: str, *, profile: str, size: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start Chromium; return it, where to write to it and where to read from it."""
    its_input, to = os.pipe()
    come_from, its_output = os.pipe()
    words = [
        path,
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",  # its own sandbox needs a user namespace, which containers seldom have
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        f"--window-size={size}",
        f"--user-data-dir={profile}",
    ]
    # Popen's own child can only keep the numbers that the pipes have.
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _MOVE, str(its_input), str(its_output), *words],
        pass_fds=(its_input, its_output),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_input)
    os.close(its_output)
    return process, to, come_from
