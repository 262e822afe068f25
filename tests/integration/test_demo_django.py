"""The Django shop's story as ``make demo-django`` tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CLAIMS = 12


@pytest.mark.timeout(280)
def test_the_demo_keeps_every_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Every line of the verdict holds, the exit code is 0, and no file is left."""
    command = [sys.executable, "-m", "example_project.webshop.demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CLAIMS} of {CLAIMS} lines hold" in done.stdout.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
