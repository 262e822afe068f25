"""The examples in README and documentation are run as a reader runs them, on a real Redis."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import send_to_group
from tests.integration.workers import ROOT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.workers import Workers

WRITTEN_URL = "redis://localhost:6379/0"
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.py)\n")

# Runs one example after the other in one namespace, as if typed into `python`. After each, the settings of every app
# that the examples made must be valid and name a store that can be opened.
PYTHON = """
import json, sys
from celery._state import _get_active_apps
from celery_reliable.runtime import forget_runtime, runtime_of

namespace = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "example", "exec"), namespace)
    for app in _get_active_apps():
        if app.main != "default":
            forget_runtime(app)
            runtime_of(app)
    print("<done>", flush=True)
"""


class Reader:
    """Somebody who follows a page: saves its files, types its examples into one `python`, runs its commands."""

    def __init__(self, page: Path, *, folder: Path, redis_url: str) -> None:
        """Save the files in a folder and start `python` there."""
        blocks: list[tuple[str, str]] = BLOCK.findall(page.read_text("utf-8").replace(WRITTEN_URL, redis_url))
        python = [body for language, body in blocks if language == "python"]
        self.folder = folder
        self.files = [self._saved(body, name=found[1]) for body in python if (found := FILE.match(body))]
        self.examples = [body for body in python if not FILE.match(body)]
        self.commands = [line for language, body in blocks if language == "sh" for line in body.splitlines()]
        self.outputs = [body for language, body in blocks if language == "text"]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "COLUMNS": "100"}
        pipe = subprocess.PIPE
        self._python = subprocess.Popen(
            [sys.executable, "-c", PYTHON],
            cwd=folder,
            env=self.environment,
            text=True,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    def _saved(self, body: str, *, name: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(body, "utf-8")
        return name

    def type(self, example: str) -> str:
        """Run an example and return what it printed. Fails with its traceback."""
        assert self._python.stdin
        assert self._python.stdout
        self._python.stdin.write(json.dumps(example) + "\n")
        self._python.stdin.flush()
        printed = ""
        for line in self._python.stdout:
            if line == "<done>\n":
                return printed
            printed += line
        pytest.fail(f"the example failed:\n{example}\n{self._python.communicate()[1]}")

    def run(self, command: str) -> str:
        """Run a `celery` command and return what it printed."""
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        """End `python`."""
        self._python.kill()
        self._python.communicate()


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Reader]:
    """A reader of the page that the test is about."""
    folder = tmp_path / "project"
    folder.mkdir()
    found = Reader(request.param, folder=folder, redis_url=redis_url)
    yield found
    found.close()


def has_python(page: Path) -> bool:
    """Tell whether a page has anything to run."""
    return "```python" in page.read_text("utf-8")


@pytest.mark.parametrize(
    "reader", [page for page in PAGES if has_python(page)], indirect=True, ids=lambda page: page.stem
)
def test_the_examples_of_a_page_run(reader: Reader) -> None:
    """Every example runs, its assertions hold, every file can be imported, every setting is valid."""
    for example in reader.examples:
        reader.type(example)

    for name in reader.files:
        reader.type(f"import {name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}")


@pytest.mark.parametrize("reader", [TUTORIAL], indirect=True, ids=["tutorial"])
def test_the_tutorial_ends_as_it_says(reader: Reader, workers: Workers) -> None:
    """From a plain project that charges twice to the report that goes on in another worker, with what is printed on the way."""
    plainly, twice, mismatch, hopeless, repaired, ask, rendered = reader.examples
    list_letters, replay = [command for command in reader.commands if " reliable " in command]
    listing, replayed = reader.outputs
    begin = {"cwd": reader.folder, "env": reader.environment, "concurrency": 2}

    plain = workers.start("plain", **begin)  # type: ignore[arg-type]  # a dict of what `start` takes
    reader.type(plainly)
    assert plain.logs().count("charging 990 for A-1") == 2
    send_to_group(plain.pid, signal.SIGINT)  # as Ctrl-C in its terminal does
    plain.wait(timeout=10.0)

    first = workers.start("shop", **begin)  # type: ignore[arg-type]
    reader.type(twice)
    assert first.logs().count("charging 990 under charge:A-1") == 1
    assert "belongs to task" in reader.type(mismatch)

    reader.type(hopeless)
    wait_until(lambda: "dead-lettered" in first.logs(), 10.0, "the dead letter")
    shown = reader.run(list_letters)
    letter_id = shown.splitlines()[1].split()[0]
    assert _without_ids(shown) == _without_ids(listing)

    written_id = replay.split()[replay.split().index("replay") + 1]
    assert reader.run(replay.replace(written_id, letter_id)) == replayed
    reader.type(repaired)

    reader.type(ask)
    first.wait_log("page 3 of monday")
    send_to_group(first.pid, signal.SIGINT)
    first.wait(timeout=10.0)
    second = workers.start("shop", **begin)  # type: ignore[arg-type]
    reader.type(rendered)

    pages = [int(page) for page in re.findall(r"page (\d+) of monday", first.logs() + second.logs())]
    assert pages == list(range(1, 41))


def _without_ids(listing: str) -> list[list[str]]:
    """Return the words of a listing, ids and ages aside."""
    words = (re.sub(r"\b[0-9a-f]{8}\b|\b\d+s\b", "*", line).split() for line in listing.splitlines())
    return [line for line in words if line]
