"""What is compared has the same means on both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAKE = """
import sys
{without}
from redis.connection import DefaultParser
from benchmarks.cases import PLAIN, make_app
make_app(PLAIN, broker="redis://broker/0", store="redis://broker/0")
print(DefaultParser.__name__)
"""


@pytest.mark.parametrize(
    ("without", "code", "words"), [("", 0, "Hiredis"), ("sys.modules['hiredis'] = None", 1, "hiredis on both sides")]
)
def test_plain_celery_is_measured_with_hiredis_or_not_at_all(without: str, code: int, words: str) -> None:
    """Ours always has it, and would win by it."""
    command = [sys.executable, "-c", MAKE.format(without=without)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stderr
