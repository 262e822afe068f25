"""The fixtures for users' own tests, as users' tests have them: in a pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.processes import process_table
from celery_reliable.testing.waiting import wait_until
from tests.integration.workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_reliable.testing.servers import ExternalServer, Server

pytestmark = pytest.mark.integration

PLUGIN = "celery_reliable.testing.pytest_plugin"
SUITE = ROOT / "tests" / "integration" / "kit" / "suite.py"
PAGE = ROOT / "docs" / "how-to" / "test-your-tasks.md"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def start_pytest(*words: str | Path, folder: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start pytest in a folder, with our plug-in and no other."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-v", "-s", "--durations=0", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_pytest(*words: str | Path, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what a pytest printed whose tests all passed."""
    with start_pytest(*words, folder=folder, env=env) as run:
        try:
            printed, _ = run.communicate(timeout=110)
        finally:
            run.kill()
    assert run.returncode == 0, printed
    return printed


def test_a_suite_breaks_workers_beats_and_servers(rabbitmq_server: Server | ExternalServer, tmp_path: Path) -> None:
    """On Redis and RabbitMQ; the app's own settings name servers that are not there, and are back at the end."""
    # A setting that would win over ours.
    env = {"KIT_RABBITMQ": rabbitmq_server.url, "CELERY_BROKER_URL": "redis://127.0.0.1:2/0"}
    words = ("--import-mode=importlib", f"--rootdir={tmp_path}", "-c", os.devnull, f"--basetemp={tmp_path / 'base'}")
    assert "5 passed" in run_pytest(*words, SUITE, folder=tmp_path, env=env)


def test_the_page_s_test_passes_as_it_is_written(tmp_path: Path) -> None:
    """Saved and run by a reader who has no server running."""
    written = dict(FILE.findall(PAGE.read_text("utf-8")))
    for name in ("shop.py", "test_shop.py"):
        (tmp_path / name).write_text(written[name])
    assert "1 passed" in run_pytest("test_shop.py", folder=tmp_path)


def test_nothing_outlives_a_pytest_that_is_killed(tmp_path: Path) -> None:
    """Not the worker, nor the server."""
    (tmp_path / "test_it.py").write_text(
        "def test_it(reliable_worker, reliable_redis):\n"
        "    worker = reliable_worker('tests.integration.kit.shop', pool='solo')\n"
        "    print('has', worker.pid, reliable_redis.pid, flush=True)\n"
        "    worker.wait()\n"
    )
    run = start_pytest("test_it.py", folder=tmp_path)
    assert run.stdout
    said = next(line for line in run.stdout if "has " in line)
    pids = {int(pid) for pid in said.partition("has ")[2].split()}
    run.kill()
    run.communicate()
    wait_until(lambda: not pids & {entry.pid for entry in process_table()}, 10.0, f"the end of {pids}")
